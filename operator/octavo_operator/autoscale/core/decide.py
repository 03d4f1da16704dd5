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
It is averaged over some seconds, but a queue that grows by more than chance explains is believed at once: what a jump
costs is the time until the first new pod serves, and pods that come one after the other are swamped one after the other.

Where demand climbs it is followed to the time when a pod that is created now will serve (trend.py). A service that has
just begun has no past to follow: it may climb, too. A margin covers how much demand varies. What requests that come at
random explain is over within seconds. By how much more one minute differs from the next is learnt from half an hour,
and counts for more where a pod takes long to start, since what was too little stays too little for as long. What waits
in a pod stays there, and new pods help with what comes instead. So a backlog gets what works it off in the time that a
pod takes to start (sooner nobody can help, and where that is long, most of it has gone by then), and while more and
more wait one replica at least. A queue that is full does not: who was refused will not be there when a pod comes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from octavo_operator.autoscale.core.curve import ServiceCurve
from octavo_operator.autoscale.core.trend import LEAST_POINTS, Point, Trend, fit, noise
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings, Verdict

__all__ = ["State", "decide", "start"]

USABLE_SECONDS = 30.0
"""How old a sample may be: some scrapes are lost, and the last known load is better than none."""

GROWTH_SECONDS = 5.0
"""Over which time a queue's growth is measured: that between two samples of a pod that is not busy."""

SURE = 3.0
"""Standard deviations that chance may add to the growth of the queues: less is sure."""

DOUBLING_SECONDS = 360.0
"""In which time a service that has just begun may need twice as much, for all that anybody knows."""

SETTLE_SECONDS = 15.0
"""How long demand is taken to be what it was when a pod has joined: it fills up at once, and the queues of the others
shrink a little later, so that for a moment the sum is too much. After that it is measured for as long at least."""

BLOCK_SECONDS = 15.0
"""Over which time demand is averaged. What is over sooner is a queue of two seconds at most, which nobody minds."""

TREND_SECONDS = 270.0
"""How far back the trend looks. In noise, the error of a climb falls with the power 1.5 of it."""

RATE_SECONDS = 60.0
"""Over how many full replicas' seconds the requests that one ends are averaged: the answers' lengths may change."""

RATE_LEAST = 20.0
"""From how many on the rate is known: those that have just begun to answer end nothing yet."""

NOTHING = 1e-6
"""So few requests a second, or tokens, are none. What pods that hang have ended fades away, and is divided by."""

FULL = 0.95
"""The load that replicas are planned for. Queueing makes the rest useless where requests come at random."""

MARGIN = 1.25
"""Standard deviations of demand by chance that are planned for, ..."""

STRAY = (1.2, 72.0)
"""... and of what chance does not explain so many, and one more for each time as long as this that a pod takes to start."""

NOISE_SECONDS = 1800.0
"""How far back is looked for what demand strays by: a few minutes tell little of how far one may be from the next."""

