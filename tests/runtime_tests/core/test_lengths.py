"""The length predictor against samples whose distribution is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.core.lengths import LengthPredictor


def taught(lengths: list[int], *, cap: int = 1 << 30, max_len: int = 8192) -> LengthPredictor:
    predictor = LengthPredictor(max_len)
    for length in lengths:
        predictor.observe(min(length, cap), is_complete=length < cap)
    predictor.refresh(())
    return predictor


def lognormal(count: int, mean: float, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [max(1, round(rng.lognormvariate(math.log(mean) - 0.5, 1.0))) for _ in range(count)]


def test_expected_converges_to_the_mean() -> None:
    lengths = lognormal(4000, 300)
    assert taught(lengths).expected(0, 8192) == pytest.approx(sum(lengths) / len(lengths), rel=0.1)


def test_expected_of_a_long_answer_is_conditional_on_its_length() -> None:
    lengths = lognormal(4000, 300)
    longer = [length for length in lengths if length > 500]
    assert taught(lengths).expected(500, 8192) == pytest.approx(sum(longer) / len(longer), rel=0.15)


def test_observe_answers_cut_short_are_not_taken_for_short_ones() -> None:
    # Half of the answers are cut at 100 tokens; what is left says nothing of longer ones but that they exist.
    lengths = lognormal(4000, 300)
    cut = taught(lengths, cap=100)
    whole = taught(lengths)
    assert float(cut.survival(90.0, 0.0)) == pytest.approx(float(whole.survival(90.0, 0.0)), abs=0.03)


def test_refresh_answers_under_way_keep_a_burst_from_looking_short() -> None:
    # All begin together, and 100 tokens later only those have ended that are shorter.
    lengths = lognormal(2000, 300)
    ended = taught([length for length in lengths if length < 100])
    assert ended.expected(0, 8192) < 100
    ended.refresh([100 for length in lengths if length >= 100])
    whole = taught(lengths)
    assert float(ended.survival(90.0, 0.0)) == pytest.approx(float(whole.survival(90.0, 0.0)), abs=0.05)


def test_quantile_covers_its_share() -> None:
    lengths = lognormal(4000, 300)
    p90 = taught(lengths).quantile(0.9, 8192)
    assert sum(length <= p90 for length in lengths) / len(lengths) == pytest.approx(0.9, abs=0.04)


def test_observe_change_of_traffic_is_followed() -> None:
    predictor = taught([20] * 3000)
    for _ in range(6000):
        predictor.observe(1000, is_complete=True)
    predictor.refresh(())
    assert predictor.expected(0, 8192) > 700


def test_survival_untaught_is_a_prior_that_ends_some_day() -> None:
    predictor = LengthPredictor(4096)
    assert 0 < float(predictor.survival(1000.0, 0.0)) < float(predictor.survival(10.0, 0.0)) < 1


@given(
    lengths=st.lists(st.integers(0, 5000), max_size=80),
    given_tokens=st.integers(0, 4000),
    cap=st.integers(1, 6000),
)
def test_expected_stays_between_given_and_cap(lengths: list[int], given_tokens: int, cap: int) -> None:
    predictor = taught(lengths, max_len=2048)
    expected = predictor.expected(given_tokens, cap)
    assert min(given_tokens, cap) <= expected <= max(given_tokens, cap) + 1e-6
    assert predictor.quantile(0.9, cap) <= cap
