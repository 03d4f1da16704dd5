"""How long answers will be, learned while serving.

The lengths seen so far give a survival function S(x), the share of answers longer than x tokens: a Kaplan-Meier
estimate over bins that grow by a fifth, so that answers cut by max_tokens or aborted count as "at least this long"
and not as "this long". Recent answers weigh more. What is expected of an answer of g tokens is then conditional on
having come that far: P(longer than x | longer than g) = S(x) / S(g).

Answers that are still under way count too, as far as they have come: at the start of a burst only the short ones have
ended, and to learn from those alone would be to expect short ones only.

Before anything is seen, a weak prior holds: in each bin one answer in twelve ends.

Source: Kaplan and Meier, Nonparametric Estimation from Incomplete Observations (1958).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["LengthPredictor"]

_HALF_LIFE = 2000
"""Answers after which an observation counts half."""

_PRIOR_HAZARD = 1 / 12
_PRIOR_WEIGHT = 2.0
_REFRESH = 16
"""Answers between two computations of S."""

Floats = npt.NDArray[np.float64]


class LengthPredictor:
    """Learns from ended answers, predicts the others.

    Args:
        max_len: Longest answer there can be, in tokens.
    """

    def __init__(self, max_len: int) -> None:
        edges = [0.0, 1.0]
        while edges[-1] <= max_len:
            edges.append(max(edges[-1] + 1, edges[-1] * 1.2))
        # Bin b holds the lengths in (edges[b], edges[b + 1]].
        self._edges = np.array(edges)
        self._ended = np.zeros(len(edges) - 1)
        self._reached = np.zeros(len(edges) - 1)
        self._weight = 1.0
        self._unseen = _REFRESH
        self._log_survival = np.zeros(len(edges))
        self.refresh(())

    def observe(self, length: int, *, is_complete: bool) -> None:
        """Takes in an answer.

        Args:
            length: Its tokens.
            is_complete: Whether it ended by itself; otherwise it would have gone on.
        """
        # Growing weights instead of decaying all counts.
        self._weight *= 2 ** (1 / _HALF_LIFE)
        index = int(np.searchsorted(self._edges, length)) - 1
        if index < 0:
            return
        index = min(index, len(self._ended) - 1)
        self._reached[: index + is_complete] += self._weight
        if is_complete:
            self._ended[index] += self._weight
        self._unseen += 1

    @property
    def is_stale(self) -> bool:
        """Whether enough has been seen since the last `refresh` for another."""
        return self._unseen >= _REFRESH

    def survival(self, length: Floats | float, given: Floats | float) -> Floats:
        """The probability that an answer of at least `given` tokens has more than `length`; broadcasts.

        Args:
            length: In tokens; not below `given`.
            given: Tokens that are there already.
        """
        difference: Floats = self._log_at(length) - self._log_at(given)
        return np.exp(np.minimum(difference, 0.0))

    def expected(self, given: int, cap: int) -> float:
        """The expected final length, between `given` and `cap`, of an answer that has `given` tokens and goes on."""
        if cap <= given:
            return float(cap)
        # The integral of the survival function, by trapezoids over the edges between the two.
        inner = self._edges[(self._edges > given) & (self._edges < cap)]
        points = np.concatenate(([given], inner, [cap])).astype(np.float64)
        survival = self.survival(points, float(given))
        return given + float(((survival[1:] + survival[:-1]) / 2 * np.diff(points)).sum())

    def quantile(self, share: float, cap: int) -> int:
        """The length that `share` of the answers do not exceed, at most `cap`."""
        logs = self._log_survival
        index = int(np.searchsorted(-logs, -np.log1p(-share)))
        return min(cap, int(self._edges[min(index, len(self._edges) - 1)]))

    def _log_at(self, length: Floats | float) -> Floats:
        beyond = np.maximum(np.asarray(length, dtype=np.float64), 0.0)
        found: Floats = np.interp(beyond, self._edges, self._log_survival)
        return found

    def refresh(self, under_way: Sequence[int]) -> None:
        """Computes the survival function from what was seen.

        Args:
            under_way: Lengths so far of the answers that have not ended.
        """
        self._unseen = 0
        prior = _PRIOR_WEIGHT * self._weight
        # An answer of g tokens has passed every bin that ends at g or before.
        places = np.searchsorted(self._edges[1:], under_way, side="right")
        passed = np.cumsum(np.bincount(places, minlength=len(self._edges))[::-1])[::-1][1:]
        reached = self._reached + passed * self._weight
        hazard = (self._ended + prior * _PRIOR_HAZARD) / (reached + prior)
        self._log_survival = np.concatenate(([0.0], np.cumsum(np.log1p(-np.minimum(hazard, 0.999)))))
        if self._weight > 1e6:
            self._ended /= self._weight
            self._reached /= self._weight
            self._weight = 1.0
