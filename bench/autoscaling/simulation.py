"""A simulated cluster: a router, replicas that start and drain, scrapes that may be lost, and a policy that decides.

    arrivals ──► router ──► replicas (replica.py) ──► scrapes every 5 s ──► policy ──► count ──► pods start, drain

The router sends each request to the replica with the fewest outstanding ones, or to each in turn; a new replica gets its
share of new requests at once. (Kubernetes' own Service spreads connections, not requests; its balance is worse.) What
waits at a replica stays there. A request that comes to a full queue is refused, and nobody asks again.

A pod is ready when the start-up time has passed: nodes with free devices are always there, as many as are asked for.
When the count falls, pods that start go first, at once, then those with the fewest streams; they get nothing new and
finish what they have, however long that takes, and cost device time until then. At one moment pods become ready first,
then they are scraped, then the policy decides, on scrapes that are no older than that: real pipelines lag behind, and
that is left out for all policies alike.

Beside the policy runs its shadow, a second one that sees every scrape: a reduction that only the first of them makes is
caused by missing data.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bench.autoscaling.policy import SCRAPE_SECONDS, PodView, Policy, Sample
from bench.autoscaling.replica import Demand, Machine, Replica
from bench.autoscaling.traces import HOUR, Recorded, Trace

__all__ = ["Decision", "Routing", "Run", "Setup", "simulate"]

Routing = Literal["least-outstanding", "round-robin"]

_NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all policies.

    Attributes:
        start_up: Seconds from a pod's creation until it is ready.
        minimum: Fewest replicas.
        maximum: Most replicas.
        routing: How requests are spread.
        victim: Which ready pod goes when the count falls.
        machine: What a replica can do.
    """

    start_up: float = 180.0
    minimum: int = 1
    maximum: int = 10
    routing: Routing = "least-outstanding"
    victim: Literal["fewest-streams", "newest"] = "fewest-streams"
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True, slots=True)
class Decision:
    """A change of the count.

    Attributes:
        time: Seconds since the trace began.
        before: The count that was asked for.
        after: The count that is asked for now.
        shadow: What the policy would have decided with every scrape.
    """

    time: float
    before: int
    after: int
    shadow: int


@dataclass(slots=True)
class Run:
    """All that happened in a run.

    Attributes:
        demand: The requests, with what became of each.
        worth: The load of each second, in replicas' worth.
        initial: Replicas at the start.
        decisions: The changes of the count.
        lives: Of each pod: when it was created, when it was ready (infinite: never), when it was gone.
        waiting: Requests that waited and replicas that were ready, at each round of scrapes.
        refused: Requests that found a full queue.
        outstanding: Requests that had come and not ended at the end.
    """

    demand: Demand
    worth: list[float]
    initial: int
    decisions: list[Decision] = field(default_factory=list)
    lives: list[tuple[float, float, float]] = field(default_factory=list)
    waiting: list[tuple[float, int, int]] = field(default_factory=list)
    refused: int = 0
    outstanding: int = 0


@dataclass(slots=True, eq=False)
class _Pod:
    """A pod and its replica."""

    uid: str
    created: float
    ready_at: float
    replica: Replica
    is_ready: bool = False
    draining: bool = False
    seen: Sample | None = None  # the newest scrape that came through
    newest: Sample | None = None  # the newest scrape

    def view(self, *, complete: bool) -> PodView:
        return PodView(
            uid=self.uid,
            created=self.created,
            ready_at=self.ready_at if self.is_ready else None,
            draining=self.draining,
            sample=self.newest if complete else self.seen,
        )


def simulate(trace: Trace | Recorded, seed: int, make_policy: Callable[[], Policy], setup: Setup) -> Run:
    """Runs a trace against a policy; the same arguments give the same run."""
    demand, worth = trace.demand(seed)
    return _Cluster(trace, demand, worth.tolist(), make_policy, setup, seed).run()