DRAIN_SECONDS = (30.0, 120.0)
"""In which time a backlog shall be gone at least and at most; between the two, while a pod starts."""

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
        since: from when on pods have served; long before it began if they did then, None if none has yet.
        settled_at: from when on demand is measured, after a pod has joined.
        demand: at the decision before.
        block: (begin, sum, count) of the demands of the present block.
        points: mean demand of the blocks of the last half hour.
        wanted: (time, replicas) of the last minutes, those left out that a later one exceeds.
    """

    started: float
    decided: float
    startup: float
    settled_at: float
    since: float | None = None
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
        rate = self.ended / self.worked if self.worked >= RATE_LEAST else 0.0
        return rate if rate >= NOTHING else 0.0


@dataclass(frozen=True, slots=True)
class _Queue:
    """What waits.

    Attributes:
        backlog: requests that wait beyond what may.
        sure: demand that chance does not explain: that of the last seconds, or the level of the last minutes.
        grows: whether more than chance is added to what waits; who was refused does not wait.
    """

    backlog: float
    sure: float
    grows: bool


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
    seen_before = state.seen
    state = _remember(settings, state, serving, now)
    usable = [state.seen[pod.uid] for pod in serving if pod.uid in state.seen]
    silent = len(serving) - len(usable)
    bounded = min(max(desired, settings.min_replicas), settings.max_replicas)
    if not usable:
        verdict = _unless(Verdict.NO_METRICS, bounded, desired)
        held = Decision(bounded, verdict, 0.0, 0.0, 0.0, 0.0, 0, silent, bounded, bounded, 0.0)
        return held, replace(state, wanted=_highest(state.wanted, now, bounded, settings.stabilization))

    growth, chance, queued = _growth(usable)
    loads = [_load(settings, state.curve, samples[-1]) for samples in usable]
    demand = max(0.0, sum(loads) + (growth / state.rate if state.rate > 0 else 0.0))
    if state.points and not state.seen.keys() <= seen_before.keys() and now >= state.settled_at + SETTLE_SECONDS:
        state = replace(state, settled_at=now + SETTLE_SECONDS)
    if now < state.settled_at:
        demand = state.demand
    state = _average(state, demand, now)
    points = _points(state, now)
    variance = _chance(state, points[-1][1])
    trend = fit(points, now, variance)
    spread, stray = min(trend.spread, math.sqrt(variance)), noise(state.points, _chance(state, 1.0))
    waiting = sum(samples[-1].waiting for samples in usable)
    at_once = max(0.0, demand - SURE * chance / state.rate) if state.rate > 0 else demand
    queue = _Queue(
        backlog=max(0.0, waiting - settings.target_queue * len(serving)),
        sure=max(at_once, trend.level - SURE * trend.error),
        grows=queued > SURE * chance,
    )
    if queue.backlog > 0:
        # A queue is no noise: what comes in now counts before a block is full, and what waits needs no margin.
        if at_once > trend.level:
            trend = Trend(at_once, error=0.0, slope=0.0, spread=0.0, span=trend.span)
        spread = stray = 0.0
    if _has_just_begun(state, now):
        level = max(trend.level, demand)
        trend = replace(trend, level=level, slope=level / DOUBLING_SECONDS, span=DOUBLING_SECONDS)
    expected = _expected(trend, state)
    margin = MARGIN * spread + (STRAY[0] + state.startup / STRAY[1]) * stray * trend.level
    needed = _needed(settings, expected + margin, queue, state)
    with_silent = _needed(settings, expected + margin, queue, state, silent=silent)
    wanted = _highest(state.wanted, now, with_silent, settings.stabilization)
    kept = wanted[0][1]

    result, verdict = bounded, Verdict.ENOUGH
    if needed > bounded:
        more, times = STEP
        result = min(needed, max(bounded + more, math.floor(bounded * times)), settings.max_replicas)
        level = _replicas((trend.level + margin) / FULL)
        verdict = Verdict.DEMAND if level >= needed else Verdict.BACKLOG if queue.backlog > 0 else Verdict.TREND
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
        expected=expected,
        spread=math.hypot(spread, stray * trend.level),
        backlog=queue.backlog,
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


def _remember(settings: Settings, state: State, serving: Sequence[Pod], now: float) -> State:
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
        recent = tuple(one for one in before if sample.time - one.time <= GROWTH_SECONDS)
        seen[pod.uid] = (*(recent or (last,)), sample)
        span = sample.time - last.time
        running = (sample.running + last.running) / 2
        generated = sample.generated - last.generated
        if running >= 1 and generated >= NOTHING:
            curve = curve.see(min(1.0, running / settings.slots), running * span / generated)
        ended += sample.finished - last.finished
        worked += span * (_load(settings, curve, sample) + _load(settings, curve, last)) / 2
    since = state.since
    if since is None and serving:
        since = now if state.wanted else state.started - 2 * TREND_SECONDS
    kept = math.exp(-worked / RATE_SECONDS)
    startup = median(startups) if startups else state.startup
    return replace(
        state,
        decided=now,
        seen=seen,
        curve=curve,
        startup=startup,
        since=since,
        ended=kept * state.ended + ended,
        worked=kept * state.worked + worked,
    )


def _average(state: State, demand: float, now: float) -> State:
    """Takes a demand into the present block; one that is full becomes a point."""
    begin, total, count = state.block
    points = state.points
    if count and now - begin >= BLOCK_SECONDS:
        points = (
            *(point for point in points if now - point[0] < NOISE_SECONDS),
            _point(state.block, begin + BLOCK_SECONDS),
        )
        count = 0
    block = (begin, total + demand, count + 1) if count else (now, demand, 1)
    return replace(state, demand=demand, block=block, points=points)


def _points(state: State, now: float) -> tuple[Point, ...]:
    """The trend's blocks, and the present one unless it has just begun: one sample among means is taken for a climb."""
    points = tuple(point for point in state.points if now - point[0] < TREND_SECONDS)
    if len(points) >= LEAST_POINTS and now - state.block[0] < BLOCK_SECONDS / 3:
        return points
    return (*points, _point(state.block, now))


