"""What demand does: stay, climb, or jump. Which of the three explains the last minutes best.

    stays            climbs              jumps
    · · ·· · ·          · ·                  · ·· ·
                     ·
                  · ·               · ·· ·

Only a climb is continued into the future, and only as steeply as its later half still climbs: one that is over has
become a level. A jump that a straight line was drawn through would be taken for a climb and answered with far too many
replicas; a climb that is averaged would be answered too late. The three are compared by the Bayesian information
criterion (Schwarz, 1978): residuals, and a price for each parameter. The place of a jump counts as two: it is the best
of many (Zhang and Siegmund, 2007).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST_POINTS", "Trend", "fit"]

Point = tuple[float, float]
"""(time, value)."""

LEAST_POINTS = 6
"""With fewer nothing is told apart: the last ones are averaged."""

PRICE = 2.5
"""How much a parameter costs, in terms of the criterion: more than 1, since a climb that is none costs replicas, and
who looks every few seconds sees many."""

FLOOR = 0.01
"""A variance that any fit has: demand is not measured better than to a tenth of a replica."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A fitted trend.

    Attributes:
        level: the value now.
        slope: change per second; 0 unless it climbs or falls.
        spread: standard deviation of the points around it.
        highest: how far the highest point is above it, or above what was before the jump.
        span: seconds over which it was seen.
    """

    level: float
    slope: float
    spread: float
    highest: float
    span: float


def fit(points: Sequence[Point], now: float) -> Trend:
    """Fits the likeliest of the three.

    Args:
        points: by time, at least one.
        now: the time that the level is for.
    """
    count = len(points)
    span = now - points[0][0]
    values = [value for _, value in points]
    if count < LEAST_POINTS:
        last = values[-3:]
        return Trend(sum(last) / len(last), 0.0, 0.0, 0.0, span)
    mean = sum(values) / count
    flat = sum((value - mean) ** 2 for value in values)
    jump, after, at = _jump(values)
    slope, line, middle = _line(points, mean)
    costs = ((_cost(flat, count, 1), 0), (_cost(line, count, 2), 1), (_cost(jump, count, 4), 2))
    match min(costs)[1]:
        case 0:
            highest = max(values) - mean
            return Trend(mean, 0.0, _spread(flat, count - 1), highest, span)
        case 1:
            highest = max(value - mean - slope * (time - middle) for time, value in points)
            return Trend(
                mean + slope * (now - middle), _lasting(points, slope), _spread(line, count - 2), highest, span
            )
        case _:
            before = sum(values[:at]) / at
            highest = max(max(values[at:]) - after, max(values[:at]) - before)
            return Trend(after, 0.0, _spread(jump, count - 3), highest, span)


def _cost(squares: float, count: int, parameters: int) -> float:
    return count * math.log(squares / count + FLOOR) + PRICE * parameters * math.log(count)


def _spread(squares: float, degrees: int) -> float:
    return math.sqrt(squares / max(1, degrees))


def _line(points: Sequence[Point], mean: float) -> tuple[float, float, float]:
    """Slope, sum of squared residuals, and mean time of the line of least squares."""
    middle = sum(time for time, _ in points) / len(points)
    across = sum((time - middle) ** 2 for time, _ in points)
    slope = sum((time - middle) * (value - mean) for time, value in points) / across if across > 0 else 0.0
    squares = sum((value - mean - slope * (time - middle)) ** 2 for time, value in points)
    return slope, squares, middle


def _lasting(points: Sequence[Point], slope: float) -> float:
    """The slope, but of a climb no more than its later half has, within its error: a climb that is over is none."""
    later = points[len(points) // 2 :]
    recent, squares, middle = _line(later, sum(value for _, value in later) / len(later))
    across = sum((time - middle) ** 2 for time, _ in later)
    error = _spread(squares, len(later) - 2) / math.sqrt(across) if across > 0 else 0.0
    return min(slope, max(0.0, recent + error)) if slope > 0 else slope


def _jump(values: Sequence[float]) -> tuple[float, float, int]:
    """Sum of squared residuals of the best jump, the mean after it, and which point is the first one after it."""
    total, squares = sum(values), sum(value * value for value in values)
    before, best = 0.0, (math.inf, 0.0, 0)
    for at in range(1, len(values)):
        before += values[at - 1]
        right = total - before
        residual = squares - before * before / at - right * right / (len(values) - at)
        best = min(best, (max(0.0, residual), right / (len(values) - at), at))
    return best
