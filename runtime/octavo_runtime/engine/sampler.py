"""Next tokens from logits: each request's parameters, the numbers that it draws with, the candidates of its beams."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from octavo_kernels.native.arrays import Array
from octavo_kernels.sampling import NOT_FINITE
from octavo_runtime.domain import ScheduledSequence, StepPlan, StepResult

__all__ = ["SamplingForm", "sample_tokens", "sampled_tokens", "step_result", "uniform"]

_NOT_FINITE_ERROR = "the model's output for this request is not finite"
# In the place of candidates that a small vocabulary does not have: no search takes it while there are others.
_NONE = (0, -1e9)


Numbers = Any
"""An array or a tensor, whichever the form takes and gives."""


class SamplingForm(Protocol):
    """What draws tokens from logits on one device: the functions of octavo_kernels.sampling, and one more."""

    def greedy(self, logits: Numbers, /) -> Numbers:
        """The most likely token of each row."""
        ...

    def sample(
        self, logits: Numbers, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array, /
    ) -> Numbers:
        """A token drawn for each row."""
        ...

    def log_softmax(self, logits: Numbers, /) -> Numbers:
        """The logarithm of each likelihood, in float32; 0 where it is not a number."""
        ...

    def best(self, scores: Numbers, count: int, /) -> tuple[Numbers, Numbers]:
        """The largest of each row, and where they stand."""
        ...


def uniform(seed: int, index: int, choice: int = 0) -> float:
    """A number in [0, 1) that depends on the seed, the index of the token and the answer's number alone.

    There is no generator with a state, so the draw is the same alone, in a batch, and after a preemption.
    """
    key = struct.pack("<qQQ", seed, index, choice) if choice else struct.pack("<qQ", seed, index)
    digest = hashlib.blake2b(key, digest_size=6).digest()
    # 48 bits: times any sum of likelihoods, the result stays below the sum also when rounded.
    return int.from_bytes(digest, "little") * 2.0**-48


def step_result(tokens: Sequence[int], positions: Sequence[int]) -> StepResult:
    """The result of a step, without log-probabilities.

    Args:
        tokens: What was drawn; NOT_FINITE where there was nothing to draw from.
        positions: For each the position in the plan of the sequence that it is of.
    """
    if NOT_FINITE not in tokens:
        return StepResult(tokens)
    failed = {
        position: _NOT_FINITE_ERROR for position, token in zip(positions, tokens, strict=True) if token == NOT_FINITE
    }
    return StepResult([max(token, 0) for token in tokens], (), failed)


def sample_tokens(logits: Numbers, sequences: Sequence[ScheduledSequence], form: SamplingForm) -> StepResult:
    """Draws as many tokens for each sequence of a plan as it asks for, or finds its best candidates.

    A row is drawn from once for each answer that is to begin with it:

        logits        [ a ]        [ b, num_samples 3 ]           [ c, beam search, num_samples 4 ]
        rows drawn    [ a ]  [ b, choice 0 ][ b, 1 ][ b, 2 ]  [ c, greedy: tells whether it is finite ]
        tokens        [ a ]  [ b0 ]         [ b1 ]  [ b2 ]    [ c's candidates, best first ]

    Args:
        logits: [sequences with num_samples > 0, vocabulary], in their order.
        sequences: The plan's.
        form: What draws.
    """
    # For each row drawn: its place in the plan, its sequence, and which of the sequence's draws it is.
    rows: list[tuple[int, ScheduledSequence, int]] = []
    wants_logprobs = False
    for position, sequence in enumerate(sequences):
        if sequence.num_samples:
            wants_logprobs = wants_logprobs or sequence.sampling.needs_logprobs
            draws = 1 if sequence.sampling.use_beam_search else sequence.num_samples
            rows += [(position, sequence, draw) for draw in range(draws)]
    if not rows:
        return StepResult()
    drawn = logits
    if len(rows) > len(logits):
        owners = itertools.accumulate(draw == 0 for _, _, draw in rows)
        drawn = logits[[owner - 1 for owner in owners]]
    result = step_result(_draw(drawn, rows, form), [position for position, _, _ in rows])
    if not wants_logprobs:
        return result

    scores = form.log_softmax(drawn)
    tokens = list(result.tokens)
    logprobs: list[float] = scores[list(range(len(tokens))), tokens].tolist()
    beams = {n: sequence.num_samples for n, (_, sequence, _) in enumerate(rows) if sequence.sampling.use_beam_search}
    if beams:
        candidates = _candidates(scores, beams, form)
        pairs = [candidates.get(n, [pair]) for n, pair in enumerate(zip(tokens, logprobs, strict=True))]
        tokens = [token for row in pairs for token, _ in row]
        logprobs = [logprob for row in pairs for _, logprob in row]
    return StepResult(tokens, logprobs, result.failed)


def sampled_tokens(plan: StepPlan, result: StepResult) -> dict[int, int]:
    """The token that each sequence goes on with, where it can be told without the scheduler: sequence number -> token."""
    tokens: dict[int, int] = {}
    place = 0
    for sequence in plan.sequences:
        if sequence.num_samples == 1:
            tokens[sequence.number] = result.tokens[place]
        place += sequence.num_samples
    return tokens


def _draw(logits: Numbers, rows: Sequence[tuple[int, ScheduledSequence, int]], form: SamplingForm) -> list[int]:
    """A token for each row, NOT_FINITE where there is none."""
    params = [sequence.sampling for _, sequence, _ in rows]
    temperatures = [0.0 if p.use_beam_search else p.temperature for p in params]
    if not any(temperatures):
        greedy: list[int] = form.greedy(logits).tolist()
        return greedy
    assert all(p.seed is not None for p in params), "the door draws a seed where the client gives none"
    tokens: list[int] = form.sample(
        logits,
        np.array(temperatures, np.float32),
        np.array([p.top_k for p in params], np.int64),
        np.array([p.top_p for p in params], np.float32),
        np.array([p.min_p for p in params], np.float32),
        np.array([uniform(s.sampling.seed or 0, s.num_generated, s.choice + draw) for _, s, draw in rows]),
    ).tolist()
    return tokens


def _candidates(scores: Numbers, counts: Mapping[int, int], form: SamplingForm) -> dict[int, list[tuple[int, float]]]:
    """The best tokens of some rows with their log-probabilities: row -> as many as `counts` says."""
    found = form.best(scores[list(counts)], min(max(counts.values()), scores.shape[1]))
    return {
        row: list(itertools.islice(itertools.chain(zip(tokens, logprobs, strict=True), itertools.repeat(_NONE)), count))
        for (row, count), logprobs, tokens in zip(counts.items(), *(each.tolist() for each in found), strict=True)
    }
