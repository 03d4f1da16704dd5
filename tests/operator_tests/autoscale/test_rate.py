"""How many requests a full replica ends: a mean that forgets when answers become longer."""

import math
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.rate import LEAST, MEMORY, Rate, Work


def full(ended: float, worked: float, *, held: float = 0.5) -> Work:
    """Replicas that run 64 sequences, and use that share of their cache."""
    return Work(ended, worked, held * worked, 64 * worked)


KNOWN = Rate(full(1000, 100))
"""Ten requests a second."""

works = st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100)), min_size=1, max_size=10)


@given(works)
def test_see_is_a_mean_whose_weights_fade_with_what_was_worked_since(given: list[tuple[float, float]]) -> None:
    rate = Rate()
    for ended, worked in given:
        rate = rate.see(full(ended, worked))
    after = [sum(worked for _, worked in given) - done for done in accumulate(worked for _, worked in given)]
    weights = [math.exp(-seconds / MEMORY) for seconds in after]
    known = sum(weight * worked for weight, (_, worked) in zip(weights, given, strict=True))
    ended = sum(weight * ended for weight, (ended, _) in zip(weights, given, strict=True))
    assert rate.past.worked == pytest.approx(known, abs=1e-9)
    if known >= LEAST + 1e-6 and ended / known > 1e-5:
        assert rate.value == pytest.approx(ended / known)


def test_value_is_not_known_of_little() -> None:
    assert Rate(full(100, LEAST - 1)).value == 0
    assert Rate(full(100, LEAST)).value == 100 / LEAST


@pytest.mark.parametrize("ended", [0.0, 5e-324, 1e-200, 1e-5])
def test_value_of_those_that_hang_is_not_known(ended: float) -> None:
    assert Rate(full(ended, 100)).value == 0


@pytest.mark.parametrize("replicas", [1, 3, 20])
def test_doubt_believes_the_last_seconds_when_answers_are_longer(replicas: int) -> None:
    found = KNOWN.doubt(full(10.0 * replicas, 5.0 * replicas, held=0.8))
    if replicas == 1:  # 10 instead of 50: sure
        assert found.value == 2
    assert found.value == pytest.approx(2)
    assert found.see(full(20, 20, held=0.8)).value < 2, "it soon follows what comes then"


def test_doubt_of_a_batch_that_has_just_filled_up_is_none() -> None:
    """Nobody in it has come far, so little is held."""
    assert KNOWN.doubt(full(10, 5, held=0.2)) is KNOWN


def test_doubt_of_more_than_before_is_none() -> None:
    assert KNOWN.doubt(full(500, 5, held=0.8)) is KNOWN


def test_doubt_of_nothing_is_none() -> None:
    assert KNOWN.doubt(Work()) is KNOWN
    assert Rate().doubt(full(0, 5)) == Rate()


@given(st.floats(1, 100), st.floats(0.1, 1000), st.floats(0, 1000), st.floats(0, 1))
@example(1.0, 633.732421875, 1.0, 1.0)  # times the least by itself it is a little less than the least
def test_doubt_never_raises_the_rate_and_only_by_more_than_chance(
    rate: float, worked: float, ended: float, held: float
) -> None:
    known = Rate(full(rate * 100, 100))
    found = known.doubt(full(ended, worked, held=held))
    assert found.value <= known.value
    expected = rate * worked
    if found is not known:
        assert ended < expected - 3 * math.sqrt(2 * expected) * 0.999
        assert held >= 0.5 * 0.999
        assert found.value == pytest.approx(ended / worked, abs=1e-5)
