"""What demand does: stay, climb, or jump. Which of the three explains the last minutes best; and how much it strays.

    stays            climbs              jumps
    · · ·· · ·          · ·                  · ·· ·
                     ·
                  · ·               · ·· ·

Only a climb is continued into the future, and only as steeply as its later half still climbs: one that is over has
become a level. A jump that a straight line was drawn through would be taken for a climb and answered with far too many
replicas; a climb that is averaged would be answered too late. The three are compared by the Bayesian information
criterion (Schwarz, 1978): residuals, no smaller than chance makes them, and a price for each parameter. The place of a
jump counts as two: it is the best of many (Zhang and Siegmund, 2007).

How much demand strays from minute to minute is another question, and wants a longer look: a few minutes that happen to
be alike say little of the next, and a burst that is over is in none of them to come. So it is a median over half an
hour, which neither jumps nor bursts move.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

__all__ = ["LEAST_POINTS", "Trend", "fit", "noise"]

Point = tuple[float, float]
"""(time, value)."""

LEAST_POINTS = 6
"""With fewer nothing is told apart: the last ones are averaged."""

PRICE = 2.5
"""How much a parameter costs, in terms of the criterion: more than 1, since a climb that is none costs replicas, and
who looks every few seconds sees many."""

FLOOR = 0.01
"""A variance that any fit has: demand is not measured better than to a tenth of a replica."""

MINUTE = 4
"""Points in a minute: what demand strays by is what one minute is off from those beside it."""

MEDIAN = 0.455
"""The median of the square of a normal number."""

LUCK = 8.0
"""How many times the variance that chance explains may still be chance: a median of few says little."""

LEAST_STRAYED = 4
"""From how many such comparisons on it is known, ..."""

MOST_STRAYED = 0.25
"""... and how much of demand it is at most: when a service is young, a jump may be in all of them."""

NOTHING = 1e-6
"""So little demand is none."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A fitted trend.

    Attributes:
        level: the value now.
        error: its standard error.
        slope: change per second; 0 unless it climbs or falls.
        spread: standard deviation of the points around it.
        span: seconds over which it was seen.
    """

    level: float
    error: float
    slope: float
    spread: float
    span: float


def fit(points: Sequence[Point], now: float, chance: float = 0.0) -> Trend:
    """Fits the likeliest of the three.

    Args:
        points: by time, at least one.
        now: the time that the level is for.
        chance: the variance that chance alone gives a point: less of it around a line is luck, and no line.
    """
    floor = max(FLOOR, chance)
    count = len(points)
    span = now - points[0][0]
    values = [value for _, value in points]
    if count < LEAST_POINTS:
        last = values[-3:]
        return Trend(sum(last) / len(last), math.sqrt(chance / len(last)), 0.0, 0.0, span)
    mean = sum(values) / count
    flat = sum((value - mean) ** 2 for value in values)
    jump, at = _jump(values)
    slope, line, middle = _line(points, mean)
    costs = ((_cost(flat, count, 1, floor), 0), (_cost(line, count, 2, floor), 1), (_cost(jump, count, 4, floor), 2))
    weight = float(count)  # points that the level is the mean of
    match min(costs)[1]:
        case 0:
            level, slope, variance = mean, 0.0, flat / (count - 1)
        case 1:
            level, variance = mean + slope * (now - middle), line / (count - 2)
            slope, weight = _lasting(points, slope), count / 4  # a line's end is known half as well as its middle
        case _:
            level, slope, variance, weight = fmean(values[at:]), 0.0, jump / max(1, count - 3), count - at
    return Trend(level, math.sqrt(max(variance, chance) / weight), slope, math.sqrt(variance), span)


def noise(points: Sequence[Point], chance: float) -> float:
    """What demand strays by from minute to minute, as a share of it, beyond chance: a standard deviation.

    Each minute is compared with the line through those before and after it. A median, so that neither a jump nor a
    burst counts.

    Args:
        points: by time, as long back as they tell something.
        chance: the variance that chance alone gives a point of demand 1; it grows with demand.
    """
    sums = [0.0, *accumulate(value for _, value in points)]
    minutes = [(after - before) / MINUTE for before, after in zip(sums, sums[MINUTE:], strict=False)]
    found = []
    for before, value, after in zip(minutes, minutes[MINUTE:], minutes[2 * MINUTE :], strict=False):
        level = (before + value + after) / 3
        if level > NOTHING:
            variance = (before - 2 * value + after) ** 2 / 6 / MEDIAN
            found.append((variance - LUCK * chance * level / MINUTE) / level**2)
    return min(MOST_STRAYED, math.sqrt(max(0.0, median(found)))) if len(found) >= LEAST_STRAYED else 0.0


def _cost(squares: float, count: int, parameters: int, floor: float) -> float:
    return count * math.log(squares / count + floor) + PRICE * parameters * math.log(count)


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
    error = math.sqrt(squares / max(1, len(later) - 2) / across) if across > 0 else 0.0
    return min(slope, max(0.0, recent + error)) if slope > 0 else slope


def _jump(values: Sequence[float]) -> tuple[float, int]:
    """Sum of squared residuals of the best jump, and the first point after it.

    A point in between may be a mean over the jump itself: if its value is between the two levels, or it is all that is
    left of what was before, it is on neither.
    """
    sums = [(0.0, 0.0)]
    for value in values:
        sums.append((sums[-1][0] + value, sums[-1][1] + value * value))
    count = len(values)
    total, squares = sums[-1]
    best = (math.inf, 0)
    for at in range(1, count):
        after = (total - sums[at][0]) / (count - at)
        right = squares - sums[at][1] - after * (total - sums[at][0])
        for end in (at, at - 1):
            before = sums[end][0] / end if end else math.nan
            if end in {0, at} or min(before, after) < values[end] < max(before, after):
                left = sums[end][1] - before * sums[end][0] if end else 0.0
                best = min(best, (max(0.0, left + right), at))
    return best
