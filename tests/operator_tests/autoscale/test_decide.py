"""The decision, on samples made by hand. Pods here end 10 requests a second, of 100 tokens each, when they are full."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.curve import ServiceCurve
from octavo_operator.autoscale.core.decide import State, decide, start
from octavo_operator.autoscale.core.rate import Rate, Work
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings, Verdict

SETTINGS = Settings(min_replicas=1, max_replicas=20, startup=180.0)
RATE = 10.0
TOKENS = 100.0
CURVE = ServiceCurve()
"""The prior's: the pods of these tests follow it, so that the fit has nothing to correct."""


class Fleet:
    """Pods whose counters move with the load that a test gives them.

    Attributes:
        desired: the replicas asked for; `step` does not change it.
    """

    def __init__(self, ready: int, settings: Settings = SETTINGS, *, age: float = 1e4) -> None:
        self.settings = settings
        self.desired = ready
        self.now = 0.0
        self.state = replace(start(settings, -age), since=-math.inf, wanted=((0.0, ready),))
        self.pods = [Pod(f"uid-{number}", -1000.0, -820.0) for number in range(ready)]
        self.decision: Decision | None = None

    def starting(self, count: int) -> None:
        """More pods that are not ready."""
        self.pods += [Pod(f"new-{number}", self.now, None) for number in range(count)]
        self.desired += count
        self.state = replace(self.state, wanted=((self.now, self.desired),))

    def step(
        self,
        x: float | Sequence[float],
        *,
        waiting: float = 0.0,
        cache: float = 0.0,
        refused: float = 0.0,
        lost: Sequence[int] = (),
        seconds: float = 5.0,
    ) -> Decision:
        """Time passes, and the ready pods run the share x of their slots; then a decision."""
        self.now += seconds
        ready = [number for number, pod in enumerate(self.pods) if pod.ready_at is not None]
        shares = dict(zip(ready, [x] * len(ready) if isinstance(x, float) else x, strict=True))
        for number, share in shares.items():
            before = self.pods[number].sample or Sample(self.now - seconds, 0, 0, 0, 0, 0, 0)
            work = seconds * RATE * CURVE.load(share)
            sample = Sample(
                self.now, share * 64, waiting, cache, before.finished + work, before.generated + work * TOKENS, refused
            )
            if number not in lost:
                self.pods[number] = replace(self.pods[number], sample=sample)
        return self.decide()

    def decide(self) -> Decision:
        """A decision on what there is."""
        self.decision, self.state = decide(self.settings, self.state, self.pods, self.desired, self.now)
        return self.decision

    def steps(self, count: int, x: float, *, waiting: float = 0.0, cache: float = 0.0) -> Decision:
        """Several alike."""
        for _ in range(count - 1):
            self.step(x, waiting=waiting, cache=cache)
        return self.step(x, waiting=waiting, cache=cache)


def share_of(load: float) -> float:
    """The share of the slots at which a pod has this load."""
    return load * (1 - CURVE.share) / (1 - load * CURVE.share)


def test_decide_pods_that_start_count_as_capacity() -> None:
    fleet = Fleet(2)
    fleet.steps(20, share_of(0.9))
    fleet.starting(2)
    for second in range(1, 10):
        # Both are full, and their queues grow by another two replicas' worth.
        decision = fleet.step(1.0, waiting=second * 5 * RATE)
    assert decision.replicas in {5, 6}  # 4 of work and at most 1 for the backlog, with what is kept free: never 8
    assert fleet.desired == 4


def test_decide_two_full_of_four_with_two_that_start_stays() -> None:
    fleet = Fleet(2)
    fleet.starting(2)
    assert fleet.steps(20, 1.0).replicas == 4


@pytest.mark.parametrize("ended", [5e-324, 2e-311, 1e-200, 1e-5])
def test_decide_of_pods_that_have_ended_next_to_nothing(ended: float) -> None:
    # Pods that hang for hours: what they ended before has faded away.
    fleet = Fleet(2)
    fleet.steps(3, 1.0)
    fleet.state = replace(fleet.state, ends=Rate(Work(ended=ended, worked=100.0)))
    for number in range(4):
        fleet.now += 5
        fleet.pods = [
            replace(pod, sample=replace(pod.sample, time=fleet.now, waiting=10.0 * number, refused=float(number)))
            for pod in fleet.pods
            if pod.sample is not None
        ]
        decision = fleet.decide()
        assert 2 <= decision.replicas <= SETTINGS.max_replicas
        assert math.isfinite(decision.demand)


