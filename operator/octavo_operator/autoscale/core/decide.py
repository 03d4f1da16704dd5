"""How many replicas there shall be.

What every decision keeps to (tests/operator_tests/autoscale holds it to that):

- the result lies within the bounds;
- without any usable sample the result is the present number: no data is never no load;
- a ready pod that does not answer counts as full, with a backlog, when replicas could go and as empty when they could
  come, so that a lost sample never removes a replica and never adds one;
- pods that start count as capacity from the moment they are asked for: waiting for them adds no more;
- replicas go only when the highest need of the last `stabilization` seconds was lower, seen by this very state: who has
  just begun to decide does not know the past, and keeps what there is;
- it depends on the arguments alone: the same inputs give the same decisions, bit for bit.

Demand is counted in replicas' worth of work. A pod's load follows from what it runs (curve.py) or from its cache,
whichever is more. Load alone ends at 1 however much is asked for; the rest is seen in the queue, which grows by what
comes in and is not served. So

    demand = Σ load(pod) + growth of the queues ÷ requests that a full replica ends

which is right below saturation, beyond it, and while a backlog is worked off (its queue shrinks: growth is negative).
Where demand climbs it is followed to the time when a pod that is created now will serve (trend.py). A margin covers how
much demand varies, and a backlog gets at most one replica, or a tenth, on top.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from octavo_operator.autoscale.core.curve import ServiceCurve
from octavo_operator.autoscale.core.trend import Point, Trend, fit
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings, Verdict

__all__ = ["State", "decide", "start"]

USABLE_SECONDS = 30.0
"""How old a sample may be: some scrapes are lost, and the last known load is better than none."""

GROWTH_SECONDS = 10.0
"""Over which time a queue's growth is measured."""

TREND_SECONDS = 180.0
"""How far back the trend looks."""

RATE_SECONDS = 60.0
"""Over which time the requests that a full replica ends are averaged: the answers' lengths may change."""

FULL = 0.95
"""The load that replicas are planned for. Queueing makes the rest useless where requests come at random."""

MARGIN = 1.0
"""Standard deviations of demand that are planned for."""

DRAIN_SECONDS = 120.0
"""In which time a backlog shall be gone."""

