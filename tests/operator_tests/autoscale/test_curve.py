import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.curve import ServiceCurve


def learned(share: float, xs: list[float], noise: float = 0.0) -> ServiceCurve:
    """The curve after seeing steps of which `share` grows with the batch."""
    random_numbers = random.Random(1)
    curve = ServiceCurve()
    for x in xs:
        curve = curve.see(x, 0.007 * (1 - share + share * x) * (1 + random_numbers.gauss(0, noise)))
    return curve


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.95])
def test_curve_learns_how_steps_grow(share: float) -> None:
    xs = [0.1 * (number % 10) + 0.05 for number in range(300)]
    curve = learned(share, xs, noise=0.02)
    assert curve.share == pytest.approx(share, abs=0.05)
    for x in (0.1, 0.5, 0.9):
        assert curve.load(x) == pytest.approx(x / (1 - share + share * x), abs=0.05)


def test_curve_batches_of_one_size_tell_nothing() -> None:
    assert learned(0.95, [0.4] * 1000).share == 0.5
    assert ServiceCurve().share == 0.5


def test_curve_forgets() -> None:
    curve = learned(0.9, [0.1, 0.5, 0.9] * 100)
    assert curve.age(10_000).share == pytest.approx(0.5, abs=0.05)
    assert curve.age(0) == curve


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 10)), max_size=30),
    st.lists(st.floats(0, 2), min_size=2, max_size=10),
)
def test_curve_load_rises_from_0_to_1_whatever_was_seen(seen: list[tuple[float, float]], xs: list[float]) -> None:
    curve = ServiceCurve()
    for x, step in seen:
        curve = curve.see(x, step)
    assert curve.load(0) == 0
    assert curve.load(1) == curve.load(2) == pytest.approx(1)
    loads = [curve.load(x) for x in sorted(xs)]
    assert all(less <= more for less, more in itertools.pairwise(loads))
    assert all(load >= min(1.0, x) - 1e-9 for x, load in zip(sorted(xs), loads, strict=True))