def test_decide_all_full_and_twice_the_load_never_goes_down() -> None:
    fleet = Fleet(4)
    for second in range(1, 10):
        decision = fleet.step(1.0, waiting=second * 5 * RATE)
        assert decision.replicas >= 4
    assert 8 <= decision.replicas <= 10


def test_decide_steps_up_are_bounded() -> None:
    for ready, most in ((1, 5), (8, 16)):
        fleet = Fleet(ready, replace(SETTINGS, max_replicas=100))
        fleet.steps(20, share_of(0.5))
        fleet.step(1.0, waiting=5000)
        assert fleet.step(1.0, waiting=10_000).replicas == most


def test_decide_queue_counts_at_once() -> None:
    fleet = Fleet(1)
    fleet.steps(20, share_of(0.5))
    fleet.step(1.0, waiting=2 * 5 * RATE)
    assert fleet.step(1.0, waiting=4 * 5 * RATE).replicas >= 3


def test_decide_jump_is_answered_as_a_whole_at_the_first_sample_that_shows_it() -> None:
    fleet = Fleet(2)
    fleet.steps(20, share_of(0.5))
    decision = fleet.step(1.0, waiting=1.5 * 5 * RATE)
    assert decision.replicas in {5, 6}  # two that run, three that wait
    assert decision.demand > 3


def test_decide_longer_answers_are_answered_with_pods_for_all_that_comes() -> None:
    """Three pods end a third of what they did, and all that comes goes to the new ones until their queues are gone."""
    fleet = Fleet(3, replace(SETTINGS, startup=30.0))
    fleet.pods = [Pod(pod.uid, -1000.0, -970.0) for pod in fleet.pods]
    fleet.steps(60, share_of(0.6), cache=0.3)
    waiting = 0.0
    needed = []
    ended = 60 * 5 * 0.6 * RATE
    for _ in range(4):  # 18 requests a second come, ten end
        fleet.now += 5
        waiting += 8 * 5 / 3
        ended += 10 * 5 / 3
        fleet.pods = [
            replace(pod, sample=Sample(fleet.now, 64, waiting, 0.75, ended, ended * TOKENS, 0)) for pod in fleet.pods
        ]
        needed.append(fleet.decide().needed)
    assert fleet.state.rate == pytest.approx(10 / 3)
    assert needed[1:] == [7, 8, 8]


def test_decide_backlog_is_that_of_when_the_next_pod_serves() -> None:
    """Of the same queue, which grows, more is left to work off where no pod is about to serve."""
    needed = []
    for age in (None, 25.0):
        fleet = Fleet(4, replace(SETTINGS, startup=30.0))
        fleet.pods = [Pod(pod.uid, -1000.0, -970.0) for pod in fleet.pods]
        fleet.steps(20, share_of(0.9))
        if age is not None:
            fleet.pods.append(Pod("starting", fleet.now - age, None))
        for second in range(1, 3):
            decision = fleet.step(1.0, waiting=second * 5 * RATE * 0.4)
        needed.append(decision.needed)
    assert needed[0] > needed[1]


def test_decide_queue_that_is_full_grows_no_more() -> None:
    """Of 6.2 replicas' worth 4.2 are refused; whoever was refused needs nobody when the pods that start are ready."""
    fleet = Fleet(2)
    fleet.steps(60, share_of(0.5))
    for second in range(1, 41):
        came = second * 2.1 * 5 * RATE
        decision = fleet.step(1.0, waiting=min(400, came), refused=max(0, came - 400))
    assert decision.demand == pytest.approx(6.2, abs=0.1)
    assert decision.needed == 7


