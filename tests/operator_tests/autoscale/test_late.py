"""How many replicas stay after requests were late."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.budget import Budget, Minute
from octavo_operator.autoscale.core.decide import decide, start
from octavo_operator.autoscale.core.report import because
from octavo_operator.autoscale.core.values import Sample, Settings, Verdict
from tests.operator_tests.autoscale.test_decide import RATE, SETTINGS, Fleet, bounds, fleets, pod, share_of


def burst(after_late: float, seconds: int, *, growth: float = 3.0) -> Fleet:
    """Two pods with a load of 1; for so many seconds that of 2 and what queues grow by, in replicas; then 1 again.

    Queues are gone as soon as it is over: six pods have come, which nobody asked for.
    """
    fleet = Fleet(2, replace(SETTINGS, startup=30.0, after_late=after_late))
    fleet.steps(120, share_of(0.5))
    for number in range(1, seconds // 5 + 1):
        fleet.step(1.0, waiting=number * 5 * RATE * growth / 2)
    fleet.desired = 6
    fleet.steps(2, share_of(0.5))
    return fleet


@pytest.mark.parametrize(("after_late", "kept"), [(3600.0, 6), (1800.0, 6), (0.0, 2)])
def test_decide_burst_that_was_late_keeps_its_worth_until_the_time_is_over(after_late: float, kept: int) -> None:
    fleet = burst(after_late, 120)
    began = fleet.now
    assert fleet.steps(100, share_of(0.5)).replicas == kept
    if not after_late:
        return
    assert fleet.decision is not None
    assert (fleet.decision.verdict, fleet.decision.kept, fleet.decision.needed) == (Verdict.LATE, 6, 2)
    assert fleet.decision.late > 0.01
    assert because(fleet.decision).startswith("1.0 replicas' worth of work come in; 6 replicas stay, since ")
    while fleet.step(share_of(0.5)).replicas == 6:
        assert fleet.now - began < after_late
    assert after_late - 130 <= fleet.now - began
    assert fleet.decision.replicas == 2


def test_decide_burst_keeps_what_it_was_worth_and_no_backlog() -> None:
    fleet = burst(3600.0, 120)
    fleet.desired = 9
    decision = fleet.steps(62, share_of(0.5))
    assert (decision.replicas, decision.verdict) == (6, Verdict.LATE)  # 5 replicas' worth, with what is kept free


def test_decide_batch_that_is_posted_at_once_keeps_what_its_minute_was_worth() -> None:
    """20 replicas' worth within five seconds are two of a minute, beside the one that comes always."""
    fleet = burst(3600.0, 5, growth=20.0)
    assert fleet.decision is not None
    assert fleet.decision.late > 0.01
    assert fleet.steps(62, share_of(0.5)).replicas == 3


def test_decide_high_demand_in_time_keeps_nothing() -> None:
    fleet = Fleet(6)
    fleet.steps(120, share_of(0.9))
    assert fleet.steps(100, share_of(0.2)).replicas == 2
    assert fleet.decision is not None
    assert fleet.decision.late == 0


def test_decide_late_requests_that_are_few_keep_nothing() -> None:
    """Seven of the 700 requests of a minute were refused, of 42,000 that come in an hour."""
    fleet = Fleet(6)
    fleet.steps(120, share_of(0.9))
    fleet.step(share_of(0.9), refused=7.0)
    assert fleet.steps(1, share_of(0.2)).late > 0
    for _ in range(100):
        decision = fleet.step(share_of(0.2), refused=7.0)
    assert decision.replicas == 2


budgets = st.lists(
    st.builds(Minute, st.just(0.0), st.floats(1, 60), st.floats(0, 600), st.floats(0, 1000), st.floats(0, 100)),
    max_size=10,
).map(lambda minutes: Budget(tuple(replace(one, begin=60.0 * number) for number, one in enumerate(minutes))))


@given(budgets, bounds, fleets, st.integers(0, 30))
def test_decide_budget_that_is_spent_keeps_what_its_minutes_were_worth_and_adds_nothing(
    budget: Budget, settings: Settings, fleet: list[Sample | None], desired: int
) -> None:
    """Whatever was late: no replica comes by it, and of those that are there none goes that it was worth."""
    results = []
    for known in (budget, Budget()):
        state = replace(start(settings, -1000.0), budget=known)
        now = 700.0
        pods = [pod(index, sample and replace(sample, time=now)) for index, sample in enumerate(fleet)]
        decision, after = decide(settings, state, pods, desired, now)
        results.append(decision)
        if known is budget and decision.answered and decision.late > 0.01:
            worth = min(math.ceil(after.budget.worth() / 0.95 - 1e-9), settings.max_replicas)
            assert decision.replicas >= min(worth, max(desired, settings.min_replicas))
    spent, unspent = (one.replicas for one in results)
    assert spent >= unspent
    assert spent == unspent or spent <= desired
