"""What is made of a replay's times."""

from __future__ import annotations

import statistics
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.replay import Measured, Objectives, RequestTimes, latencies
from octavo_runtime.replay.metrics import EngineUse

seconds = st.floats(0.001, 100, allow_nan=False)


def times(label: str = "", arrival: float = 0.0, first: float = 1.0, gaps: tuple[float, ...] = ()) -> RequestTimes:
    return RequestTimes(label, arrival, arrival + first, arrival + first + sum(gaps), 1 + len(gaps), array("d", gaps))


@given(st.lists(st.tuples(seconds, seconds, st.lists(seconds, max_size=5)), min_size=1, max_size=20))
def test_latencies_are_numpys_percentiles(drawn: list[tuple[float, float, list[float]]]) -> None:
    requests = [times("", arrival, first, tuple(gaps)) for arrival, first, gaps in drawn]
    found = latencies(requests)
    expected = {
        "ttft": [first for _, first, _ in drawn],
        "itl": [gap for _, _, gaps in drawn for gap in gaps],
        "tpot": [statistics.fmean(gaps) for _, _, gaps in drawn if gaps],
        "e2e": [first + sum(gaps) for _, first, gaps in drawn],
    }
    for name, values in expected.items():
        for percent in (50, 90, 99):
            key = f"{name}_p{percent}_ms"
            if values:
                assert found[key] == pytest.approx(1000 * np.percentile(values, percent), rel=1e-6)
            else:
                assert key not in found


def test_latencies_leave_out_what_has_not_ended() -> None:
    assert latencies([RequestTimes("", 0.0), times(first=2.0)])["ttft_p50_ms"] == pytest.approx(2000)


@pytest.mark.parametrize(
    ("first", "gaps", "good"),
    [
        (0.5, (0.05,) * 100, True),
        (0.51, (0.01,) * 100, False),
        (0.1, (*(0.01,) * 99, 1.0), True),  # one of a hundred may be late
        (0.1, (*(0.01,) * 98, 1.0, 1.0), False),
        (0.1, (), True),
    ],
)
def test_meets(first: float, gaps: tuple[float, ...], *, good: bool) -> None:
    assert times(first=first, gaps=gaps).meets(Objectives(ttft=0.5, itl=0.05)) is good


def test_goodput_is_good_requests_per_second() -> None:
    requests = (times(first=0.1), times(first=9.9, arrival=0.1), times(first=0.2, arrival=4.0))
    assert Measured(requests, EngineUse()).goodput(Objectives(ttft=0.5)) == pytest.approx(2 / 10)


def test_slot_utilisation_counts_steps_in_which_someone_waits() -> None:
    use = EngineUse(steps=10, tokens=50, waiting_steps=4, waiting_tokens=30)
    assert Measured((times(),), use).slot_utilisation(8) == pytest.approx(30 / 32)
    assert Measured((times(),), EngineUse()).slot_utilisation(8) == 1


def test_steady_rate_leaves_out_filling_and_emptying() -> None:
    # Nine a second in the middle, slow at both ends.
    ends = [0.0, 50.0, *[100 + step / 9 for step in range(16)], 200.0, 300.0]
    requests = tuple(RequestTimes("", 0.0, end, end) for end in ends)
    assert Measured(requests, EngineUse()).steady_rate() == pytest.approx(9)


def test_figures_tell_the_classes_apart() -> None:
    use = EngineUse(steps=1, seconds=1.0, tokens=2)
    figures = Measured((times("short", first=1.0), times("long", first=3.0)), use).figures(Objectives(), 8)
    assert figures["short_ttft_p99_ms"] == pytest.approx(1000)
    assert figures["long_ttft_p99_ms"] == pytest.approx(3000)
    assert figures["ttft_p50_ms"] == pytest.approx(2000)
