"""Fits the step-time model to a trace: what a step took follows from how long answers took while others ran.

An answer of k tokens took k - 1 steps after its first token. In that time the engine computed the tokens that others
got and the prompts that came in, and read the context of all that decoded. So each answer is one equation

    finished - first token = base x steps + per_token x tokens in that time + per_context x context in that time

and many answers give the three coefficients by least squares of the relative errors, none of them negative. Tokens
are taken to come evenly between an answer's first and last, and prompts to be computed when their first token comes.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from octavo_runtime.replay.step_time import StepTimeModel
from octavo_runtime.replay.trace import Trace, TraceLine

__all__ = ["fit_step_time"]

_MIN_TOKENS = 8  # of an answer that gives an equation
_MIN_EQUATIONS = 16
_MAX_REQUESTS = 4000  # the work grows with the square

Floats = npt.NDArray[np.float64]


def fit_step_time(trace: Trace) -> StepTimeModel | None:
    """The model that explains the recorded times best; None where too few were recorded.

    Link and KV bytes are not in the times; they stay at their defaults.
    """
    lines = [line for line in trace.lines if line.first_token is not None][:_MAX_REQUESTS]
    load = _Load(lines)
    ours = np.array([len(line.outputs) == 1 and line.outputs[0] >= _MIN_TOKENS for line in lines], dtype=bool)
    ours &= load.last > load.first
    if ours.sum() < _MIN_EQUATIONS:
        return None
    began, ended = load.until(load.first[ours]), load.until(load.last[ours])
    took = load.last[ours] - load.first[ours]
    terms = np.column_stack([load.outputs[ours] - 1, *(ended - began)])
    base, per_token, per_context = _non_negative(terms / took[:, None], np.ones(len(took)))
    if base + per_token <= 0:
        return None
    return StepTimeModel(base=base, per_token=per_token, per_context=per_context)


class _Load:
    """What the engine had computed by a time."""

    def __init__(self, lines: list[TraceLine]) -> None:
        self.first = np.array([line.first_token or 0.0 for line in lines])
        self.last = np.array([line.finished for line in lines])
        self.outputs = np.array([sum(line.outputs) for line in lines], dtype=np.float64)
        self._prompts = np.array([line.prompt for line in lines], dtype=np.float64)
        self._computed = np.array([line.prompt - line.cached for line in lines], dtype=np.float64)
        self._widths = np.array([len(line.outputs) for line in lines], dtype=np.float64)

    def until(self, times: Floats) -> Floats:
        """Tokens computed by each time, and the sum of the context read for them: [2, times]."""
        length = np.maximum(self.last - self.first, 1e-9)
        result = np.empty((2, len(times)))
        for place, time in enumerate(times):
            share = np.clip((time - self.first) / length, 0.0, 1.0)
            decoded = share * (self.outputs - self._widths)
            result[0, place] = decoded.sum() + self._computed[self.first <= time].sum()
            # Each token reads the prompt and what its answer has so far: on the average, half of it.
            result[1, place] = (decoded * (self._prompts + decoded / self._widths / 2)).sum()
        return result


def _non_negative(terms: Floats, values: Floats) -> list[float]:
    """Least squares without negative coefficients: of all subsets of terms, the best whose solution has none."""
    count = terms.shape[1]
    best, best_error = [0.0] * count, float(values @ values)
    for size in range(1, count + 1):
        for subset in combinations(range(count), size):
            columns = terms[:, subset]
            scale = np.maximum(np.abs(columns).max(axis=0), 1e-30)
            found = np.linalg.lstsq(columns / scale, values, rcond=None)[0] / scale
            error = float(((columns @ found - values) ** 2).sum())
            if (found >= 0).all() and error < best_error:
                best = [0.0] * count
                for place, coefficient in zip(subset, found, strict=True):
                    best[place] = float(coefficient)
                best_error = error
    return best