def test_decide_growth_that_may_be_chance_does_not_count_at_once() -> None:
    fleet = Fleet(4)
    fleet.steps(20, share_of(0.9))
    assert fleet.step(share_of(0.9), waiting=8).replicas == 4
    assert fleet.decision is not None
    assert fleet.decision.backlog == 12


@pytest.mark.parametrize(("startup", "replicas"), [(30.0, 9), (180.0, 7)])
def test_decide_backlog_is_worked_off_while_a_pod_starts(startup: float, replicas: int) -> None:
    fleet = Fleet(6, age=0.0)
    fleet.pods = [Pod(pod.uid, -1000.0 - startup, -1000.0) for pod in fleet.pods]
    decision = fleet.steps(40, 1.0, waiting=150)
    assert decision.demand == pytest.approx(6, abs=0.01)
    assert decision.needed == replicas


@pytest.mark.parametrize(("seen_before", "replicas"), [(True, 2), (False, 1)])
def test_decide_service_that_has_just_begun_may_climb(seen_before: bool, replicas: int) -> None:
    """A new leader that finds pods at work does not take them for new."""
    fleet = Fleet(1)
    fleet.state = start(SETTINGS, 0.0)
    if seen_before:
        _, fleet.state = decide(SETTINGS, fleet.state, [Pod("uid-0", -180.0, None)], 1, 0.0)
    assert {fleet.step(share_of(0.7)).replicas for _ in range(10)} == {replicas}