STEP = (4, 2.0)
"""At most so many more, or so many times as many, whichever is more, by one decision: a wrong sample costs no fleet."""


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered between decisions.

    Attributes:
        started: when deciding began.
        decided: when was decided last.
        seen: each pod's samples of the last seconds, by uid.
        curve: how load follows from running sequences.
        rate: requests a second that a full replica ends; 0: not known yet.
        startup: seconds from a pod's creation until it serves.
        points: demand over time.
        wanted: (time, replicas) of the last minutes, those left out that a later one exceeds.
    """

    started: float
    decided: float
    startup: float
    seen: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    curve: ServiceCurve = field(default_factory=ServiceCurve)
    rate: float = 0.0
    points: tuple[Point, ...] = ()
    wanted: tuple[tuple[float, int], ...] = ()


def start(settings: Settings, now: float) -> State:
    """The state of who begins to decide."""
    return State(started=now, decided=now, startup=settings.startup)


def decide(settings: Settings, state: State, pods: Sequence[Pod], desired: int, now: float) -> tuple[Decision, State]:
    """Decides once.

    Args:
        settings: what the user wants.
        state: of the decision before, or `start`.
        pods: those that exist.
        desired: the present number of replicas, whoever set it.
        now: the time, not before the state's.

    Returns:
        The decision, and the state for the next one.
    """
    serving = [pod for pod in pods if pod.ready_at is not None and not pod.leaving]
    state = _remember(settings, state, serving, now)
    usable = [state.seen[pod.uid] for pod in serving if pod.uid in state.seen]
    silent = len(serving) - len(usable)
    bounded = min(max(desired, settings.min_replicas), settings.max_replicas)
    if not usable:
        held = Decision(
            bounded, _unless(Verdict.NO_METRICS, bounded, desired), 0.0, 0.0, 0.0, 0.0, 0, silent, bounded, bounded
        )
        return held, replace(state, wanted=_highest(state.wanted, now, bounded, settings.stabilization))

    growth = sum(_growth(samples) for samples in usable)
    loads = sum(_load(settings, state.curve, samples[-1]) for samples in usable)
    demand = max(0.0, loads + (growth / state.rate if state.rate > 0 else 0.0))
    points = (*(point for point in state.points if now - point[0] < TREND_SECONDS), (now, demand))
    trend = fit(points, now)
    backlog = max(0.0, sum(samples[-1].waiting for samples in usable) - settings.target_queue * len(serving))
    if backlog > 0:
        # A queue is no noise: what comes in now need not show twice before it counts.
        trend = replace(trend, level=max(trend.level, demand))
    needed = _needed(settings, trend, backlog, state)
    wanted = _highest(
        state.wanted, now, _needed(settings, trend, backlog, state, silent=silent), settings.stabilization
    )
    kept = wanted[0][1]

    result, verdict = bounded, Verdict.ENOUGH
    if needed > bounded:
        more, times = STEP
        result = min(needed, max(bounded + more, math.floor(bounded * times)), settings.max_replicas)
        level = _replicas((trend.level + MARGIN * trend.spread) / FULL)
        verdict = Verdict.DEMAND if level >= needed else Verdict.BACKLOG if backlog > 0 else Verdict.TREND
    elif kept < bounded and now - state.started >= settings.stabilization:
        result = max(kept, settings.min_replicas)
    elif wanted[-1][1] < bounded:
        verdict = Verdict.STABILIZING
    if silent and result == bounded and verdict is not Verdict.STABILIZING:
        verdict = Verdict.SOME_METRICS
    decision = Decision(
        result,
        _unless(verdict, result, desired) if result == bounded else verdict,
        demand=trend.level,
        expected=_expected(trend, state),
        spread=trend.spread,
        backlog=backlog,
        answered=len(usable),
        silent=silent,
        needed=needed,
        kept=kept,
    )
    return decision, replace(state, points=points, wanted=wanted)


def _unless(verdict: Verdict, result: int, desired: int) -> Verdict:
    """The verdict, unless the bounds alone have changed the number."""
    return verdict if result == desired else Verdict.OUT_OF_BOUNDS


def _remember(settings: Settings, state: State, serving: Iterable[Pod], now: float) -> State:
    """Takes in the samples, and what they say of the curve and of the rate."""
    elapsed = now - state.decided
    curve = state.curve.age(elapsed)
    seen: dict[str, tuple[Sample, ...]] = {}
    ended = loaded = 0.0
    startups = []
    for pod in serving:
        if pod.ready_at is not None:
            startups.append(pod.ready_at - pod.created)
        before = state.seen.get(pod.uid, ())
        sample = pod.sample
        if sample is None or now - sample.time > USABLE_SECONDS:
            continue
        if not before or sample.time <= before[-1].time:
            seen[pod.uid] = before or (sample,)
            continue
        last = before[-1]
        if sample.finished < last.finished or sample.generated < last.generated:
            seen[pod.uid] = (sample,)  # its container restarted: counters begin anew
            continue
        seen[pod.uid] = (*(one for one in before if sample.time - one.time <= GROWTH_SECONDS), sample)
        span = sample.time - last.time
        running = (sample.running + last.running) / 2
        generated = sample.generated - last.generated
        if running >= 1 and generated > 0:
            curve = curve.see(min(1.0, running / settings.slots), running * span / generated)
        ended += sample.finished - last.finished
        loaded += span * (_load(settings, curve, sample) + _load(settings, curve, last)) / 2
    rate = state.rate
    if loaded > 0 and ended > 0:
        fresh = ended / loaded
        new = 1.0 if rate == 0 else 1 - math.exp(-loaded / RATE_SECONDS)
        rate += new * (fresh - rate)
    startup = median(startups) if startups else state.startup
    return replace(state, decided=now, seen=seen, curve=curve, rate=rate, startup=startup)


def _load(settings: Settings, curve: ServiceCurve, sample: Sample) -> float:
    """Load of one pod: by its slots, or by its cache if that is nearer to its target."""
    return max(curve.load(sample.running / settings.slots), FULL * sample.cache_usage / settings.target_cache)


def _growth(samples: Sequence[Sample]) -> float:
    """Requests a second by which a queue grows; negative when it shrinks."""
    span = samples[-1].time - samples[0].time
    return (samples[-1].waiting - samples[0].waiting) / span if span > 0 else 0.0


def _expected(trend: Trend, state: State) -> float:
    """Demand when a pod that is created now serves. What has climbed for a minute is followed for a minute at most."""
    if trend.slope <= 0:
        return trend.level
    return trend.level + trend.slope * min(state.startup, trend.span)


def _needed(settings: Settings, trend: Trend, backlog: float, state: State, *, silent: int = 0) -> int:
    """Replicas that demand asks for, if `silent` pods are as loaded as a pod can be."""
    hidden = silent * max(1.0, FULL / settings.target_cache)
    demand = (_expected(trend, state) + MARGIN * trend.spread + hidden) / FULL
    if backlog > 0 or silent:
        most = max(1.0, demand / 10)
        # Without a rate a backlog may be anything: it will be known when the first requests end.
        is_known = state.rate > 0 and not silent
        demand += min(most, backlog / (state.rate * DRAIN_SECONDS)) if is_known else most
    return _replicas(demand)


def _replicas(demand: float) -> int:
    return math.ceil(demand - 1e-9)


def _highest(
    wanted: Sequence[tuple[float, int]], now: float, replicas: int, seconds: float
) -> tuple[tuple[float, int], ...]:
    """The window with a new entry; the first is its highest. An entry that a later one reaches says nothing more."""
    return (
        *(one for one in wanted if now - one[0] <= seconds and one[1] > replicas),
        (now, replicas),
    )
