"""What the comparison of autoscalers reports: the figures that judge ours, and the pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.autoscaling.__main__ import elsewhere, figures, mean, not_kept, table, verdicts
from bench.autoscaling.measures import Measures
from bench.autoscaling.plot import draw
from bench.autoscaling.runs import Case, Outcome, Store, carry_out, digest

USUAL = Measures(violations=0.02, gpu_hours=5.0, overshoot=1, flaps=2, decision_seconds=5.0, lost_scale_downs=0)


def compared(ours: Measures, **others: Measures) -> dict[tuple[str, str, float], Measures]:
    return {("step", name, 180.0): found for name, found in {"ours": ours, **others}.items()}


def test_figures_leave_out_what_did_not_run() -> None:
    assert figures({("step", "wva", 180.0): USUAL}) == {}
    assert figures({("step", "ours", 180.0): USUAL}) == {}


KEPT = replace(USUAL, violations=0.01)


def test_figures_compare_with_the_cheapest_that_is_no_later() -> None:
    found = figures(
        compared(
            USUAL,
            cheap_and_late=replace(USUAL, violations=0.3, gpu_hours=2.0),
            as_good=replace(USUAL, gpu_hours=8.0),
            dear=replace(USUAL, violations=0.0, gpu_hours=10.0),
        )
    )
    assert found["worst_gpu_hours_vs_no_later"] == pytest.approx(5 / 8)


def test_figures_compare_with_the_least_late_where_all_are_later() -> None:
    found = figures(compared(USUAL, a=replace(USUAL, violations=0.1, gpu_hours=4.0), b=replace(USUAL, violations=0.3)))
    assert found["mean_gpu_hours_vs_no_later"] == pytest.approx(5 / 4)


def test_figures_count_where_others_keep_to_one_percent_and_ours_does_not() -> None:
    assert figures(compared(USUAL, other=USUAL)).get("not_kept") is None
    assert figures(compared(USUAL, other=KEPT))["not_kept"] == 1
    assert figures(compared(KEPT, other=KEPT))["not_kept"] == 0


@pytest.mark.parametrize(("late", "within_reach"), [(0.01, 1), (0.011, 0)])
def test_figures_tell_what_of_it_was_within_reach(late: float, within_reach: int) -> None:
    found = figures(compared(USUAL, other=KEPT, seen=replace(USUAL, violations=late, gpu_hours=0.1)))
    assert (found["not_kept"], found["not_kept_within_reach"], found["not_kept_by_followers"]) == (1, within_reach, 1)
    without = figures(compared(USUAL, other=KEPT))
    assert "not_kept_within_reach" not in without
    assert {name: figure for name, figure in found.items() if name != "not_kept_within_reach"} == without, "no rival"


def test_not_kept_has_a_row_for_each_place_that_another_policy_keeps() -> None:
    seen = replace(USUAL, violations=0.015)
    dear, cheap = replace(KEPT, gpu_hours=10.0), replace(KEPT, gpu_hours=6.0, violations=0.003)
    means = compared(USUAL, seen=seen, dear=dear, cheap=cheap) | {
        ("ramp", "ours", 30.0): KEPT,
        ("ramp", "cheap", 30.0): KEPT,
        ("diurnal", "ours", 30.0): USUAL,
        ("diurnal", "cheap", 30.0): KEPT,
    }
    rows = [line.split() for line in not_kept(means).splitlines()[1:-1]]
    assert [row[:6] for row in rows] == [
        ["diurnal", "30", "2.00", "-", "1.00", "by"],
        ["step", "180", "2.00", "1.50", "0.30", "by"],
    ]
    assert rows[1][6:12] == ["cheap,", "6.00", "GPU-h;", "ours", "5.00;", "the"]
    assert not not_kept(compared(KEPT, cheap=cheap))


ALWAYS_MOST = replace(KEPT, gpu_hours=9.0)


def places(**others: tuple[Measures, Measures]) -> dict[tuple[str, str, float], Measures]:
    """What policies did on two traces, on which ours is late."""
    both = {"ours": (USUAL, USUAL), **others}
    return {
        (trace, name, 30.0): found
        for name, pair in both.items()
        for trace, found in zip(("step", "ramp"), pair, strict=True)
    }


@pytest.mark.parametrize(("late", "whose"), [(0.01, "OURS"), (0.011, "nobody's who sees the load first, by seen")])
def test_not_kept_is_no_miss_of_ours_where_only_who_was_there_before_the_load_keeps_it(late: float, whose: str) -> None:
    means = places(
        most=(ALWAYS_MOST, ALWAYS_MOST),
        at_times=(USUAL, ALWAYS_MOST),
        fallen=(replace(USUAL, gpu_hours=9.9), replace(USUAL, gpu_hours=8.9)),
        seen=(replace(USUAL, violations=late), USUAL),
    )
    ramp, step, names = not_kept(means).splitlines()[1:]
    assert ramp.endswith("the miss is OURS"), "at_times follows the load, and keeps them here"
    assert step.endswith(f"the miss is {whose}")
    assert names.endswith(": most")
    assert figures(means)["not_kept_by_followers"] == 1


def test_figures_elsewhere_compare_with_those_that_follow_the_load_too() -> None:
    least = replace(USUAL, violations=1.0, gpu_hours=1.0)
    some = replace(USUAL, violations=0.04, gpu_hours=9.0)
    means = places(
        **{"constant-min": (least, least)},
        most=(replace(ALWAYS_MOST, violations=0.02), replace(ALWAYS_MOST, violations=0.02)),
        follows=(some, replace(some, gpu_hours=3.0)),
    )
    found = figures(means)
    assert found["worst_late_per_gpu_hour_added_ratio"] == pytest.approx((0.02 / 4) / (0.02 / 8))
    assert found["worst_late_per_gpu_hour_added_ratio_of_followers"] == pytest.approx((0.02 / 4) / (0.04 / 8))


def test_elsewhere_has_a_row_for_each_place_that_no_follower_keeps_the_worst_first() -> None:
    least = replace(USUAL, violations=0.9, gpu_hours=1.0)
    means = places(
        **{"constant-min": (least, least)},
        most=(ALWAYS_MOST, ALWAYS_MOST),
        follows=(replace(USUAL, violations=0.04), replace(USUAL, gpu_hours=7.0)),
    )
    rows = [line.split() for line in elsewhere(means).splitlines()[1:]]
    assert rows == [
        ["ramp", "30", "2.00", "5.00", "1.50", "7.00", "1.33", "1.50", "follows", "2.00", "7.00"],
        ["step", "30", "2.00", "5.00", "0.50", "3.00", "4.00", "1.02", "follows", "4.00", "5.00"],
    ]
    assert not elsewhere(compared(KEPT, other=KEPT))


def test_verdicts_tell_what_is_met() -> None:
    text = verdicts({"not_kept": 3.0, "step_overshoot": 1.0})
    words = {line.split()[0]: line.rsplit(": ", 1)[1] for line in text.splitlines()}
    assert (words["not_kept"], words["step_overshoot"], words["decision_s"]) == ("NOT met", "met", "not measured")


def test_figures_compare_with_the_cheapest_that_keeps_to_one_percent() -> None:
    found = figures(
        compared(
            KEPT,
            late=replace(USUAL, gpu_hours=1.0),
            cheap=replace(KEPT, gpu_hours=4.0),
            punctual=replace(KEPT, violations=0.0, gpu_hours=10.0),
        )
    )
    assert found["worst_gpu_hours_ratio"] == pytest.approx(5 / 4)
    assert "worst_gpu_hours_ratio" not in figures(compared(USUAL, other=KEPT))


def test_figures_compare_over_all_with_the_one_policy_that_always_keeps_it() -> None:
    means = compared(KEPT, seldom=replace(KEPT, gpu_hours=1.0), always=replace(KEPT, gpu_hours=10.0)) | {
        ("ramp", "ours", 180.0): replace(KEPT, gpu_hours=4.0),
        ("ramp", "seldom", 180.0): USUAL,
        ("ramp", "always", 180.0): replace(KEPT, gpu_hours=5.0),
        ("azure-conv", "ours", 180.0): replace(USUAL, gpu_hours=4.0),  # nobody keeps it: it counts all the same
        ("azure-conv", "seldom", 180.0): USUAL,
        ("azure-conv", "always", 180.0): replace(USUAL, gpu_hours=16.0),
    }
    assert figures(means)["mean_gpu_hours_vs_best_other"] == pytest.approx((5 / 10 * 4 / 5 * 4 / 16) ** (1 / 3))


def test_figures_elsewhere_count_late_requests_for_each_hour_added() -> None:
    least = {"constant-min": replace(USUAL, violations=1.0, gpu_hours=1.0)}
    others = {"a": replace(USUAL, gpu_hours=3.0), "b": replace(USUAL, violations=0.03, gpu_hours=11.0)}
    assert figures(compared(USUAL, **least, **others))["worst_late_per_gpu_hour_added_ratio"] == pytest.approx(
        (0.02 / 4) / (0.03 / 10)
    )
    kept = figures(compared(USUAL, **least, **others, c=KEPT))
    assert "worst_late_per_gpu_hour_added_ratio" not in kept


def test_figures_tell_the_worst_of_ours() -> None:
    means = compared(USUAL, other=USUAL) | {
        ("step", "ours", 30.0): replace(USUAL, overshoot=4),  # only the long start-up counts
        ("step", "other", 30.0): USUAL,
        ("loss-10", "ours", 180.0): replace(USUAL, overshoot=7, decision_seconds=9.0, lost_scale_downs=2),
        ("loss-10", "other", 180.0): replace(USUAL, gpu_hours=10.0),
    }
    assert figures(means) == pytest.approx(
        {
            "worst_gpu_hours_vs_no_later": 1.0,
            "mean_gpu_hours_vs_no_later": 0.5 ** (1 / 3),
            "late_share": 0.02,
            "late_share_no_later": 0.02,
            "step_overshoot": 1,
            "decision_s": 9.0,
            "scale_downs_from_missing": 2,
        }
    )


def test_figures_leave_out_what_no_trace_shows() -> None:
    calm = replace(USUAL, decision_seconds=-1.0)
    found = figures({("ramp", "ours", 180.0): calm, ("ramp", "other", 180.0): calm})
    assert not {"step_overshoot", "decision_s"} & found.keys()


def test_mean_has_the_worst_decision_and_all_lost_scale_downs() -> None:
    found = mean([USUAL, replace(USUAL, gpu_hours=7.0, decision_seconds=20.0, lost_scale_downs=1)])
    assert (found.gpu_hours, found.decision_seconds, found.lost_scale_downs) == (6.0, 20.0, 1)


def test_table_has_a_row_for_each_policy_that_ran() -> None:
    text = table("step", {("step", "wva", 30.0): replace(USUAL, decision_seconds=-1.0)}, [30.0])
    assert text.splitlines()[-1].split() == ["wva", "2.00", "5.00", "1.0", "2.0", "-", "0"]


def test_carry_out_runs_a_policy_on_a_trace() -> None:
    outcome = carry_out(Case("step", "constant-min", 1, 30.0))
    assert outcome.steps == ((0.0, 1),)
    assert outcome.measures.gpu_hours == 1.0
    assert (len(outcome.worth), outcome.worth[0], outcome.worth[20]) == (60, 1.0, 6.0)


def test_carry_out_tells_the_bound_the_load_that_has_passed() -> None:
    outcome = carry_out(Case("step", "seen", 1, 30.0))
    assert outcome.steps == ((0.0, 1), (5.0, 2), (605.0, 10))


def test_store_finds_what_it_has_kept(tmp_path: Path) -> None:
    first, second, third = (Case("step", policy, 6, 30.0) for policy in ("ours", "seen", "wva"))
    outcome = Outcome(replace(USUAL, decision_seconds=math.inf), ((0.0, 1), (5.0, 2)), (0.1, 1.0))
    store = Store(tmp_path / "runs")
    assert store.find([first]) == {}
    store.keep(first, outcome)
    store.keep(second, replace(outcome, worth=(1 / 3,)))
    assert Store(tmp_path / "runs").find([first, third]) == {first: outcome}
    assert store.find([second])[second].worth == (1 / 3,)


def test_digest_of_ours_hangs_on_its_core_and_that_of_the_others_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [digest.__wrapped__(policy) for policy in ("ours", "wva", "seen")]
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == "decide.py"))
    after = [digest.__wrapped__(policy) for policy in ("ours", "wva", "seen")]
    assert (before[0] == after[0], before[1:] == after[1:]) == (False, True)
    assert before[0] != before[1] == before[2]


def test_draw_makes_a_row_for_each_policy() -> None:
    picture = draw("a < b", [1.0, 2.0], {"one": [(0.0, 1), (600.0, 3)], "two": [(0.0, 2)]}, 10)
    root = ET.fromstring(picture)  # noqa: S314 - our own
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["a < b", "one"]
    assert "two" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 4
