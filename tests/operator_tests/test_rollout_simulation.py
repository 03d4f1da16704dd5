"""Rollouts of type Auto, against a simulated Deployment controller, scheduler and kubelet in any order of events."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.core.rollout import (
    PATIENCE_SECONDS,
    Replica,
    Stall,
    Step,
    costs_pods,
    next_step,
)
from octavo_operator.selftest.deployments import next_sizes, victims

GRACE = 135.0


@dataclass
class Pod:
    uid: str
    revision: str
    born: float
    ready_since: float | None = None
    unready_since: float = 0.0
    placed: bool = False
    leaves_at: float | None = None

    @property
    def ready(self) -> bool:
        return self.ready_since is not None

    @property
    def stays(self) -> bool:
        return self.leaves_at is None


@dataclass
class Simulation:
    """What of a cluster a rollout meets.

    Attributes:
        wanted: spec.replicas.
        gpus: how many pods have room; pods that are leaving take theirs until they are gone.
        quota: how many pods may exist at all.
        broken: revisions whose pods never become ready.
    """

    wanted: int
    gpus: int
    quota: int = 99
    broken: frozenset[str] = frozenset()
    revision: str = "A"
    applied: str = "A"
    strategy: tuple[int, int] = (1, 0)
    now: float = 0.0
    refused: bool = False
    pods: list[Pod] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    stall: Stall | None = None
    step: Step = Step()  # noqa: RUF009 frozen
    seen: tuple[tuple[Replica, ...], bool] | None = None
    born: int = 0
    kept: frozenset[str] = frozenset()

    @property
    def ready(self) -> int:
        return sum(pod.ready and pod.stays for pod in self.pods)

    @property
    def capacity(self) -> int:
        return min(self.wanted, self.gpus, self.quota)

    def news(self) -> None:
        """The watches deliver everything."""
        self.seen = (
            tuple(
                Replica(
                    uid=f"{pod.uid}",
                    is_new=pod.revision == self.revision,
                    is_ready=pod.ready and pod.stays,
                    is_placed=pod.placed,
                    is_leaving=not pod.stays,
                    unready_seconds=0.0 if pod.ready else self.now - pod.unready_since,
                )
                for pod in self.pods
            ),
            self.refused,
        )

    def look(self) -> None:
        """The operator looks at what the watches delivered last, and applies template and strategy together."""
        if self.seen is None:
            self.news()
        self.decide()
        if costs_pods(self.step, self.strategy):
            self.news()
            self.decide()
        self.strategy = (self.step.max_surge, self.step.max_unavailable)
        assert self.strategy != (0, 0), "the API server refuses it"
        assert min(self.strategy) >= 0
        if self.applied != self.revision:
            self.applied = self.revision
            self.kept = frozenset(
                pod.uid for pod in self.pods if pod.revision == self.applied and pod.stays and pod.ready
            )

    def decide(self) -> None:
        assert self.seen is not None
        pods, refused = self.seen
        self.step = next_step(self.wanted, pods, refused=refused, current=self.strategy, stall=self.stall, now=self.now)
        self.stall = self.step.stall

    def edit(self, revision: str) -> None:
        """A user changes the template."""
        self.revision, self.seen, self.kept = revision, None, frozenset()

    def controller(self) -> None:
        """One sync of the Deployment controller."""
        revisions = {*self.sizes, self.applied}
        available = {
            revision: sum(pod.revision == revision and pod.ready and pod.stays for pod in self.pods)
            for revision in revisions
        }
        self.sizes = next_sizes(self.sizes, self.applied, available, wanted=self.wanted, strategy=self.strategy)
        self.stop()

    def stop(self) -> None:
        """Pods that are too many are deleted, at once: no template is changed more quickly."""
        for revision, size in self.sizes.items():
            pods = [pod for pod in self.pods if pod.revision == revision and pod.stays]
            for pod in victims(pods, size):
                assert revision != self.applied, "a pod of the wanted revision was stopped"
                pod.leaves_at = self.now + GRACE

    def replicasets(self) -> None:
        """Pods that are missing are created."""
        self.refused = False
        for revision, size in self.sizes.items():
            for _ in range(size - sum(pod.revision == revision and pod.stays for pod in self.pods)):
                if len(self.pods) >= self.quota:
                    self.refused = True
                    return
                self.born += 1
                self.pods.append(Pod(f"{revision}{self.born}", revision, self.now, unready_since=self.now))

    def schedule(self, choice: int = 0) -> None:
        """One pod finds a node, if there is room. A pod without a node that is deleted is gone at once."""
        self.pods = [pod for pod in self.pods if pod.stays or pod.placed]
        waiting = [pod for pod in self.pods if not pod.placed]
        if waiting and sum(pod.placed for pod in self.pods) < self.gpus:
            waiting[choice % len(waiting)].placed = True

    def start(self, choice: int = 0) -> None:
        """One pod becomes ready."""
        starting = [pod for pod in self.pods if pod.placed and not pod.ready and pod.revision not in self.broken]
        if starting:
            starting[choice % len(starting)].ready_since = self.now

    def leave(self, choice: int = 0) -> None:
        """One pod that was stopped has finished its streams."""
        leaving = [pod for pod in self.pods if not pod.stays]
        if leaving:
            self.pods.remove(leaving[choice % len(leaving)])

    def crash(self, choice: int = 0) -> None:
        """One pod is not ready any more; it may become so again."""
        ready = [pod for pod in self.pods if pod.ready and pod.stays]
        if ready:
            pod = ready[choice % len(ready)]
            pod.ready_since, pod.unready_since = None, self.now

    def wait(self, seconds: float) -> None:
        """Time passes; whoever is past its grace period is gone."""
        self.now += seconds
        self.pods = [pod for pod in self.pods if pod.leaves_at is None or self.now < pod.leaves_at]

    def round(self) -> None:
        """Everybody does what there is to do."""
        self.news()
        self.look()
        self.controller()
        self.replicasets()
        for _ in range(len(self.pods)):
            self.schedule()
            self.start()
        self.leave()
        self.wait(5)

    def settle(self) -> None:
        """Until nothing changes any more for a minute."""
        last, quiet = None, 0
        for _ in range(1000):
            self.round()
            state = [(pod.uid, pod.placed, pod.ready, pod.stays) for pod in self.pods], dict(self.sizes), self.strategy
            quiet = quiet + 1 if state == last else 0
            last = state
            if quiet == 12:
                return
        raise AssertionError(f"it never rests: {last}")

    def is_complete(self) -> bool:
        return (
            {pod.revision for pod in self.pods} <= {self.revision}
            and self.ready == self.capacity
            and self.strategy == (1, 0)
            and self.step.look_again_after is None
        )

    def act(self, action: str, number: int) -> None:
        match action:
            case "edit":
                self.edit("ABC"[number % 3])
            case "wait":
                self.wait(number)
            case "rounds":
                for _ in range(number % 8):
                    self.round()
            case "schedule" | "start" | "leave" | "crash":
                getattr(self, action)(number)
            case _:
                getattr(self, action)()


ACTIONS = ["rounds", "look", "controller", "replicasets", "schedule", "start", "leave", "wait", "edit"]
NUMBERS = st.integers(0, 30)


def actions(*more: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from([*ACTIONS, *more]), NUMBERS), max_size=60)


WORLDS = st.fixed_dictionaries(
    {
        "wanted": st.integers(1, 4),
        "gpus": st.integers(1, 6),
        "quota": st.sampled_from([1, 2, 3, 5, 99]),
        "broken": st.sets(st.sampled_from("BC")).map(frozenset),
    }
)


def running(**world: Any) -> Simulation:
    """A service at rest on revision A."""
    simulation = Simulation(**world)
    simulation.settle()
    assert simulation.is_complete()
    return simulation


def last_is_sound(simulation: Simulation) -> None:
    simulation.edit(next(name for name in "CBA" if name not in simulation.broken))
    simulation.settle()
    assert simulation.is_complete(), simulation


@settings(max_examples=300)
@given(world=WORLDS, events=actions())
def test_next_step_any_order_keeps_what_serves_and_ends(world: dict[str, Any], events: list[tuple[str, int]]) -> None:
    """One pod at most is missed, none where there is room; pods of the wanted revision are never stopped."""
    simulation = running(**world)
    has_room = min(simulation.gpus, simulation.quota) > simulation.wanted
    least = simulation.capacity - (0 if has_room else 1)
    for action, number in events:
        simulation.news()
        simulation.act(action, number)
        assert simulation.ready >= least, (action, number)
        assert simulation.kept <= {pod.uid for pod in simulation.pods if pod.stays and pod.ready}
    last_is_sound(simulation)
    assert simulation.ready >= least


@settings(max_examples=300)
@given(world=WORLDS, events=actions("news"))
def test_next_step_late_news_cost_one_pod_at_most(world: dict[str, Any], events: list[tuple[str, int]]) -> None:
    simulation = running(**world)
    for action, number in events:
        simulation.act(action, number)
        assert simulation.ready >= simulation.capacity - 1, (action, number)
    last_is_sound(simulation)


@settings(max_examples=300)
@given(world=WORLDS, events=actions("news", "crash"))
def test_next_step_mends_whatever_broke(world: dict[str, Any], events: list[tuple[str, int]]) -> None:
    simulation = running(**world)
    for action, number in events:
        simulation.act(action, number)
    last_is_sound(simulation)


@pytest.mark.parametrize(("wanted", "gpus"), [(1, 1), (3, 3), (4, 2), (2, 1)])
def test_next_step_last_gpu(wanted: int, gpus: int) -> None:
    simulation = running(wanted=wanted, gpus=gpus)
    simulation.edit("B")
    began = simulation.now
    while simulation.ready == gpus:
        simulation.round()
    assert PATIENCE_SECONDS <= simulation.now - began <= PATIENCE_SECONDS + 15
    while not simulation.is_complete():
        assert simulation.strategy == (0, wanted - gpus + 1), "it waits once, not for every pod"
        simulation.round()


def test_next_step_with_room_never_misses_a_pod() -> None:
    simulation = running(wanted=3, gpus=4)
    simulation.edit("B")
    while not simulation.is_complete():
        simulation.round()
        assert simulation.ready >= 3
        assert simulation.strategy == (1, 0)


def test_next_step_broken_old_revision_goes_at_once() -> None:
    simulation = Simulation(wanted=4, gpus=4, broken=frozenset("A"))
    for _ in range(10):
        simulation.round()
    assert simulation.ready == 0
    simulation.edit("B")
    simulation.news()
    simulation.look()
    assert simulation.strategy == (1, 4)
    simulation.settle()
    assert simulation.is_complete()


def test_next_step_broken_old_pod_makes_room_before_a_ready_one() -> None:
    simulation = running(wanted=3, gpus=3)
    simulation.edit("B")
    simulation.broken = frozenset("B")
    while simulation.strategy == (1, 0):
        simulation.round()
    simulation.settle()
    assert simulation.ready == 2
    simulation.edit("C")
    while not simulation.is_complete():
        simulation.round()
        assert simulation.ready >= 2


def test_next_step_broken_old_pod_makes_room_under_surge_too() -> None:
    simulation = running(wanted=3, gpus=3)
    simulation.crash()
    simulation.edit("B")
    for _ in range(6):
        simulation.news()
        simulation.look()
        simulation.controller()
        simulation.replicasets()
        simulation.wait(5)
        assert simulation.ready == 2
    assert [pod.ready for pod in simulation.pods if pod.stays and pod.revision == "A"] == [True, True]


def test_next_step_edit_before_the_new_pod_serves_needs_no_patience() -> None:
    simulation = running(wanted=1, gpus=1)
    simulation.edit("B")
    simulation.broken = frozenset("B")
    simulation.settle()
    assert simulation.ready == 0
    assert simulation.strategy == (0, 1), "the rollout is not over"
    began = simulation.now
    simulation.edit("C")
    while simulation.ready == 0:
        simulation.round()
    assert simulation.now - began < PATIENCE_SECONDS


def test_next_step_back_to_the_first_revision_restarts_nothing() -> None:
    simulation = running(wanted=3, gpus=3)
    first = {pod.uid for pod in simulation.pods}
    simulation.edit("B")
    simulation.broken = frozenset("B")
    simulation.settle()
    left = {pod.uid for pod in simulation.pods if pod.revision == "A"}
    assert len(left & first) == 2
    simulation.edit("A")
    simulation.settle()
    assert simulation.is_complete()
    assert left <= {pod.uid for pod in simulation.pods}
