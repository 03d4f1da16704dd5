"""What sampled tokens make of a sequence: it goes on, forks, or ends, and news goes out."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from itertools import count

from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.running import RunningSet
from octavo_runtime.core.sequence import Answer, RequestState, Sequence
from octavo_runtime.domain import Event, FinishReason

__all__ = ["Answers"]


class Answers:
    """Takes in what steps sampled.

    Args:
        running: Where the sequences are.
        predictor: Learns from those that end.

    Attributes:
        num_predictions: Ended answers whose length had been predicted, so far.
        predicted_tokens: Sum of the lengths predicted for them.
        actual_tokens: Sum of the lengths that they had.
        num_within_p90: How many were no longer than their predicted 90th percentile.
    """

    def __init__(self, running: RunningSet, predictor: LengthPredictor) -> None:
        self._running = running
        self._predictor = predictor
        self._numbers = count()
        self.num_predictions = 0
        self.predicted_tokens = 0
        self.actual_tokens = 0
        self.num_within_p90 = 0

    def number(self) -> int:
        """A number for a new sequence."""
        return next(self._numbers)

    def take(self, sequence: Sequence, tokens: Tokens[int], logprobs: Tokens[float]) -> list[Event]:
        """Takes in the tokens that a step sampled for a running sequence, as many as its plan asked for.

        Returns:
            The news.
        """
        return list(self._take(sequence, tokens, logprobs))

    def _take(self, sequence: Sequence, tokens: Tokens[int], logprobs: Tokens[float]) -> Iterator[Event]:
        request = sequence.request
        if request.beams is not None:
            sequence.candidates = list(zip(tokens, logprobs, strict=True))
            if all(beam.candidates is not None for beam in request.sequences):
                yield from self._search(request)
            return
        logprobs = logprobs or [0.0] * len(tokens)
        for each, token, logprob in zip(self._forks(sequence, len(tokens)), tokens, logprobs, strict=True):
            if each is not None:
                yield from self._append(each, token, logprob)

    def _forks(self, sequence: Sequence, width: int) -> list[Sequence | None]:
        """The sequences of the answers that begin here; None for one that nobody waits for any longer."""
        if width == 1:
            return [sequence]
        request = sequence.request
        # Where answers are ranked, which sequence will be which answer is not known yet: none can be left out.
        dropped = set() if request.sampling.ranks else request.dropped
        wanted = [choice for choice in range(width) if choice not in dropped]
        self._running.free_slots(sequence)
        sequence.choice = wanted[0]
        forks = {choice: self._running.fork(sequence, self.number(), choice) for choice in wanted[1:]}
        forks[wanted[0]] = sequence
        return [forks.get(choice) for choice in range(width)]

    def _append(self, sequence: Sequence, token: int, logprob: float) -> Iterator[Event]:
        request = sequence.request
        sequence.token_ids.append(token)
        reason = None
        if token in request.stops:
            reason = FinishReason.STOP
        elif sequence.num_generated >= request.max_tokens:
            reason = FinishReason.LENGTH
        stop_token = token if reason is FinishReason.STOP else None
        if not request.sampling.ranks:
            if reason is not None:
                request.ended.add(sequence.choice)
                self.end(sequence, is_complete=reason is FinishReason.STOP)
            cached = request.num_cached_tokens or 0
            yield Event(request.request_id, (token,), reason, stop_token, cached, None, sequence.choice)
            return
        sequence.logprob += logprob
        if reason is None:
            return
        output = tuple(sequence.token_ids[request.prompt_len :])
        request.answers.append(Answer(sequence.logprob / len(output), output, reason, stop_token))
        self.end(sequence, is_complete=reason is FinishReason.STOP)
        if not request.sequences:
            request.answers.sort(key=lambda answer: -answer.score)
            yield from self._ranked(request, request.answers)

    def _search(self, request: RequestState) -> Iterator[Event]:
        """The next step of a beam search, once all its beams have brought their candidates."""
        assert request.beams is not None
        beams = list(request.sequences)
        step = request.beams.step(
            [beam.candidates or [] for beam in beams], [beam.token_ids[request.prompt_len :] for beam in beams]
        )
        if not step.parents:
            found = request.beams.results(request.sampling.n)
            for beam in beams:
                self._running.end(beam)
            yield from self._ranked(
                request, [Answer(one.score, one.token_ids, one.finish_reason, one.stop_token_id) for one in found]
            )
            return
        for index, beam in enumerate(beams):
            self._running.free_slots(beam)
            if index not in step.parents:
                self._running.end(beam)
        following: list[Sequence] = []
        for index, parent in enumerate(step.parents):
            # The first child goes on in its parent's place.
            is_first = parent not in step.parents[:index]
            following.append(beams[parent] if is_first else self._running.fork(beams[parent], self.number(), index))
        for beam, token in zip(following, step.tokens, strict=True):
            beam.token_ids.append(token)
            beam.candidates = None
        request.sequences[:] = following

    def _ranked(self, request: RequestState, answers: Tokens[Answer]) -> Iterator[Event]:
        cached = request.num_cached_tokens or 0
        for choice, answer in enumerate(answers[: request.sampling.n]):
            if choice not in request.dropped:
                yield Event(
                    request.request_id,
                    answer.token_ids,
                    answer.finish_reason,
                    answer.stop_token_id,
                    cached,
                    None,
                    choice,
                )

    def end(self, sequence: Sequence, *, is_complete: bool) -> None:
        """Frees a sequence and learns from its length.

        Args:
            sequence: It may be running or waiting.
            is_complete: Whether it came to its own end.
        """
        request, length = sequence.request, sequence.num_generated
        if request.beams is None and length:
            self._predictor.observe(length, is_complete=is_complete)
            if request.predicted is not None and (is_complete or length == request.max_tokens):
                expected, p90 = request.predicted
                self.num_predictions += 1
                self.predicted_tokens += round(expected)
                self.actual_tokens += length
                self.num_within_p90 += length <= p90
        self._running.end(sequence)
