import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.trend import MOST_STRAYED, fit, noise

TIMES = [15.0 * number for number in range(12)]
NOW = 172.5


def points(values: list[float]) -> list[tuple[float, float]]:
    return list(zip(TIMES, values, strict=True))


def test_fit_noise_stays() -> None:
    trends = []
    for seed in range(200):
        random_numbers = random.Random(seed)
        trends.append(fit(points([3 + random_numbers.gauss(0, 0.1) for _ in TIMES]), NOW))
    assert sum(trend.slope == 0 for trend in trends) > 170
    assert all(trend.level == pytest.approx(3, abs=0.25) for trend in trends)
    assert sum(trend.error for trend in trends) / 200 == pytest.approx(0.1 / math.sqrt(12), rel=0.1)


def test_fit_climb_is_followed_to_now() -> None:
    random_numbers = random.Random(7)
    trend = fit(points([1 + 0.01 * time + random_numbers.gauss(0, 0.05) for time in TIMES]), NOW)
    assert trend.slope == pytest.approx(0.01, rel=0.1)
    assert trend.level == pytest.approx(1 + 0.01 * NOW, abs=0.1)
    assert trend.span == NOW


@pytest.mark.parametrize("since", range(1, 12))
def test_fit_jump_is_no_climb(since: int) -> None:
    random_numbers = random.Random(since)
    values = [(1.0 if number < since else 6.0) + random_numbers.gauss(0, 0.05) for number in range(12)]
    trend = fit(points(values), NOW)
    assert trend.slope == 0
    assert trend.level == pytest.approx(6, abs=0.15)


def test_fit_climb_that_is_over_is_not_continued() -> None:
    """Answers became longer within a minute: the line of least squares climbs by 0.024 a second."""
    trend = fit(points([2.0, 2.1, 1.9, 2.0, 2.2, 2.9, 4.3, 5.0, 5.0, 4.9, 5.2, 5.1]), NOW)
    assert 0 <= trend.slope < 0.013


def test_fit_fall_is_no_climb_that_is_over() -> None:
    values = [6.0 - 0.3 * number + 0.05 * (-1) ** number for number in range(12)]
    assert fit(points(values), NOW).slope == pytest.approx(-0.02, rel=0.05)


def test_fit_block_that_a_jump_falls_into_makes_no_climb() -> None:
    trend = fit(points([1.0, 0.9, 1.0, 1.1, 0.9, 1.0, 1.0, 3.6, 5.9, 6.0, 6.1, 6.0]), NOW)
    assert trend.slope == 0
    assert trend.level == pytest.approx(6.0)
    assert trend.error < 0.05


def test_fit_what_is_left_of_a_jump_is_no_noise() -> None:
    trend = fit(points([3.6, *[6.0 + 0.1 * (-1) ** number for number in range(11)]]), NOW)
    assert trend.level == pytest.approx(6.0, abs=0.01)
    assert trend.error < 0.05


def test_fit_noise_that_chance_explains_is_no_climb() -> None:
    climbs = [0, 0]
    for seed in range(200):
        random_numbers = random.Random(seed)
        values = points([6 + random_numbers.gauss(0, 0.2) for _ in TIMES])
        for number, chance in enumerate((0.0, 0.04)):
            climbs[number] += fit(values, NOW, chance).slope > 0
    assert climbs[1] < climbs[0] / 2


def test_fit_error_of_a_level_shrinks_with_the_time_since_the_jump() -> None:
    errors = [fit(points([1.0] * (12 - since) + [6.0] * since), NOW, 0.04).error for since in (1, 4)]
    assert errors == [pytest.approx(0.2), pytest.approx(0.1)]


def test_fit_few_points_are_averaged() -> None:
    trend = fit([(0.0, 9.0), (15.0, 1.0), (30.0, 2.0), (45.0, 3.0)], 50)
    assert (trend.level, trend.error, trend.slope, trend.spread, trend.span) == (2, 0, 0, 0, 50)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=40), st.floats(0, 100))
def test_fit_any_points_give_numbers(values: list[float], since: float) -> None:
    times = [15.0 * number for number in range(len(values))]
    trend = fit(list(zip(times, values, strict=True)), times[-1] + since)
    assert all(math.isfinite(one) for one in (trend.level, trend.error, trend.slope, trend.span))
    assert trend.error >= 0


def minutes(values: list[float], chance: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    """Points of which four in turn have a value, and what chance adds to it."""
    random_numbers = random.Random(seed)
    each = [value + random_numbers.gauss(0, math.sqrt(chance * value)) for value in values for _ in range(4)]
    return [(15.0 * number, value) for number, value in enumerate(each)]


CHANCE = 0.005
"""Of a service that ends 27 requests a second."""


def test_noise_of_minutes_that_differ() -> None:
    random_numbers = random.Random(1)
    found = [
        noise(minutes([5 * random_numbers.gauss(1, 0.2) for _ in range(30)], CHANCE, seed), CHANCE)
        for seed in range(40)
    ]
    # Less than 0.2: what is compared are the means of any four points, most of which share in two of the minutes.
    assert sum(found) / 40 == pytest.approx(0.12, abs=0.02)
    assert all(0.05 < one <= MOST_STRAYED for one in found)


@pytest.mark.parametrize("level", [1.0, 6.0])
def test_noise_that_chance_explains_is_none(level: float) -> None:
    found = [noise(minutes([level] * 10, CHANCE, seed), CHANCE) for seed in range(100)]
    assert sum(one > 0 for one in found) <= 2


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1.0] * 9 + [6.0] * 5, id="jump"),
        pytest.param([1.0] * 10 + [5.0] * 2 + [1.0] * 8, id="burst"),
        pytest.param([0.5 + 0.25 * minute for minute in range(30)], id="climb"),
    ],
)
def test_noise_does_not_count_what_happens_once(values: list[float]) -> None:
    assert noise(minutes(values, CHANCE), CHANCE) == 0


def test_noise_of_a_jump_that_is_in_all_of_it_is_bounded() -> None:
    assert noise(minutes([1.0, 1.0, 6.0, 6.0]), CHANCE) == MOST_STRAYED


@pytest.mark.parametrize("values", [[], [3.0], [3.0, 1.0, 3.0], [0.0] * 30])
def test_noise_of_nothing_is_none(values: list[float]) -> None:
    assert noise(minutes(values), CHANCE) == 0