@pytest.mark.parametrize(("startup", "replicas"), [(30.0, 6), (180.0, 7)])
def test_decide_margin_is_wider_where_pods_take_long(startup: float, replicas: int) -> None:
    """Demand is 3.4 or 4.4, for a minute each: at least the higher one is planned for."""
    fleet = Fleet(6)
    fleet.pods = [Pod(pod.uid, -1000.0 - startup, -1000.0) for pod in fleet.pods]
    for number in range(144):
        decision = fleet.step(share_of((3.4 + number // 12 % 2) / 6))
    assert decision.expected == pytest.approx(3.9, abs=0.25)
    assert decision.needed == replicas


def test_decide_falling_recommendations_keep_the_highest_of_the_window() -> None:
    fleet = Fleet(6)
    fleet.steps(150, share_of(0.9))
    since = fleet.now
    decision = fleet.step(share_of(0.3))
    while decision.replicas == 6:
        assert decision.needed == 6 or decision.verdict is Verdict.STABILIZING
        decision = fleet.step(share_of(0.3))
    assert SETTINGS.stabilization <= fleet.now - since <= SETTINGS.stabilization + 30
    assert fleet.decision is not None
    assert fleet.decision.needed == 2


def test_decide_no_answers_at_the_peak_holds() -> None:
    fleet = Fleet(4)
    fleet.steps(30, share_of(0.9))
    for _ in range(120):
        fleet.now += 5
        decision, fleet.state = decide(SETTINGS, fleet.state, fleet.pods, 4, fleet.now)
        assert decision.replicas == 4
    assert decision.verdict is Verdict.NO_METRICS
    assert decision.silent == 4


def test_decide_no_answers_for_long_lets_no_replica_go_when_they_return() -> None:
    fleet = Fleet(4)
    fleet.steps(30, share_of(0.9))
    for _ in range(120):
        fleet.now += 5
        _, fleet.state = decide(SETTINGS, fleet.state, fleet.pods, 4, fleet.now)
    assert fleet.step(share_of(0.1)).replicas == 4


def test_decide_silent_pods_count_as_full_on_the_way_down_and_empty_on_the_way_up() -> None:
    fleet = Fleet(4)
    for _ in range(100):
        assert fleet.step(share_of(0.5), lost=(2, 3)).replicas == 4  # 1 and 2 full ones need 4
    assert fleet.decision is not None
    assert (fleet.decision.silent, fleet.decision.needed) == (2, 2)
    for _ in range(100):
        decision = fleet.step(share_of(0.5))
    assert decision.replicas == 3


def test_decide_silent_pod_may_have_any_backlog() -> None:
    fleet = [
        Sample(100.0, 1, 100, 1.0, 0, 0, 0),
        Sample(100.0, 64, 500, 0.75, 0, 0, 0),
        Sample(100.0, 5, 6, 0.75, 0, 0, 0),
    ]
    whole, _ = run(SETTINGS, fleet, 10)
    partly, _ = run(SETTINGS, [fleet[0], None, fleet[2]], 10)
    assert partly.replicas >= whole.replicas


def test_decide_pod_replaced_under_the_same_name_starts_anew() -> None:
    fleet = Fleet(1)
    fleet.steps(10, share_of(0.5))
    before = fleet.state.rate
    fleet.pods = [Pod("another", fleet.now, fleet.now)]
    assert fleet.step(share_of(0.5)).replicas == 1
    assert fleet.state.rate == before  # its first counters are no difference to the other's last
    assert set(fleet.state.seen) == {"another"}


def test_decide_counters_that_fell_are_a_restart() -> None:
    fleet = Fleet(1)
    fleet.steps(10, share_of(0.5))
    rate = fleet.state.rate
    fleet.pods = [replace(fleet.pods[0], sample=Sample(fleet.now + 5, 10, 0, 0, 3, 300, 0))]
    fleet.now += 5
    _, fleet.state = decide(SETTINGS, fleet.state, fleet.pods, 1, fleet.now)
    assert fleet.state.rate == rate


@pytest.mark.parametrize(("desired", "replicas"), [(0, 1), (1, 1), (20, 20), (25, 20)])
def test_decide_bounds_need_no_metric(desired: int, replicas: int) -> None:
    decision, _ = decide(SETTINGS, start(SETTINGS, 0.0), [], desired, 1.0)
    assert decision.replicas == replicas
    assert (decision.verdict is Verdict.OUT_OF_BOUNDS) == (desired != replicas)


def test_decide_new_leader_keeps_what_there_is_for_one_window() -> None:
    fleet = Fleet(6, age=0.0)
    for _ in range(59):
        assert fleet.step(share_of(0.1)).replicas == 6
    assert fleet.steps(3, share_of(0.1)).replicas == 1


def test_decide_new_leader_goes_up_on_its_first_samples() -> None:
    fleet = Fleet(2, age=0.0)
    fleet.step(1.0, waiting=0)
    assert fleet.step(1.0, waiting=100).replicas > 2


def test_decide_climb_is_followed_to_the_time_when_a_new_pod_serves() -> None:
    fleet = Fleet(3)
    loads = [1.0 + second * 5 * 0.004 for second in range(1, 41)]  # 0.72 replicas more in 180 s
    for load in loads:
        decision = fleet.step(share_of(load / 3))
    assert decision.demand == pytest.approx(loads[-1], abs=0.02)
    assert decision.expected == pytest.approx(loads[-1] + 0.72, abs=0.08)


def test_decide_single_sample_does_not_make_a_climb() -> None:
    """Six replicas' worth on seven pods; the mean of a block may climb by chance, but one sample is not a block."""
    fleet = Fleet(7)
    blocks = [6.0, 5.9, 6.1, 6.0, 6.0, 6.1, 6.1, 6.1, 6.2, 6.1, 6.2, 6.2]
    for load in blocks:
        fleet.steps(3, share_of(load / 7))
    decision = fleet.step(share_of(6.45 / 7))
    assert (decision.replicas, decision.expected) == (7, decision.demand)


def test_decide_cache_near_its_target_is_load() -> None:
    fleet = Fleet(2)
    assert fleet.steps(20, 0.2, cache=0.9).replicas == 3


def test_decide_kubectl_scale_within_bounds_is_not_fought() -> None:
    fleet = Fleet(1)
    fleet.steps(20, share_of(0.5))
    fleet.desired = 5
    results = {fleet.step(share_of(0.5)).replicas for _ in range(10)}
    assert results in ({1}, {5})


def test_decide_long_answers_are_seen_by_what_runs() -> None:
    """The length of answers triples; those that end tell it late, those that run at once."""
    fleet = Fleet(2)
    fleet.steps(40, share_of(0.6))
    fleet.desired = 2
    for load in (0.7, 0.8, 0.9, 0.99):
        fleet.steps(6, share_of(load))
    assert fleet.decision is not None
    assert fleet.decision.replicas >= 3


samples = st.builds(
    Sample,
    time=st.just(100.0),
    running=st.integers(0, 64),
    waiting=st.integers(0, 500),
    cache_usage=st.floats(0, 1),
    finished=st.integers(0, 1000),
    generated=st.integers(0, 10**6),
    refused=st.integers(0, 10),
)


def pod(number: int, sample: Sample | None) -> Pod:
    return Pod(f"uid-{number}", 0.0, 50.0, sample=sample)


fleets = st.lists(st.one_of(st.none(), samples), min_size=1, max_size=8)
bounds = st.tuples(st.integers(1, 5), st.integers(0, 10)).map(
    lambda pair: Settings(min_replicas=pair[0], max_replicas=pair[0] + pair[1])
)


def run(settings: Settings, fleet: Sequence[Sample | None], desired: int, rounds: int = 62) -> tuple[Decision, State]:
    """The same samples again and again, with their times moved on."""
    state = start(settings, 0.0)
    for number in range(rounds):
        now = 100.0 + 5 * number
        pods = [pod(index, sample and replace(sample, time=now)) for index, sample in enumerate(fleet)]
        decision, state = decide(settings, state, pods, desired, now)
    return decision, state


@given(bounds, fleets, st.integers(0, 30))
def test_decide_never_leaves_the_bounds(settings: Settings, fleet: list[Sample | None], desired: int) -> None:
    decision, _ = run(settings, fleet, desired)
    assert settings.min_replicas <= decision.replicas <= settings.max_replicas


@given(fleets, st.integers(1, 10), st.data())
def test_decide_lost_sample_never_moves_the_result_down(
    fleet: list[Sample | None], desired: int, data: st.DataObject
) -> None:
    settings = Settings(min_replicas=1, max_replicas=20)
    whole, _ = run(settings, fleet, desired)
    lost = data.draw(st.integers(0, len(fleet) - 1))
    partly, _ = run(settings, [None if number == lost else one for number, one in enumerate(fleet)], desired)
    assert partly.replicas >= min(whole.replicas, desired)


@pytest.mark.parametrize("is_new", [True, False])
@given(fleet=fleets.filter(any), desired=st.integers(1, 10))
def test_decide_constant_load_does_not_oscillate(is_new: bool, fleet: list[Sample | None], desired: int) -> None:
    settings = Settings(min_replicas=1, max_replicas=20)
    state = replace(start(settings, 0.0), since=100.0 if is_new else -math.inf)
    results = []
    for number in range(80):
        now = 100.0 + 10 * number
        pods = [pod(index, sample and replace(sample, time=now)) for index, sample in enumerate(fleet)]
        decision, state = decide(settings, state, pods, desired, now)
        desired = decision.replicas
        results.append(desired)
    directions = [b - a for a, b in pairwise(results) if a != b]
    ups = [one > 0 for one in directions]
    # Who has just begun may have gone up for a climb that did not come; that is taken back once.
    assert ups == sorted(ups, reverse=True) if is_new else len(set(ups)) <= 1
    assert len(set(results[-30:])) == 1


@given(fleets.filter(all), st.integers(1, 10), st.floats(0, 1), st.integers(0, 100))
def test_decide_is_monotone_in_demand(fleet: list[Sample], desired: int, more: float, queue: int) -> None:
    settings = Settings(min_replicas=1, max_replicas=40)
    heavier = [
        replace(
            one,
            running=one.running + math.floor(more * (64 - one.running)),
            cache_usage=one.cache_usage + more * (1 - one.cache_usage),
            waiting=one.waiting + queue,
        )
        for one in fleet
    ]
    less, _ = run(settings, fleet, desired)
    much, _ = run(settings, heavier, desired)
    assert much.replicas >= less.replicas


def _again(call: Callable[[], Decision]) -> bool:
    return call() == call()


@given(fleets, st.integers(1, 10))
def test_decide_depends_on_its_arguments_alone(fleet: list[Sample | None], desired: int) -> None:
    assert _again(lambda: run(SETTINGS, fleet, desired, rounds=8)[0])
