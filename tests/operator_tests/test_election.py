"""The election against simulated machines: clocks that differ, processes that pause, messages that are lost or late."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import Manifest
from octavo_operator.core.election import Durations, Election

NAME = ("octavo-system", "octavo-operator")
START = datetime(2026, 1, 1, tzinfo=UTC)
DURATIONS = Durations()


class LeaseServer:
    """An API server with one Lease: a write must name the version that it replaces."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.version = 0

    def write(self, manifest: Manifest) -> Manifest | None:
        """None for a conflict."""
        present = self.lease and self.lease["metadata"]["resourceVersion"]
        if manifest["metadata"].get("resourceVersion") != present:
            return None
        self.version += 1
        self.lease = manifest | {"metadata": manifest["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease


@dataclass
class Call:
    """One request under way; the server handles it once, or never."""

    claim: Manifest | None
    sent_at: float
    is_handled: bool = False
    answer: Manifest | None = None


@dataclass
class Candidate:
    """A process: it has at most one call under way, as the edge awaits each; its clock runs at a rate of its own."""

    election: Election
    rate: float
    offset: float
    call: Call | None = None

    def clock(self, time: float) -> float:
        return self.offset + time * self.rate

    def leads(self, time: float) -> bool:
        return self.election.leads(self.clock(time))


RATES = (0.92, 1.0, 1.08)
WAITS = (0.01, 2.0, 5.0, 9.0, 10.0, 14.0, 15.0)


class Chaos:
    """Two machines to which anything may happen at any time; a process that no step chooses is paused."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = 0.0
        self.server = LeaseServer()
        self.births = 0
        self.late: list[Call] = []
        self.processes = [self.born(), self.born()]
        self.leaders: set[str] = set()

    def born(self) -> Candidate:
        self.births += 1
        election = Election(f"candidate-{self.births}", NAME)
        return Candidate(election, self.random.choice(RATES), offset=1000.0 * self.births)

    def step(self) -> None:
        weights = {
            self.wait: 6, self.round: 8, self.slow_renewal: 2, self.send: 2, self.arrives: 2, self.arrives_late: 1,
            self.answers: 2, self.give_up: 1, self.end: 0.5,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(weights), list(weights.values()))
        chosen(self.random.choice(self.processes))
        leaders = [process.election.identity for process in self.processes if process.leads(self.time)]
        assert len(leaders) <= 1, leaders
        self.leaders.update(leaders)

    def wait(self, _: Candidate) -> None:
        self.time += self.random.choice(WAITS)

    def round(self, process: Candidate) -> None:
        """A whole round of the edge, in no time."""
        for reads in (True, False):
            self.send(process, reads=reads)
            self.arrives(process)
            self.answers(process)

    def slow_renewal(self, process: Candidate) -> None:
        """The others see a write long before its writer knows that it was stored."""
        self.send(process, reads=False)
        self.arrives(process)
        for other in self.processes:
            if other is not process:
                self.round(other)
        self.wait(process)
        self.answers(process)

    def send(self, process: Candidate, *, reads: bool | None = None) -> None:
        now = process.clock(self.time)
        if process.call is not None or process.election.is_deposed(now):
            return
        reads = self.random.random() < 0.3 if reads is None else reads
        claim = None if reads else process.election.claim(now, self.moment())
        if reads or claim is not None:
            process.call = Call(claim, now)

    def arrives(self, process: Candidate) -> None:
        """The call under way comes to the server."""
        if process.call is not None:
            self.handle(process.call)

    def arrives_late(self, _: Candidate) -> None:
        """A call that nobody waits for any more comes to the server."""
        if self.late:
            self.handle(self.late.pop(0))

    def handle(self, call: Call) -> None:
        if not call.is_handled:
            call.is_handled = True
            call.answer = self.server.lease if call.claim is None else self.server.write(call.claim)

    def answers(self, process: Candidate) -> None:
        call, now = process.call, process.clock(self.time)
        if call is None or not call.is_handled:
            return
        process.call = None
        if call.claim is None:
            process.election = process.election.read(call.answer, now)
        elif call.answer is not None:
            process.election = process.election.written(call.answer, call.sent_at, now)

    def give_up(self, process: Candidate) -> None:
        """It waits for its call no more."""
        if process.call is not None:
            self.late.append(process.call)
            process.call = None

    def end(self, process: Candidate) -> None:
        """It dies; or it is stopped, acts no more, and gives the Lease back. The kubelet starts another one."""
        self.give_up(process)
        process.election = process.election.resigned(process.clock(self.time))
        given_back = process.election.release(self.moment())
        if given_back is not None and self.random.random() < 0.5:
            self.server.write(given_back)
        self.processes[self.processes.index(process)] = self.born()

    def moment(self) -> datetime:
        return START + timedelta(seconds=self.time, microseconds=self.server.version)


def test_one_leads_at_most_whatever_happens() -> None:
    changes = 0
    for seed in range(3000):
        chaos = Chaos(seed)
        for _ in range(80):
            chaos.step()
        changes += len(chaos.leaders) > 1
    assert changes > 1000, "little was tried"


class Simulation:
    """The rounds of the edge, without faults but with a latency; who is dead makes none."""

    def __init__(self, count: int, *, latency: float = 0.01, phases: tuple[float, ...] = (0.0, 0.7, 1.3)) -> None:
        self.server = LeaseServer()
        self.latency = latency
        self.processes = [Candidate(Election(f"candidate-{n}", NAME), 1.0, offset=100.0 * n) for n in range(count)]
        self.due = dict(enumerate(phases[:count]))
        self.time = 0.0

    def run(self, until: Callable[[], bool], most: float) -> float:
        """Makes rounds until something holds; how long that took."""
        began = self.time
        while not until():
            which = min(self.due, key=self.due.__getitem__)
            self.time = self.due[which]
            assert self.time - began <= most, "too late"
            self.round(which)
        return self.time - began

    def round(self, which: int) -> None:
        process = self.processes[which]
        if not process.leads(self.time):
            self.time += self.latency
            process.election = process.election.read(self.server.lease, process.clock(self.time))
        claim = process.election.claim(process.clock(self.time), START + timedelta(seconds=self.time))
        if claim is not None:
            sent_at = process.clock(self.time)
            answer = self.server.write(claim)
            self.time += self.latency
            if answer is not None:
                process.election = process.election.written(answer, sent_at, process.clock(self.time))
        self.due[which] = self.time + process.election.pause(process.clock(self.time))

    def leader(self) -> int | None:
        return next((which for which in self.due if self.processes[which].leads(self.time)), None)


def test_first_candidate_leads_at_once() -> None:
    world = Simulation(3)
    assert world.run(lambda: world.leader() is not None, 1.0) < 0.1
    assert world.leader() == 0


@given(dies_after=st.floats(0.0, 20.0), latency=st.floats(0.001, 0.2), phases=st.tuples(*[st.floats(0.0, 2.0)] * 3))
def test_death_of_the_leader_is_followed_within_lease_and_retry(
    dies_after: float, latency: float, phases: tuple[float, float, float]
) -> None:
    world = Simulation(3, latency=latency, phases=phases)
    world.run(lambda: world.time > 30.0 + dies_after, 60.0)
    leader = world.leader()
    assert leader is not None
    del world.due[leader]
    took = world.run(lambda: world.leader() is not None, 20.0)
    assert took <= DURATIONS.lease + DURATIONS.retry + 5 * world.latency


def test_release_is_followed_within_retry() -> None:
    world = Simulation(3)
    world.run(lambda: world.time > 30.0, 60.0)
    leader = world.leader()
    assert leader is not None
    process = world.processes[leader]
    process.election = process.election.resigned(process.clock(world.time))
    assert not process.leads(world.time)
    given_back = process.election.release(START)
    assert given_back is not None
    world.server.write(given_back)
    del world.due[leader]
    assert world.run(lambda: world.leader() is not None, 5.0) <= DURATIONS.retry + 5 * world.latency


def test_leader_keeps_the_lease_and_counts_transitions() -> None:
    world = Simulation(3)
    world.run(lambda: world.leader() is not None, 1.0)
    first = world.leader()
    world.run(lambda: world.time > 600.0, 601.0)
    assert world.leader() == first
    assert world.server.lease is not None
    spec = world.server.lease["spec"]
    assert spec["leaseTransitions"] == 0
    assert spec["holderIdentity"] == "candidate-0"
    assert spec["leaseDurationSeconds"] == 15
    assert spec["acquireTime"] < spec["renewTime"]
    del world.due[0]
    world.run(lambda: world.leader() is not None, 20.0)
    assert world.server.lease["spec"]["leaseTransitions"] == 1


def leading(now: float = 100.0) -> Election:
    election = Election("me", NAME).read(None, now)
    claim = election.claim(now, START)
    assert claim is not None
    stored = claim | {"metadata": claim["metadata"] | {"resourceVersion": "1"}}
    return election.written(stored, now, now)


def test_claim_before_the_lease_was_read_is_none() -> None:
    assert Election("me", NAME).claim(100.0, START) is None


def test_leads_until_the_deadline_after_the_write_was_sent() -> None:
    election = leading(100.0)
    assert election.leads(109.9)
    assert not election.leads(110.0)
    assert election.is_deposed(110.0)
    assert election.pause(109.5) == 0.5


def test_written_after_the_deadline_does_not_lead_again() -> None:
    election = leading(100.0)
    assert election.lease is not None
    assert election.written(election.lease, 109.0, 110.0).is_deposed(110.0)
    assert election.claim(110.0, START) is None


def test_read_of_another_holder_deposes() -> None:
    election = leading(100.0)
    assert election.lease is not None
    taken = election.lease | {"spec": election.lease["spec"] | {"holderIdentity": "other"}}
    election = election.read(taken, 101.0)
    assert election.is_deposed(101.0)
    assert election.claim(101.0, START) is None
    assert election.release(START) is None


def test_read_of_an_annotation_is_no_sign_of_life() -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    lease = {"metadata": {"namespace": "a", "name": "b", "resourceVersion": "1"}, "spec": spec}
    election = Election("me", NAME).read(lease, 100.0)
    touched = lease | {"metadata": {"namespace": "a", "name": "b", "resourceVersion": "2"}}
    election = election.read(touched, 114.0)
    assert election.claim(114.9, START) is None
    claim = election.claim(115.0, START)
    assert claim is not None
    assert claim["metadata"]["resourceVersion"] == "2"


def test_claim_waits_as_long_as_the_holder_asked() -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 60}
    election = Election("me", NAME).read({"metadata": {}, "spec": spec}, 100.0)
    assert election.claim(159.0, START) is None
    assert election.claim(160.0, START) is not None


def test_claim_of_a_lease_that_vanished_waits() -> None:
    """Its holder may not know yet."""
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    election = Election("me", NAME).read({"metadata": {}, "spec": spec}, 100.0).read(None, 105.0)
    assert election.claim(119.0, START) is None
    claim = election.claim(120.0, START)
    assert claim is not None
    assert claim["metadata"] == {"namespace": "octavo-system", "name": "octavo-operator"}


def test_claim_by_a_leader_whose_lease_vanished_makes_it_anew() -> None:
    claim = leading(100.0).read(None, 101.0).claim(101.0, START)
    assert claim is not None
    assert "resourceVersion" not in claim["metadata"]


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": None}, {"holderIdentity": ""}])
def test_claim_of_a_lease_without_a_holder_is_at_once(spec: Manifest) -> None:
    election = Election("me", NAME).read({"metadata": {}, "spec": spec}, 100.0)
    assert election.claim(100.0, START) is not None