def _point(block: tuple[float, float, int], end: float) -> Point:
    """The mean of a block, at its middle."""
    begin, total, count = block
    return (begin + end) / 2, total / count


def _load(settings: Settings, curve: ServiceCurve, sample: Sample) -> float:
    """Load of one pod: by its slots, or by its cache if that is nearer to its target."""
    return max(curve.load(sample.running / settings.slots), FULL * sample.cache_usage / settings.target_cache)


def _growth(usable: Iterable[Sequence[Sample]]) -> tuple[float, float, float]:
    """Requests a second by which the queues grow, or would if they were not full, and what of that may be chance.

    The first is negative when they shrink. The second is a standard deviation: requests that come and end at random
    vary by the root of their number. The third is what of the first waits: who was refused does not.
    """
    growth = variance = queued = 0.0
    for samples in usable:
        first, last = samples[0], samples[-1]
        span = last.time - first.time
        if span > 0:
            waited = last.waiting - first.waiting
            grown = waited + last.refused - first.refused
            queued += waited / span
            growth += grown / span
            variance += (abs(grown) + 2 * (last.finished - first.finished)) / span**2
    return growth, math.sqrt(variance), queued


def _chance(state: State, demand: float) -> float:
    """The variance that chance gives the mean demand of a block.

    Requests that come at random vary by the root of their number, and if their lengths vary as much as they are long
    (an exponential distribution), their work has twice that variance.
    """
    if state.rate <= 0:
        return 0.0
    return 2 * demand / (state.rate * BLOCK_SECONDS)


def _has_just_begun(state: State, now: float) -> bool:
    """Whether the service has, so that nobody knows where demand goes; a new leader has, but the service has not."""
    return state.since is not None and now - state.since < TREND_SECONDS and len(state.points) < LEAST_POINTS


def _expected(trend: Trend, state: State) -> float:
    """Demand when a pod that is created now serves. What has climbed for a minute is followed for a minute at most."""
    if trend.slope <= 0:
        return trend.level
    return trend.level + trend.slope * min(state.startup, trend.span)


def _needed(settings: Settings, demand: float, queue: _Queue, state: State, *, silent: int = 0) -> int:
    """Replicas that demand asks for, if `silent` pods are as loaded as a pod can be."""
    with_backlog = queue.sure + _extra(queue, state) if queue.backlog > 0 else 0.0
    if silent:
        demand += silent * max(1.0, FULL / settings.target_cache)
        with_backlog = demand + _most_extra(demand)
    # What is kept free of a full load is there to work a backlog off, too.
    return _replicas(max(demand / FULL, with_backlog))


def _extra(queue: _Queue, state: State) -> float:
    """Replicas that work a backlog off."""
    most = _most_extra(queue.sure)
    if state.rate <= 0:  # it may be anything
        return most
    least_seconds, most_seconds = DRAIN_SECONDS
    seconds = min(max(least_seconds, state.startup), most_seconds)
    return min(most, max(queue.backlog / (state.rate * seconds), 1.0 if queue.grows else 0.0))


def _most_extra(demand: float) -> float:
    """Replicas that any backlog gets at most."""
    return max(1.0, demand / 2)


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
