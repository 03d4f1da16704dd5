"""A cluster in memory with users, workloads and operators, all on the clock of the running loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import (
    CHILDREN,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    OWNER_LABEL,
    SERVICE,
    UPDATE_ANNOTATION,
    Key,
    Kind,
    Manifest,
)
from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.core.store import Store
from octavo_operator.handlers.controller import Controller
from octavo_operator.handlers.lead import Elector, Fenced
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile import Reconciler
from octavo_operator.selftest.clock import moment, now, seconds
from octavo_operator.selftest.connection import Connection, Faults, Watch
from octavo_operator.selftest.judge import Judge, ready_of
from octavo_operator.selftest.workloads import Fate, Workloads
from octavo_operator.testing import FakeCluster, inference_service

__all__ = ["NAMESPACE", "Operator", "World"]

NAMESPACE = "default"

QUIET_SECONDS = 420.0
"""How long nothing may change until the world is at rest: longer than the longest backoff (375 s) and than the time
between two complete lists, so that each rest also shows that a list writes nothing."""

RESTLESS_SECONDS = 1200.0
"""After this the world is taken never to come to rest."""


VANDALISM: dict[Kind, tuple[Callable[[Manifest], object], ...]] = {
    DEPLOYMENT: (
        lambda live: live["spec"].update(replicas=7),
        lambda live: live["spec"].update(paused=True),
        lambda live: live["spec"]["strategy"].update(rollingUpdate={"maxSurge": 5, "maxUnavailable": 5}),
        lambda live: live["spec"]["template"]["spec"]["containers"][0].update(image="other"),
    ),
    SERVICE: (
        lambda live: live["spec"]["selector"].update({OWNER_LABEL: "other"}),
        lambda live: live["spec"]["ports"][0].update(port=4),
        lambda live: live["spec"]["ports"][0].update(targetPort=9),
    ),
    NETWORK_POLICY: (
        lambda live: live["spec"].update(ingress=[{}]),
        lambda live: live["spec"]["podSelector"]["matchLabels"].update({OWNER_LABEL: "other"}),
    ),
    DISRUPTION_BUDGET: (lambda live: live["spec"].update(maxUnavailable=0),),
}
"""What somebody may do to the fields of a child that are ours."""


@dataclass(slots=True)
class Operator:
    """One process of the operator.

    Attributes:
        connection: its way to the API server.
        watch: what it hears of it.
        controller: what works in it.
        elector: its part in the election; None when it is alone.
        task: everything it does.
    """

    connection: Connection
    watch: Watch
    controller: Controller
    elector: Elector | None
    task: asyncio.Task[None]

    async def kill(self) -> None:
        """Ends it in the middle of whatever it does."""
        self.watch.is_open = False
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def _run(controller: Controller, elector: Elector | None) -> None:
    """The end of one part is the end of all, as in handlers/run.py."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controller.run())
        if elector is not None:
            tasks.create_task(elector.run())