class _Cluster:
    """The state of a run."""

    def __init__(
        self,
        trace: Trace | Recorded,
        demand: Demand,
        worth: list[float],
        make_policy: Callable[[], Policy],
        setup: Setup,
        seed: int,
    ) -> None:
        self._setup = setup
        self._loss = trace.loss
        self._rng = np.random.default_rng([seed, 1])
        self._policy = make_policy()
        self._shadow = make_policy()
        self._run = Run(demand, worth, min(setup.maximum, max(setup.minimum, trace.initial)))
        self._desired = self._run.initial
        self._starting: list[_Pod] = []
        # Those that are ready or drain, with lists in step that the loop over events reads.
        self._pods: list[_Pod] = []
        self._next_at: list[float] = []
        self._outstanding: list[float] = []  # infinite: draining
        self._arrived = 0  # requests so far
        self._turn = 0  # of round robin
        self._count = 0
        for _ in range(self._desired):
            self._create(-setup.start_up)
        while self._starting:
            self._serve(self._starting.pop(0))

    def run(self) -> Run:
        """From the first second to the last."""
        decided = 0
        for tick in range(int(HOUR / SCRAPE_SECONDS)):
            now = tick * SCRAPE_SECONDS
            self._until(now)
            self._scrape(now)
            if now >= decided * self._policy.interval:
                decided += 1
                self._decide(now)
        self._until(HOUR)
        run = self._run
        run.lives += [(pod.created, pod.ready_at, HOUR) for pod in self._pods]
        run.lives += [(pod.created, _NEVER, HOUR) for pod in self._starting]
        run.outstanding = sum(pod.replica.outstanding for pod in self._pods)
        return run

    def _until(self, end: float) -> None:
        """Everything that happens before a moment, and the pods that are ready at it."""
        while self._starting and self._starting[0].ready_at <= end:
            self._events(self._starting[0].ready_at)
            self._serve(self._starting.pop(0))
        self._events(end)

    def _events(self, end: float) -> None:
        """Arrivals and steps before a moment."""
        pods, next_at, outstanding = self._pods, self._next_at, self._outstanding
        is_least = self._setup.routing == "least-outstanding"
        arrivals, number = self._run.demand.arrivals, self._arrived
        last = bisect_left(arrivals, end, lo=number)
        while True:
            soonest = min(next_at)
            while number < last and arrivals[number] <= soonest:
                index = outstanding.index(min(outstanding)) if is_least else self._next_in_turn()
                replica = pods[index].replica
                if replica.arrive(number, arrivals[number]):
                    outstanding[index] += 1
                    next_at[index] = replica.next_at
                    soonest = min(soonest, replica.next_at)
                else:
                    self._run.refused += 1
                number += 1
            if soonest >= end:
                break
            index = next_at.index(soonest)
            replica = pods[index].replica
            replica.advance()
            next_at[index] = replica.next_at
            if outstanding[index] != _NEVER:
                outstanding[index] = replica.outstanding
            elif not replica.outstanding:
                self._remove(index, soonest)
        self._arrived = number

    def _next_in_turn(self) -> int:
        ready = [index for index, pod in enumerate(self._pods) if not pod.draining]
        self._turn += 1
        return ready[self._turn % len(ready)]

    def _scrape(self, now: float) -> None:
        loss = self._loss
        share = loss.share if loss is not None and loss.start <= now < loss.end else 0.0
        waiting = 0
        for pod in self._pods:
            pod.newest = pod.replica.scrape(now)
            waiting += pod.newest.waiting
            if self._rng.random() >= share:
                pod.seen = pod.newest
        ready = sum(not pod.draining for pod in self._pods)
        self._run.waiting.append((now, waiting, ready))

    def _decide(self, now: float) -> None:
        setup = self._setup
        pods = sorted(self._pods + self._starting, key=lambda pod: pod.created)
        before = self._desired
        wanted, complete = (
            max(setup.minimum, min(setup.maximum, policy.decide(now, before, views)))
            for policy, views in (
                (self._policy, [pod.view(complete=False) for pod in pods]),
                (self._shadow, [pod.view(complete=True) for pod in pods]),
            )
        )
        if wanted == before:
            return
        self._desired = wanted
        self._run.decisions.append(Decision(now, before, wanted, complete))
        for _ in range(wanted - before):
            self._create(now)
        for _ in range(before - wanted):
            self._release(now)
        self._until(now)  # with no start-up time they are ready at once

    def _create(self, now: float) -> None:
        replica = Replica(self._run.demand, self._setup.machine)
        self._starting.append(_Pod(f"pod-{self._count}", now, now + self._setup.start_up, replica))
        self._count += 1

    def _serve(self, pod: _Pod) -> None:
        pod.is_ready = True
        self._pods.append(pod)
        self._next_at.append(_NEVER)
        self._outstanding.append(0)

    def _release(self, now: float) -> None:
        """Lets one pod go."""
        if self._starting:
            pod = self._starting.pop()
            self._run.lives.append((pod.created, _NEVER, now))
            return
        candidates = [index for index, pod in enumerate(self._pods) if not pod.draining]
        if self._setup.victim == "newest":
            index = max(candidates, key=lambda index: self._pods[index].ready_at)
        else:
            index = min(candidates, key=lambda index: self._outstanding[index])
        self._pods[index].draining = True
        self._outstanding[index] = _NEVER
        if not self._pods[index].replica.outstanding:
            self._remove(index, now)

    def _remove(self, index: int, now: float) -> None:
        pod = self._pods.pop(index)
        del self._next_at[index], self._outstanding[index]
        self._run.lives.append((pod.created, pod.ready_at, now))
