"""The simulated cluster loses no request, counts what pods cost, and is the same each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.autoscaling.baselines import Constant
from bench.autoscaling.measures import measure
from bench.autoscaling.policies import POLICIES
from bench.autoscaling.policy import PodView, Policy
from bench.autoscaling.replica import Machine
from bench.autoscaling.simulation import Run, Setup, simulate
from bench.autoscaling.traces import HOUR, TRACES, Loss, Recorded, Trace, chat

QUIET = Trace("quiet", np.full(3600, 0.05), chat)
"""Some five thousand requests in the hour."""


class Script:
    """Asks for counts at given times, and writes down what it is shown."""

    interval = 5.0

    def __init__(self, *counts: tuple[float, int]) -> None:
        self.counts = counts
        self.seen: list[tuple[float, Sequence[PodView]]] = []

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        self.seen.append((now, pods))
        return max(((time, count) for time, count in self.counts if time <= now), default=(0.0, desired))[1]


def scripted(*counts: tuple[float, int], trace: Trace = QUIET, **setup: object) -> tuple[Run, Script]:
    """A run with a script, and the script itself (the first of the two: the other is the shadow)."""
    made: list[Script] = []

    def make() -> Policy:
        made.append(Script(*counts))
        return made[-1]

    run = simulate(trace, 1, make, Setup(**setup))  # type: ignore[arg-type]  # each has its own type
    return run, made[0]


def counts_are_whole(run: Run) -> None:
    ended = sum(end < math.inf for end in run.demand.ended)
    assert ended + run.refused + run.outstanding == len(run.demand.arrivals)
    for arrival, first, end in zip(run.demand.arrivals, run.demand.first_token, run.demand.ended, strict=True):
        assert arrival < first <= end


@pytest.mark.parametrize("routing", ["least-outstanding", "round-robin"])
def test_simulate_loses_no_request_while_pods_come_and_go(routing: str) -> None:
    run, _ = scripted((0, 3), (600, 1), (900, 5), (1500, 2), (2500, 4), start_up=30.0, routing=routing)
    assert run.refused == 0
    counts_are_whole(run)
    assert len(run.lives) == 3 + 4 + 2


def test_simulate_loses_no_request_when_queues_are_full() -> None:
    busy = replace(QUIET, shape=np.where(np.arange(3600) < 60, 40.0, 0.0))
    run, _ = scripted((0, 2), (30, 1), trace=busy, start_up=0.0)
    assert run.refused > 0
    counts_are_whole(run)


def test_simulate_is_the_same_each_time() -> None:
    trace = replace(QUIET, noise=0.2, loss=Loss(0.3))
    first, second = (simulate(trace, 4, POLICIES["hpa-both"], Setup()) for _ in range(2))
    assert first.demand.ended == second.demand.ended
    assert first.decisions == second.decisions
    assert measure(first) == measure(second)
    other = simulate(trace, 5, POLICIES["hpa-both"], Setup())
    assert first.demand.arrivals != other.demand.arrivals


def test_simulate_shows_a_pod_as_it_starts_serves_and_drains() -> None:
    _, script = scripted((100, 2), (400, 1), start_up=180.0)
    states = {now: [(pod.uid, pod.ready_at, pod.draining) for pod in pods] for now, pods in script.seen}
    assert states[100] == [("pod-0", 0.0, False)]
    assert states[105] == [("pod-0", 0.0, False), ("pod-1", None, False)]
    assert states[280] == [("pod-0", 0.0, False), ("pod-1", 280.0, False)]
    assert len(states[500]) == 1


def test_simulate_drains_the_pod_with_the_fewest_streams_and_lets_them_end() -> None:
    run, script = scripted((0, 2), (1000, 1), start_up=0.0, machine=Machine(base=0.05))
    before = {pod.uid: pod.sample.running for now, pods in script.seen if now == 1000 for pod in pods if pod.sample}
    (draining,) = (pod for now, pods in script.seen if now == 1005 for pod in pods if pod.draining)
    assert before[draining.uid] == min(before.values())
    assert min(gone for _, _, gone in run.lives) > 1005, "its streams take their time"
    counts_are_whole(run)


def test_simulate_removes_a_pod_that_starts_at_once() -> None:
    run, _ = scripted((100, 2), (150, 1), start_up=180.0)
    assert (100.0, math.inf, 150.0) in run.lives


def test_simulate_keeps_the_bounds() -> None:
    run, _ = scripted((0, 99), (1000, -3))
    assert [decision.after for decision in run.decisions] == [10, 1]


def test_simulate_loses_scrapes_as_the_trace_says() -> None:
    _, script = scripted(trace=replace(QUIET, loss=Loss(1.0, 1000.0, 1300.0)))
    ages = {now: now - pods[0].sample.time for now, pods in script.seen if pods[0].sample is not None}
    assert ages[995] == 0
    assert ages[1295] == 300
    assert ages[1300] == 0
    _, script = scripted(trace=replace(QUIET, loss=Loss(0.25)))
    fresh = [now == pods[0].sample.time for now, pods in script.seen if pods[0].sample is not None]
    assert sum(fresh) / len(fresh) == pytest.approx(0.75, abs=0.06)


def test_measure_counts_hours_of_pods_that_start_and_drain() -> None:
    run, _ = scripted((0, 2), (1800, 1), start_up=180.0)
    assert measure(run).gpu_hours == pytest.approx(1.5, abs=0.02)


def test_measure_counts_what_waits_and_what_was_refused_as_late() -> None:
    flood = replace(QUIET, shape=np.where(np.arange(3600) >= 3580, 50.0, 0.0))
    run = simulate(flood, 1, lambda: Constant(1), Setup())
    late = measure(run).violations
    served = sum(
        first - arrival <= 2 for arrival, first in zip(run.demand.arrivals, run.demand.first_token, strict=True)
    )
    just_came = sum(arrival >= HOUR - 2 for arrival in run.demand.arrivals)
    assert late * len(run.demand.arrivals) == pytest.approx(len(run.demand.arrivals) - served - just_came, abs=200)


def test_measure_tells_overshoot_and_flaps() -> None:
    step = replace(QUIET, shape=np.where(np.arange(3600) >= 1000, 1.5, 0.1))
    run, _ = scripted((1000, 5), (1100, 3), (1200, 4), (1300, 2), trace=step)
    found = measure(run)
    assert (found.overshoot, found.flaps) == (3, 3)


@pytest.mark.parametrize(("decided", "seconds"), [(1015.0, 0), (1200.0, 185)])
def test_measure_tells_seconds_from_saturation_to_decision(decided: float, seconds: float) -> None:
    step = replace(QUIET, shape=np.where(np.arange(3600) >= 1000, 4.0, 0.05))
    run, _ = scripted((decided, 4), trace=step)
    saturated = next(time for time, waiting, ready in run.waiting if waiting >= ready and time >= 1000)
    assert saturated in {1005.0, 1010.0, 1015.0, 1020.0}
    assert measure(run).decision_seconds == max(0.0, decided - saturated)
    assert measure(run).decision_seconds == pytest.approx(seconds, abs=10)


class TakesMissingForIdle:
    """Wants two, and one when a pod does not answer."""

    interval = 15.0

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:  # noqa: ARG002 - its own mind
        return 2 if all(pod.sample is None or pod.sample.time == now for pod in pods) else 1


def test_measure_tells_reductions_that_missing_data_caused() -> None:
    trace = replace(QUIET, shape=np.full(3600, 1.5), loss=Loss(1.0, 1000.0, 1300.0))

    def lost(make: Callable[[], Policy], trace: Trace) -> float:
        return measure(simulate(trace, 1, make, Setup())).lost_scale_downs

    assert lost(TakesMissingForIdle, trace) == 1
    assert lost(TakesMissingForIdle, replace(trace, loss=None)) == 0
    assert lost(TakesMissingForIdle, replace(trace, shape=np.full(3600, 0.5))) == 0, "one replica is enough"
    assert lost(lambda: Script((0, 2), (1100, 1)), trace) == 0, "it would have done so anyway"


DRAWN = [trace for trace in TRACES.values() if isinstance(trace, Trace)]


@pytest.mark.parametrize("trace", DRAWN, ids=lambda trace: trace.name)
def test_trace_brings_the_load_that_it_tells(trace: Trace) -> None:
    small = replace(trace, shape=trace.shape / 20, noise=0.0, late_lengths=None)
    demand, worth = small.demand(2)
    quarters = [sum(worth[start : start + 900]) for start in range(0, 3600, 900)]
    arrived = np.histogram(demand.arrivals, bins=4, range=(0, HOUR))[0]
    assert arrived / arrived.sum() == pytest.approx(np.array(quarters) / sum(quarters), abs=0.03)
    assert demand.arrivals == sorted(demand.arrivals)
    assert min(demand.prompts) >= 1
    assert min(demand.outputs) >= 1


def test_trace_long_short_has_longer_answers_later() -> None:
    (trace,) = (trace for trace in DRAWN if trace.name == "long-short")
    demand, worth = replace(trace, shape=np.full(3600, 0.2)).demand(1)
    early = [output for arrival, output in zip(demand.arrivals, demand.outputs, strict=True) if arrival < 1200]
    late = [output for arrival, output in zip(demand.arrivals, demand.outputs, strict=True) if arrival >= 1200]
    assert np.mean(late) > 1.9 * np.mean(early)
    assert (worth[0], worth[-1]) == pytest.approx((0.2, 0.2 * 27.2 / 10.6), rel=0.01)


def test_trace_of_azure_is_the_recorded_hour() -> None:
    trace = Recorded()
    demand, worth = trace.demand(1)
    assert len(demand.arrivals) == 12 * 19_366
    assert demand.arrivals == sorted(demand.arrivals)
    assert max(prompt + output for prompt, output in zip(demand.prompts, demand.outputs, strict=True)) <= 8192
    arrived = np.histogram(demand.arrivals, bins=12, range=(0, HOUR))[0]
    load = np.array(worth).reshape(12, 300).sum(axis=1)
    assert arrived / arrived.sum() == pytest.approx(load / load.sum(), abs=0.01)
    assert trace.initial == 3
    assert trace.demand(1)[0].arrivals != trace.demand(2)[0].arrivals
