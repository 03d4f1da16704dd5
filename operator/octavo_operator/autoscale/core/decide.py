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

    demand = Σ load(pod) + (growth of the queues + what is refused) ÷ requests that a full replica ends

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

SETTLE_SECONDS = 15.0
"""How long demand is taken to be what it was when a pod has joined: it fills up at once, and the queues of the others
shrink a little later, so that for a moment the sum is too much. After that it is measured for as long at least."""

BLOCK_SECONDS = 15.0
"""Over which time demand is averaged. What is over sooner is a queue of two seconds at most, which nobody minds."""

TREND_SECONDS = 180.0
"""How far back the trend looks."""

RATE_SECONDS = 60.0
"""Over how many full replicas' seconds the requests that one ends are averaged: the answers' lengths may change."""

RATE_LEAST = 20.0
"""From how many on the rate is known: those that have just begun to answer end nothing yet."""

FULL = 0.95
"""The load that replicas are planned for. Queueing makes the rest useless where requests come at random."""

MARGIN = 2.0
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
        ended: requests that ended of late.
        worked: replicas' worth of seconds that were spent on them.
        startup: seconds from a pod's creation until it serves.
        settled_at: from when on demand is measured, after a pod has joined.
        demand: at the decision before.
        block: (begin, sum, count) of the demands of the present block.
        points: mean demand of the blocks before.
        wanted: (time, replicas) of the last minutes, those left out that a later one exceeds.
    """

    started: float
    decided: float
    startup: float
    settled_at: float
    seen: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    curve: ServiceCurve = field(default_factory=ServiceCurve)
    ended: float = 0.0
    worked: float = 0.0
    demand: float = 0.0
    block: tuple[float, float, int] = (0.0, 0.0, 0)
    points: tuple[Point, ...] = ()
    wanted: tuple[tuple[float, int], ...] = ()

    @property
    def rate(self) -> float:
        """Requests a second that a full replica ends; 0 while it is not known."""
        return self.ended / self.worked if self.worked >= RATE_LEAST else 0.0


def start(settings: Settings, now: float) -> State:
    """The state of who begins to decide."""
    return State(started=now, decided=now, startup=settings.startup, settled_at=now)


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
    known = state.seen
    state = _remember(settings, state, serving, now)
    usable = [state.seen[pod.uid] for pod in serving if pod.uid in state.seen]
    silent = len(serving) - len(usable)
    bounded = min(max(desired, settings.min_replicas), settings.max_replicas)
    if not usable:
        verdict = _unless(Verdict.NO_METRICS, bounded, desired)
        held = Decision(bounded, verdict, 0.0, 0.0, 0.0, 0.0, 0, silent, bounded, bounded, 0.0)
        return held, replace(state, wanted=_highest(state.wanted, now, bounded, settings.stabilization))

    growth = sum(_growth(samples) for samples in usable)
    loads = [_load(settings, state.curve, samples[-1]) for samples in usable]
    demand = max(0.0, sum(loads) + (growth / state.rate if state.rate > 0 else 0.0))
    if state.points and not state.seen.keys() <= known.keys() and now >= state.settled_at + SETTLE_SECONDS:
        state = replace(state, settled_at=now + SETTLE_SECONDS)
    if now < state.settled_at:
        demand = state.demand
    before, state = state.demand, _average(state, demand, now)
    trend = fit((*state.points, _point(state.block, now)), now)
    backlog = max(0.0, sum(samples[-1].waiting for samples in usable) - settings.target_queue * len(serving))
    if backlog > 0:
        # A queue is no noise: what comes in now counts before a block is full, and needs no margin.
        trend = replace(trend, level=max(trend.level, min(before, demand)), spread=0.0)
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
        busiest=max(loads),
    )
    return decision, replace(state, wanted=wanted)


def _unless(verdict: Verdict, result: int, desired: int) -> Verdict:
    """The verdict, unless the bounds alone have changed the number."""
    return verdict if result == desired else Verdict.OUT_OF_BOUNDS


def _remember(settings: Settings, state: State, serving: Iterable[Pod], now: float) -> State:
    """Takes in the samples, and what they say of the curve and of the rate."""
    elapsed = now - state.decided
    curve = state.curve.age(elapsed)
    seen: dict[str, tuple[Sample, ...]] = {}
    ended = worked = 0.0
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
        if any(getattr(sample, name) < getattr(last, name) for name in ("finished", "generated", "refused")):
            seen[pod.uid] = (sample,)  # its container restarted: counters begin anew
            continue
        seen[pod.uid] = (*(one for one in before if sample.time - one.time <= GROWTH_SECONDS), sample)
        span = sample.time - last.time
        running = (sample.running + last.running) / 2
        generated = sample.generated - last.generated
        if running >= 1 and generated > 0:
            curve = curve.see(min(1.0, running / settings.slots), running * span / generated)
        ended += sample.finished - last.finished
        worked += span * (_load(settings, curve, sample) + _load(settings, curve, last)) / 2
    kept = math.exp(-worked / RATE_SECONDS)
    startup = median(startups) if startups else state.startup
    return replace(
        state,
        decided=now,
        seen=seen,
        curve=curve,
        startup=startup,
        ended=kept * state.ended + ended,
        worked=kept * state.worked + worked,
    )


def _average(state: State, demand: float, now: float) -> State:
    """Takes a demand into the present block; one that is full becomes a point."""
    begin, total, count = state.block
    points = state.points
    if count and now - begin >= BLOCK_SECONDS:
        points = (
            *(point for point in points if now - point[0] < TREND_SECONDS),
            _point(state.block, begin + BLOCK_SECONDS),
        )
        count = 0
    block = (begin, total + demand, count + 1) if count else (now, demand, 1)
    return replace(state, demand=demand, block=block, points=points)


def _point(block: tuple[float, float, int], end: float) -> Point:
    """The mean of a block, at its middle."""
    begin, total, count = block
    return (begin + end) / 2, total / count


def _load(settings: Settings, curve: ServiceCurve, sample: Sample) -> float:
    """Load of one pod: by its slots, or by its cache if that is nearer to its target."""
    return max(curve.load(sample.running / settings.slots), FULL * sample.cache_usage / settings.target_cache)


def _growth(samples: Sequence[Sample]) -> float:
    """Requests a second by which a queue grows, or would if it were not full; negative when it shrinks."""
    first, last = samples[0], samples[-1]
    span = last.time - first.time
    return (last.waiting - first.waiting + last.refused - first.refused) / span if span > 0 else 0.0


def _expected(trend: Trend, state: State) -> float:
    """Demand when a pod that is created now serves. What has climbed for a minute is followed for a minute at most."""
    if trend.slope <= 0:
        return trend.level
    return trend.level + trend.slope * min(state.startup, trend.span)


def _needed(settings: Settings, trend: Trend, backlog: float, state: State, *, silent: int = 0) -> int:
    """Replicas that demand asks for, if `silent` pods are as loaded as a pod can be."""
    hidden = silent * max(1.0, FULL / settings.target_cache)
    demand = _expected(trend, state) + MARGIN * trend.spread + hidden
    extra = 0.0
    if backlog > 0 or silent:
        extra = max(1.0, demand / 10)
        if state.rate > 0 and not silent:  # without a rate a backlog may be anything
            extra = min(extra, backlog / (state.rate * DRAIN_SECONDS))
    # What is kept free of a full load is there to work a backlog off, too.
    return _replicas(max(demand / FULL, demand + extra))


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
