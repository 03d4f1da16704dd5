"""Beam search: which continuations stay in the beam, which are finished, and when no better one can come.

Each step extends every running beam by its most likely tokens and ranks all extensions by log-probability:

    the `width` best        those that end here (stop token, or max_tokens reached) are finished hypotheses
    those that do not end   the `width` best of them are the next running beams

A hypothesis is scored by its log-probability divided by (its output tokens, the stop token among them) to the power of
`length_penalty`; the `width` best are kept. The search is over when max_tokens is reached, or when `width` hypotheses
have finished and

    early_stopping True      at once
    early_stopping False     the best running beam, scored as if it ended now, does not beat the worst of them
    early_stopping "never"   not even if its log-probability stayed as it is to the length that favours it most

These are the rules of transformers' `generate(num_beams=…)`, and the tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_runtime.domain import FinishReason

__all__ = ["BeamSearch", "BeamStep", "Hypothesis"]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence.

    Attributes:
        token_ids: Its output tokens, the stop token among them.
        score: Its log-probability after the length penalty.
        finish_reason: STOP or LENGTH.
        stop_token_id: The token that ended it; None for LENGTH.
    """

    token_ids: tuple[int, ...]
    score: float
    finish_reason: FinishReason
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class BeamStep:
    """The running beams after a step, best first; none when the search is over.

    Attributes:
        parents: For each new beam, the position of the beam that it extends. A position may come up many times or not
            at all.
        tokens: For each new beam, the token that it adds.
    """

    parents: tuple[int, ...]
    tokens: tuple[int, ...]


class BeamSearch:
    """The search for one prompt. It begins with one beam, the prompt itself.

    Args:
        width: Beams that run at once, and hypotheses that are kept.
        max_tokens: Output tokens at which a beam ends.
        stop_token_ids: Tokens that end a beam.
        length_penalty: The power of the length by which a log-probability is divided: above 0 favours long answers,
            below 0 short ones.
        early_stopping: When to stop, as above.

    Attributes:
        num_candidates: How many of the most likely tokens each beam must bring to `step`: with so many, even if all
            stop tokens are among them, one beam alone could provide all the next ones.
    """

    def __init__(
        self,
        width: int,
        *,
        max_tokens: int,
        stop_token_ids: frozenset[int],
        length_penalty: float,
        early_stopping: bool | Literal["never"],
    ) -> None:
        self.num_candidates = width + len(stop_token_ids)
        self._width = width
        self._max_tokens = max_tokens
        self._stop_token_ids = stop_token_ids
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._length = 0
        self._running = [0.0]  # log-probabilities of the beams, in their order
        self._finished: list[Hypothesis] = []  # best first, at most `width`

    def step(self, candidates: Sequence[Sequence[tuple[int, float]]], outputs: Sequence[Sequence[int]]) -> BeamStep:
        """Extends the beams by one token.

        Args:
            candidates: For each running beam its `num_candidates` most likely tokens with their log-probabilities,
                best first.
            outputs: For each running beam its output tokens so far.
        """
        self._length += 1
        extensions = [
            (score + logprob, parent, token)
            for parent, (score, row) in enumerate(zip(self._running, candidates, strict=True))
            for token, logprob in row
        ]
        extensions.sort(key=lambda extension: -extension[0])
        is_last = self._length >= self._max_tokens
        for score, parent, token in extensions[: self._width]:
            if is_last or token in self._stop_token_ids:
                self._finish((*outputs[parent], token), score)
        if is_last:
            return BeamStep((), ())
        going = [extension for extension in extensions if extension[2] not in self._stop_token_ids][: self._width]
        self._running = [score for score, _, _ in going]
        if self._is_over():
            return BeamStep((), ())
        return BeamStep(tuple(parent for _, parent, _ in going), tuple(token for _, _, token in going))

    def results(self, n: int) -> list[Hypothesis]:
        """The `n` best hypotheses, best first, when the search is over; `n` is at most `width`."""
        return self._finished[:n]

    def _finish(self, token_ids: tuple[int, ...], score: float) -> None:
        last = token_ids[-1]
        stopped = last in self._stop_token_ids
        hypothesis = Hypothesis(
            token_ids=token_ids,
            score=self._penalised(score, len(token_ids)),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            stop_token_id=last if stopped else None,
        )
        self._finished.append(hypothesis)
        self._finished.sort(key=lambda kept: -kept.score)
        del self._finished[self._width :]

    def _is_over(self) -> bool:
        if not self._running:  # a vocabulary of stop tokens only
            return True
        if len(self._finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        favours_longest = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if favours_longest else self._length
        return self._penalised(self._running[0], length) <= self._finished[-1].score

    def _penalised(self, logprob: float, length: int) -> float:
        # The limit is where the power would overflow.
        return logprob * math.exp(min(700.0, -self._length_penalty * math.log(length)))
