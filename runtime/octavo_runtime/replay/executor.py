"""An executor that computes nothing: it tells how long each step would take, and gives answers known in advance."""

from __future__ import annotations

import random
from collections.abc import Iterable

from octavo_runtime.domain import ScheduledSequence, StepPlan, StepResult
from octavo_runtime.replay.requests import EOS, ReplayRequest, filler
from octavo_runtime.replay.step_time import StepTimeModel, num_swapped

__all__ = ["SimulatedExecutor"]


class SimulatedExecutor:
    """Stands where a real executor stands, in virtual time.

    Args:
        requests: All that will be scheduled.
        step_time: How long steps take.
        block_size: Tokens per block, for the time of copies.

    Attributes:
        recomputed_tokens: Tokens computed at positions that the same sequence had computed before.
        swapped_blocks: Blocks copied between the tiers.
    """

    def __init__(self, requests: Iterable[ReplayRequest], step_time: StepTimeModel, block_size: int) -> None:
        self.recomputed_tokens = 0
        self.swapped_blocks = 0
        self._answers = {replay.request.request_id: _Answers(replay) for replay in requests}
        self._step_time = step_time
        self._block_size = block_size
        self._prefilled: dict[int, int] = {}  # sequence number -> how far its prefill ever was

    def execute(self, plan: StepPlan) -> StepResult:
        """One step: its tokens, and the seconds that it would have taken."""
        tokens: list[int] = []
        logprobs: list[float] = []
        ranked = False
        for sequence in plan.sequences:
            answers = self._answers[sequence.request_id]
            if not sequence.feeds:
                self._count_recomputed(sequence, answers.prompt)
            if sequence.num_samples == 1 and not answers.ranked:
                tokens.append(answers.token(sequence.choice, sequence.num_generated))
                logprobs.append(-1.0)
            elif sequence.num_samples:
                ranked = ranked or answers.ranked
                for token, logprob in self._sample(answers.replay, sequence):
                    tokens.append(token)
                    logprobs.append(logprob)
        self.swapped_blocks += num_swapped(plan)
        seconds = self._step_time.seconds(plan, self._block_size)
        return StepResult(tokens, logprobs if ranked else (), seconds=seconds)

    def candidates(self, replay: ReplayRequest, beam: ScheduledSequence) -> list[tuple[int, float]]:
        """The best candidates of one beam with their log-probabilities, best first: made up, since no trace has them.

        They fall as a language model's do, and differ from beam to beam and step to step, the same in every run. When
        the longest answer is as long as it was, each beam's best candidate is EOS.
        """
        draw = random.Random(f"{beam.number} {beam.num_generated}")  # noqa: S311 - no secret
        logprobs = [-draw.expovariate(2.0)]
        while len(logprobs) < beam.num_samples:
            logprobs.append(logprobs[-1] - draw.expovariate(1.0))
        tokens = [filler(rank) for rank in range(beam.num_samples)]
        longest = max(replay.output_lengths)
        if beam.num_generated + 1 >= longest and longest != replay.request.sampling.max_tokens:
            tokens[0] = EOS
        return list(zip(tokens, logprobs, strict=True))

    def _sample(self, replay: ReplayRequest, sequence: ScheduledSequence) -> list[tuple[int, float]]:
        if sequence.sampling.use_beam_search:
            return self.candidates(replay, sequence)
        answers = self._answers[sequence.request_id]
        choices = range(sequence.choice, sequence.choice + sequence.num_samples)
        return [(answers.token(choice, sequence.num_generated), -1.0) for choice in choices]

    def _count_recomputed(self, sequence: ScheduledSequence, prompt: int) -> None:
        # Whoever has an output has computed all before its last token; in its prompt a sequence is as far as it was.
        start, end = sequence.num_computed, sequence.num_computed + len(sequence.token_ids)
        if sequence.num_generated:
            before = prompt + sequence.num_generated - 1
        else:
            before = self._prefilled.get(sequence.number, 0)
            self._prefilled[sequence.number] = max(before, end)
        if before > start:
            self.recomputed_tokens += min(before, end) - start


class _Answers:
    """What the sequences of a request answer."""

    __slots__ = ("_ends", "_known", "prompt", "ranked", "replay")

    def __init__(self, replay: ReplayRequest) -> None:
        sampling = replay.request.sampling
        self.replay = replay
        self.prompt = len(replay.request.prompt_token_ids)
        self.ranked = sampling.needs_logprobs
        # An answer of max_tokens has no EOS; what is planned beyond an end is never looked at.
        self._ends = [length - 1 if length != sampling.max_tokens else length for length in replay.output_lengths]
        self._known = replay.output_token_ids

    def token(self, choice: int, position: int) -> int:
        """The output token of one answer at a position, from 0."""
        if position >= self._ends[choice]:
            return EOS
        return self._known[position] if position < len(self._known) else filler(choice)
