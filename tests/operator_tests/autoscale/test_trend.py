import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.trend import fit

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
    assert sum(trend.spread for trend in trends) / 200 == pytest.approx(0.1, abs=0.01)


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
    assert trend.spread < 0.2


def test_fit_climb_that_is_over_is_not_continued() -> None:
    """Answers became longer within a minute: the line of least squares climbs by 0.024 a second."""
    trend = fit(points([2.0, 2.1, 1.9, 2.0, 2.2, 2.9, 4.3, 5.0, 5.0, 4.9, 5.2, 5.1]), NOW)
    assert 0 <= trend.slope < 0.013


def test_fit_fall_is_no_climb_that_is_over() -> None:
    values = [6.0 - 0.3 * number + 0.05 * (-1) ** number for number in range(12)]
    assert fit(points(values), NOW).slope == pytest.approx(-0.02, rel=0.05)


def test_fit_jump_to_a_quiet_level_does_not_forget_how_far_demand_strayed() -> None:
    before = [2.0, 2.4, 1.6, 2.0, 2.4, 1.6, 2.0, 2.0]
    assert fit(points([*before, 6.0, 6.0, 6.0, 6.0]), NOW).highest == pytest.approx(0.4)


def test_fit_block_that_a_jump_falls_into_makes_no_climb() -> None:
    trend = fit(points([1.0, 0.9, 1.0, 1.1, 0.9, 1.0, 1.0, 3.6, 5.9, 6.0, 6.1, 6.0]), NOW)
    assert trend.slope == 0
    assert trend.level == pytest.approx(6.0)
    assert trend.spread < 0.1
    assert trend.highest == pytest.approx(0.1, abs=0.02)


def test_fit_what_is_left_of_a_jump_is_no_noise() -> None:
    trend = fit(points([3.6, *[6.0 + 0.1 * (-1) ** number for number in range(11)]]), NOW)
    assert trend.level == pytest.approx(6.0, abs=0.01)
    assert trend.spread < 0.15


def test_fit_noise_that_chance_explains_is_no_climb_and_nothing_beyond() -> None:
    climbs, beyond = [0, 0], [0.0, 0.0]
    for seed in range(200):
        random_numbers = random.Random(seed)
        values = points([6 + random_numbers.gauss(0, 0.2) for _ in TIMES])
        for number, chance in enumerate((0.0, 0.04)):
            trend = fit(values, NOW, chance)
            climbs[number] += trend.slope > 0
            beyond[number] += trend.beyond
    assert climbs[1] < climbs[0] / 2
    assert beyond[1] < beyond[0] / 100


def test_fit_what_varies_more_than_chance_is_beyond_it() -> None:
    values = points([3 + 0.7 * (-1) ** (number // 3) for number in range(12)])
    trend = fit(values, NOW, 0.01)
    assert trend.beyond == pytest.approx(0.7, rel=0.15)


def test_fit_error_of_a_level_shrinks_with_the_time_since_the_jump() -> None:
    errors = [fit(points([1.0] * (12 - since) + [6.0] * since), NOW, 0.04).error for since in (1, 4)]
    assert errors == [pytest.approx(0.2), pytest.approx(0.1)]


def test_fit_few_points_are_averaged() -> None:
    trend = fit([(0.0, 9.0), (15.0, 1.0), (30.0, 2.0), (45.0, 3.0)], 50)
    assert (trend.level, trend.slope, trend.spread, trend.span) == (2, 0, 0, 50)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=40), st.floats(0, 100))
def test_fit_any_points_give_numbers(values: list[float], since: float) -> None:
    times = [15.0 * number for number in range(len(values))]
    trend = fit(list(zip(times, values, strict=True)), times[-1] + since)
    assert all(math.isfinite(one) for one in (trend.level, trend.slope, trend.spread, trend.span))
    assert trend.spread >= 0
