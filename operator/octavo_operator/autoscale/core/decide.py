"""How many replicas there shall be.

What every decision keeps to (tests/operator_tests/autoscale holds it to that):

- the result lies within the bounds;
- without any usable sample the result is the present number: no data is never no load;
- a ready pod that does not answer counts as full, with a backlog, when replicas could go and as empty when they could
  come, so that a lost sample never removes a replica and never adds one;
- pods that start count as capacity from the moment they are asked for: waiting for them adds no more;
- replicas go only when the highest need of the last `stabilization` seconds was lower, seen by this very state: who has
  just begun to decide does not know the past, and keeps what there is;
- while the error budget is spent, no more go than the busiest late minute of a burst leaves over;
- it depends on the arguments alone: the same inputs give the same decisions, bit for bit.

Demand is counted in replicas' worth of work. A pod's load follows from what it runs (curve.py) or from its cache,
whichever is more. Load alone ends at 1 however much is asked for; the rest is seen in the queue, which grows by what
comes in and is not served. So

    demand = Σ load(pod) + (growth of the queues + what is refused) ÷ requests that a full replica ends

which is right below saturation, beyond it, and while a backlog is worked off (its queue shrinks: growth is negative).
How many requests a full replica ends is a mean that forgets when answers become longer (rate.py). Demand is averaged
over some seconds, but a queue that grows by more than chance explains is believed at once: what a jump costs is the
time until the first new pod serves, and pods that come one after the other are swamped one after the other.

Where demand climbs it is followed to the time when a pod that is created now will serve (trend.py). A service that has
just begun has no past to follow: it may climb, too. A margin covers how much demand varies. What requests that come at
random explain is over within seconds. By how much more one minute differs from the next is learnt from half an hour,
and counts for more where a pod takes long to start, since what was too little stays too little for as long. A backlog
needs no margin but replicas that work it off (backlog.py). A burst that had late requests and is over may come again:
what it was worth is kept for an hour (budget.py).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from octavo_operator.autoscale.core.backlog import SURE, Backlog, backlog_of, ends_of, growth_of
from octavo_operator.autoscale.core.budget import SHARE, Budget, came
from octavo_operator.autoscale.core.curve import ServiceCurve
from octavo_operator.autoscale.core.rate import Rate, Work
from octavo_operator.autoscale.core.trend import LEAST_POINTS, Point, Trend, fit, noise
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings, Verdict

__all__ = ["State", "decide", "start"]

USABLE_SECONDS = 30.0
"""How old a sample may be: some scrapes are lost, and the last known load is better than none."""

GROWTH_SECONDS = (5.0, 10.0, 15.0)
"""Over which times a queue's growth is measured: the first is that between two samples of a pod that is not busy. Over
longer ones less of it may be chance."""

DOUBLING_SECONDS = 360.0
"""In which time a service that has just begun may need twice as much, for all that anybody knows."""

SETTLE_SECONDS = 15.0
"""How long demand is taken to be what it was when a pod has joined: it fills up at once, and the queues of the others
shrink a little later, so that for a moment the sum is too much. After that it is measured for as long at least."""

BLOCK_SECONDS = 15.0
"""Over which time demand is averaged. What is over sooner is a queue of two seconds at most, which nobody minds."""

TREND_SECONDS = 270.0
"""How far back the trend looks. In noise, the error of a climb falls with the power 1.5 of it."""

NOTHING = 1e-6
"""So few tokens are none."""

FULL = 0.95
"""The load that replicas are planned for. Queueing makes the rest useless where requests come at random."""

MARGIN = 1.25
"""Standard deviations of demand by chance that are planned for, ..."""

STRAY = (1.2, 72.0)
"""... and of what chance does not explain so many, and one more for each time as long as this that a pod takes to start."""

NOISE_SECONDS = 1800.0
"""How far back is looked for what demand strays by: a few minutes tell little of how far one may be from the next."""

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
        ends: how many requests a full replica ends.
        startup: seconds from a pod's creation until it serves.
        since: from when on pods have served; long before it began if they did then, None if none has yet.
        settled_at: from when on demand is measured, after a pod has joined.
        demand: at the decision before.
        block: (begin, sum, count) of the demands of the present block.
        points: mean demand of the blocks of the last half hour.
        wanted: (time, replicas) of the last minutes, those left out that a later one exceeds.
        budget: what was late of the last hour.
    """

    started: float
    decided: float
    startup: float
    settled_at: float
    since: float | None = None
    seen: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    curve: ServiceCurve = field(default_factory=ServiceCurve)
    ends: Rate = field(default_factory=Rate)
    demand: float = 0.0
    block: tuple[float, float, int] = (0.0, 0.0, 0)
    points: tuple[Point, ...] = ()
    wanted: tuple[tuple[float, int], ...] = ()
    budget: Budget = field(default_factory=Budget)

    @property
    def rate(self) -> float:
        """Requests a second that a full replica ends; 0 while it is not known."""
        return self.ends.value


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
    before = state
    state = _remember(settings, state, serving, now)
    usable = [state.seen[pod.uid] for pod in serving if pod.uid in state.seen]
    silent = len(serving) - len(usable)
    bounded = min(max(desired, settings.min_replicas), settings.max_replicas)
    if not usable:
        verdict = _unless(Verdict.NO_METRICS, bounded, desired)
        unchanged = Decision(bounded, verdict, 0.0, 0.0, 0.0, 0.0, 0, silent, bounded, bounded, 0.0, 0.0)
        return unchanged, replace(state, wanted=_highest(state.wanted, now, bounded, settings.stabilization))

    growth = growth_of(usable, GROWTH_SECONDS[0])
    loads = [_load(settings, state.curve, samples[-1]) for samples in usable]
    demand = max(0.0, sum(loads) + (growth.whole / state.rate if state.rate > 0 else 0.0))
    if state.points and not state.seen.keys() <= before.seen.keys() and now >= state.settled_at + SETTLE_SECONDS:
        state = replace(state, settled_at=now + SETTLE_SECONDS)
    if now < state.settled_at:
        demand = state.demand
    state = _average(state, demand, now)
    state = _spend(settings, state, before, now)
    points = _points(state, now)
    variance = _chance(state, points[-1][1])
    trend = fit(points, now, variance)
    spread, stray = min(trend.spread, math.sqrt(variance)), noise(state.points, _chance(state, 1.0))
    at_once = _at_once(state, usable, sum(loads), now) if state.rate > 0 else demand
    sure = max(at_once, trend.level - SURE * trend.error)
    newest = [samples[-1] for samples in usable]
    backlog = backlog_of(settings, newest, len(serving), growth, _next(pods, state, now))
    if backlog.now > 0:
        # A queue is no noise: what comes in now counts before a block is full, and what waits needs no margin.
        if at_once > trend.level:
            trend = Trend(at_once, error=0.0, slope=0.0, spread=0.0, span=trend.span)
        spread = stray = 0.0
    if _has_just_begun(state, now):
        level = max(trend.level, demand)
        trend = replace(trend, level=level, slope=level / DOUBLING_SECONDS, span=DOUBLING_SECONDS)
    expected = _expected(trend, state)
    margin = MARGIN * spread + (STRAY[0] + state.startup / STRAY[1]) * stray * trend.level
    with_backlog = sure + backlog.replicas(state.rate, state.startup) if backlog.now > 0 else 0.0
    # What is kept free of a full load is there to work a backlog off, too.
    needed = _replicas(max((expected + margin) / FULL, with_backlog))
    with_silent = _with_silent(settings, expected + margin, backlog, silent) if silent else needed
    wanted = _highest(state.wanted, now, with_silent, settings.stabilization)
    late = state.budget.late(settings.after_late)
    # A pod that does not answer may have had any number of late ones.
    is_spent = late > (0.0 if silent else SHARE)
    held = _replicas(state.budget.worth() / FULL) if is_spent else 0
    kept = max(wanted[0][1], held)
    is_held = held > wanted[0][1]

    result, verdict = bounded, Verdict.ENOUGH
    if needed > bounded:
        more, times = STEP
        result = min(needed, max(bounded + more, math.floor(bounded * times)), settings.max_replicas)
        level = _replicas((trend.level + margin) / FULL)
        verdict = Verdict.DEMAND if level >= needed else Verdict.BACKLOG if backlog.now > 0 else Verdict.TREND
    elif kept < bounded and now - state.started >= settings.stabilization:
        result = max(kept, settings.min_replicas)
        verdict = Verdict.LATE if is_held else Verdict.ENOUGH
    elif wanted[-1][1] < bounded:
        verdict = Verdict.LATE if is_held else Verdict.STABILIZING
    if silent and result == bounded and verdict is not Verdict.STABILIZING:
        verdict = Verdict.SOME_METRICS
    decision = Decision(
        result,
        _unless(verdict, result, desired) if result == bounded else verdict,
        demand=trend.level,
        expected=expected,
        spread=math.hypot(spread, stray * trend.level),
        backlog=backlog.now,
        answered=len(usable),
        silent=silent,
        needed=needed,
        kept=kept,
        busiest=max(loads),
        late=late,
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
    work = Work()
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
        recent = tuple(one for one in before if sample.time - one.time <= GROWTH_SECONDS[-1])
        seen[pod.uid] = (*(recent or (last,)), sample)
        span = sample.time - last.time
        running = (sample.running + last.running) / 2
        generated = sample.generated - last.generated
        if running >= 1 and generated >= NOTHING:
            curve = curve.see(min(1.0, running / settings.slots), running * span / generated)
        work += _work(settings, curve, last, sample)
    since = state.since
    if since is None and serving:
        since = now if state.wanted else state.started - 2 * TREND_SECONDS
    startup = median(startups) if startups else state.startup
    return replace(
        state,
        decided=now,
        seen=seen,
        curve=curve,
        startup=startup,
        since=since,
        ends=state.ends.see(work).doubt(_work_of_full(settings, curve, seen.values())),
    )


def _work(settings: Settings, curve: ServiceCurve, first: Sample, last: Sample) -> Work:
    """What a pod did between two samples."""
    half = (last.time - first.time) / 2
    return Work(
        ended=last.finished - first.finished,
        worked=half * (_load(settings, curve, first) + _load(settings, curve, last)),
        held=half * (first.cache_usage + last.cache_usage),
        ran=half * (first.running + last.running),
    )


def _work_of_full(settings: Settings, curve: ServiceCurve, seen: Iterable[Sequence[Sample]]) -> Work:
    """What the pods that were full did in the last seconds."""
    work = Work()
    for samples in seen:
        first, last = ends_of(samples, GROWTH_SECONDS[0])
        if min(_load(settings, curve, first), _load(settings, curve, last)) >= FULL:
            work += _work(settings, curve, first, last)
    return work


def _spend(settings: Settings, state: State, before: State, now: float) -> State:
    """Takes what came since the last time into the budget."""
    fresh = [one[-2:] for uid, one in state.seen.items() if len(one) > 1 and one is not before.seen.get(uid)]
    seconds = min(now - before.decided, USABLE_SECONDS)
    window = settings.after_late
    return replace(state, budget=state.budget.see(now, seconds, state.demand, came(fresh, state.rate), window))


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


def _chance(state: State, demand: float) -> float:
    """The variance that chance gives the mean demand of a block.

    Requests that come at random vary by the root of their number, and if their lengths vary as much as they are long
    (an exponential distribution), their work has twice that variance.
    """
    if state.rate <= 0:
        return 0.0
    return 2 * demand / (state.rate * BLOCK_SECONDS)


def _at_once(state: State, usable: Sequence[Sequence[Sample]], load: float, now: float) -> float:
    """Demand that chance does not explain, by the growth of the queues over the time that is the surest."""
    if now < state.settled_at:
        return max(0.0, state.demand - SURE * growth_of(usable, GROWTH_SECONDS[0]).chance / state.rate)
    return max(0.0, *(load + growth_of(usable, seconds).sure / state.rate for seconds in GROWTH_SECONDS))


def _next(pods: Sequence[Pod], state: State, now: float) -> float:
    """Seconds until the next pod serves: one that starts, or one that is created now."""
    starting = (pod.created for pod in pods if pod.ready_at is None and not pod.leaving)
    return max(0.0, min(starting, default=now) + state.startup - now)


def _has_just_begun(state: State, now: float) -> bool:
    """Whether the service has, so that nobody knows where demand goes; a new leader has, but the service has not."""
    return state.since is not None and now - state.since < TREND_SECONDS and len(state.points) < LEAST_POINTS


def _expected(trend: Trend, state: State) -> float:
    """Demand when a pod that is created now serves. What has climbed for a minute is followed for a minute at most."""
    if trend.slope <= 0:
        return trend.level
    return trend.level + trend.slope * min(state.startup, trend.span)


def _with_silent(settings: Settings, demand: float, backlog: Backlog, silent: int) -> int:
    """Replicas that demand asks for, if `silent` pods are as loaded as a pod can be."""
    demand += silent * max(1.0, FULL / settings.target_cache)
    return _replicas(max(demand / FULL, demand + backlog.most(silent)))


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