class World:
    """Where a promise is put to the test.

    Attributes:
        random: decides everything that is left to chance.
        cluster: the API server, for users and for those who meddle.
        faults: what goes wrong between it and the operators.
        workloads: makes pods out of Deployments.
        judge: says what is broken.
        operators: those that run.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cluster = FakeCluster(moment)
        self.faults = Faults(random)
        self.workloads = Workloads(self.cluster, random)
        self.judge = Judge(self.cluster, self.workloads.ready, Fate.WELL)
        self.operators: list[Operator] = []
        self._collects = False
        self.workloads.start()
        self.judge.start()
        self.cluster.subscribe(self._collect_later)

    def start_operator(self, image: str = Fate.WELL, *, faults: Faults | None = None, alone: bool = True) -> Operator:
        """Starts a process of the operator; it knows nothing yet.

        Args:
            image: the runtime's image that it is installed with.
            faults: what goes wrong for it; None for what goes wrong for all.
            alone: whether it leads without asking.
        """
        self.judge.image = image
        name, faults = f"operator {len(self.operators) + 1}", faults or self.faults
        clock = asyncio.get_running_loop().time
        connection = Connection(self.cluster, faults, self.judge, name)
        elector = None if alone else Elector(connection, (NAMESPACE, "octavo-operator"), name, clock=clock)
        port = connection if elector is None else Fenced(connection, elector)
        store, metrics = Store(), Metrics()
        autoscaler = Autoscaler(port, store, Scraper(), metrics, notify=lambda key: controller.look_at(key))  # noqa: PLW0108 it comes later
        reconciler = Reconciler(
            port, store, metrics, autoscaler=autoscaler, runtime_image=image, now=now, monotonic=clock
        )
        turn = None if elector is None else elector.elected
        controller = Controller(connection, store, reconciler.reconcile, metrics, turn=turn)
        watch = Watch(self.cluster, faults, controller.on_event)
        operator = Operator(connection, watch, controller, elector, asyncio.create_task(_run(controller, elector)))
        watch.open()
        self.operators.append(operator)
        return operator

    async def stop(self) -> None:
        """Ends everything."""
        for operator in self.operators:
            await operator.kill()

    def create(self, name: str, **spec: Any) -> Key:
        """A user creates an object; its model needs no claim unless one is given."""
        manifest = inference_service(name, NAMESPACE, **{"model": {"uri": "file:///model"}} | spec)
        stored = self.cluster.put(manifest)
        key = NAMESPACE, name
        self.judge.written[key] = {"annotations": {}, "spec": stored["spec"]}
        return key

    def create_many(self, count: int, **spec: Any) -> list[Key]:
        """A user creates objects of one or two replicas."""
        return [
            self.create(f"model-{number}", **{"replicas": self.random.randint(1, 2)} | spec) for number in range(count)
        ]

    def edit(self, key: Key, **spec: Any) -> None:
        """A user sets fields of the spec."""
        stored = self.cluster.edit(INFERENCE_SERVICE, key, lambda live: live["spec"].update(spec))
        self.judge.written[key]["spec"] = stored["spec"]

    def edit_somehow(self, key: Key) -> None:
        """A user changes something."""
        change: dict[str, Any] = self.random.choice(
            [
                {"replicas": self.random.randint(0, 3)},
                {"runtime": {"maxNumSeqs": self.random.randint(1, 99)}},
                {"runtime": {"image": self.random.choice([Fate.WELL, Fate.WELL_TOO])}},
                {"service": {"type": "ClusterIP", "port": self.random.randint(80, 99)}},
                {"suspend": self.random.random() < 0.5},
                {"podTemplate": {"metadata": {"labels": {"team": self.random.choice("abc")}}}},
            ]
        )
        self.edit(key, **change)

    def ask_for_update(self, key: Key, word: str) -> None:
        """A user asks for pods as the operator renders them now."""
        annotations = {UPDATE_ANNOTATION: word}
        self.judge.written[key]["annotations"] = annotations
        self.cluster.edit(INFERENCE_SERVICE, key, lambda live: live["metadata"].update(annotations=annotations))

    def delete(self, key: Key) -> None:
        """A user deletes an object; the garbage collector comes later."""
        del self.judge.written[key]
        self.cluster.delete(INFERENCE_SERVICE, key, collect=False)

    def take_name(self, kind: Kind, name: str, **labels: str) -> Manifest:
        """Somebody creates an object of their own."""
        template = {
            "metadata": {"labels": {"app": "theirs"}},
            "spec": {"containers": [{"name": "c", "image": "theirs"}]},
        }
        spec: Manifest = {"theirs": True}
        if kind is SERVICE:
            spec = {"ports": [{"port": 5, "protocol": "TCP"}]}
        elif kind is DEPLOYMENT:
            spec = {"replicas": 0, "strategy": {"type": "Recreate"}, "template": template}
        metadata = {"namespace": NAMESPACE, "name": name, "labels": labels}
        return self.cluster.put({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec})

    def vandalise(self, key: Key) -> bool:
        """Somebody deletes a child of this object, or changes a field of it that is ours, if there is one."""
        kind = self.random.choice(CHILDREN)
        if self.cluster.peek(kind, key) is None:
            return False
        changes: list[Callable[[Manifest], object]] = [
            lambda live: live["metadata"].update(labels={}),
            lambda live: live["metadata"].pop("ownerReferences", None),
            *VANDALISM[kind],
        ]
        choice = self.random.randrange(len(changes) + 1)
        if choice == len(changes):
            self.cluster.delete(kind, key)
        else:
            self.cluster.edit(kind, key, changes[choice])
        return True

    def expect_ready(self, key: Key, reason: Reason) -> None:
        """Ready must have this reason now."""
        told = self.ready_reason(key)
        if told != reason:
            self.judge.fail(f"{key[1]}: Ready tells {told or 'nothing'} instead of {reason}")

    def ready_reason(self, key: Key) -> str:
        """The reason of Ready; empty when there is none."""
        service = self.cluster.peek(INFERENCE_SERVICE, key)
        return ready_of(service)[1] if service else ""

    def applied_replicas(self, key: Key) -> int:
        """How many pods the Deployment of an object should have; 0 when there is none."""
        deployment = self.cluster.peek(DEPLOYMENT, key)
        return int(deployment["spec"]["replicas"]) if deployment else 0

    def _collect_later(self, kind: Kind, event_type: str, _: Manifest) -> None:
        """The garbage collector comes for what has lost its owner, and for what is made for one that is gone."""
        if self._collects or ((kind, event_type) != (INFERENCE_SERVICE, "DELETED") and event_type != "ADDED"):
            return
        self._collects = True
        asyncio.get_running_loop().call_later(self.random.uniform(0.1, 3.0), self._collect)

    def _collect(self) -> None:
        self._collects = False
        self.cluster.collect()

    async def until(self, condition: Callable[[], bool], *, within: float = 600.0) -> None:
        """Waits for a state of the world, at most for some time."""
        began = seconds()
        while not condition() and seconds() - began < within:  # noqa: ASYNC110 states of the fake set no events
            await asyncio.sleep(0.1)

    async def rest(self, *, within: float | None = None, applied: float | None = None) -> float:
        """Waits until nothing changes any more, and lets the judge look at everything.

        Args:
            within: seconds in which everything must have come to rest, pods and status included, if that is promised.
            applied: seconds in which the children must have got their last change, if that is promised.

        Returns:
            The seconds until the last change.
        """
        began = seconds()
        while (due := max(began, self.judge.changed_at) + QUIET_SECONDS) > seconds():
            if seconds() - began > RESTLESS_SECONDS:
                self.judge.fail("it never comes to rest")
                break
            await asyncio.sleep(due - seconds())
        took = max(0.0, self.judge.changed_at - began)
        if within is not None and took > within:
            self.judge.fail(f"{took:.1f} s until everything was at rest, {within:.0f} s are promised")
        if applied is not None and self.judge.applied_at - began > applied:
            late = self.judge.applied_at - began
            self.judge.fail(f"{late:.1f} s until the last child was put right, {applied:.0f} s are promised")
        for operator in self.operators:
            if operator.task.done() and operator.watch.is_open:
                self.judge.fail(f"the operator ended: {operator.task.exception()!r}")
        self.judge.check()
        return took

    def uids(self, kind: Kind) -> set[str]:
        """The uids of all objects of a kind."""
        return {one["metadata"]["uid"] for one in self.cluster.all(kind)}
