"""One operator's way to the API server: requests that are slow, refused, lost or cut off, and watches that lag."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from octavo_operator.api.names import WATCHED, Kind, Manifest
from octavo_operator.cluster.port import Page
from octavo_operator.errors import ClusterError, Stale, Unavailable
from octavo_operator.selftest.clock import seconds
from octavo_operator.selftest.judge import Judge
from octavo_operator.testing import FakeCluster

__all__ = ["Connection", "Faults", "Watch"]

T = TypeVar("T")


@dataclass(slots=True)
class Faults:
    """What goes wrong between an operator and the API server. The defaults are those of a healthy network.

    Attributes:
        random: decides.
        latency: seconds that each way of a request takes, at least and at most.
        down: makes the error that every request ends in; None while the server answers.
        stale: which part of the writes is answered 409.
        lost: which part of the writes is done and never answered.
        lag: seconds that a watch event takes, at least and at most.
        disorder: whether events overtake each other, and come twice.
        deaf: whether no watch event arrives.
        keeps_deletions: whether watch events that tell of a deletion are lost.
        injected: how many faults there were.
    """

    random: Random
    latency: tuple[float, float] = (0.001, 0.02)
    down: Callable[[], ClusterError] | None = None
    stale: float = 0.0
    lost: float = 0.0
    lag: tuple[float, float] = (0.001, 0.05)
    disorder: bool = False
    deaf: bool = False
    keeps_deletions: bool = False
    injected: int = 0

    def is_due(self, part: float) -> bool:
        """Whether a fault that hits this part of all cases hits now."""
        hits = part > 0 and self.random.random() < part
        self.injected += hits
        return hits


@dataclass(slots=True)
class Connection:
    """A ClusterPort as one operator has it.

    Attributes:
        cluster: what answers.
        faults: what goes wrong.
        judge: sees every write.
        name: of the process.
        writes_left: after how many writes the process dies, the last one done and unanswered; None for never.
        died: set when that has happened.
    """

    cluster: FakeCluster
    faults: Faults
    judge: Judge
    name: str
    writes_left: int | None = None
    died: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        """See ClusterPort."""
        return await self._call(lambda: self.cluster.list_page(kind, namespace, token, owner=owner))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See ClusterPort."""
        return await self._call(lambda: self.cluster.get(kind, namespace, name))

    async def apply(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._write(manifest, lambda: self.cluster.apply(manifest, manager=manager))

    async def remove(self, kind: Kind, manifest: Manifest) -> None:
        """See ClusterPort."""
        named = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": manifest["metadata"]}
        await self._write(named, lambda: self.cluster.remove(kind, manifest))

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        named = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"namespace": namespace, "name": name}}
        self.judge.allow(named)  # the apply that follows finds everything in place, and takes over what it owns
        return await self._write(named, lambda: self.cluster.merge(kind, namespace, name, patch, manager=manager))

    async def scale(self, kind: Kind, manifest: Manifest, replicas: int, *, manager: str) -> None:
        """See ClusterPort. No service of the selftest asks for autoscaling."""
        await self._write(manifest, lambda: self.cluster.scale(kind, manifest, replicas, manager=manager))

    async def update(self, manifest: Manifest) -> Manifest:
        """See ClusterPort. It is how the Lease is written, which is no matter of the judge."""
        return await self._call(lambda: self.cluster.update(manifest))

    async def record(self, event: Manifest) -> None:
        """See ClusterPort."""
        await self._write(event, lambda: self.cluster.record(event))

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._write(manifest, lambda: self.cluster.apply_status(manifest, manager=manager))

    async def _write(self, manifest: Manifest, do: Callable[[], Awaitable[T]]) -> T:
        async def judged() -> T:
            if self.faults.is_due(self.faults.stale):
                raise Stale("the object has been modified; please apply your changes to the latest version")
            with self.judge.watching(manifest, self.name):
                answer = await do()
            if self.writes_left is not None:
                self.writes_left -= 1
                if self.writes_left <= 0:
                    self.died.set()
                    await asyncio.Event().wait()
            return answer

        answer = await self._call(judged)
        if self.faults.is_due(self.faults.lost):
            self.judge.allow(manifest)
            raise Unavailable("the connection was cut off before the answer came")
        return answer

    async def _call(self, do: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self.faults.random.uniform(*self.faults.latency))
        if self.faults.down is not None:
            self.faults.injected += 1
            raise self.faults.down()
        answer = await do()
        await asyncio.sleep(self.faults.random.uniform(*self.faults.latency))
        return answer


@dataclass(slots=True)
class Watch:
    """What kopf is to an operator: it delivers events, late at times.

    Attributes:
        cluster: what is watched.
        faults: what goes wrong.
        sink: takes (kind, event type, object).
        is_open: whether anything is delivered; a dead operator hears nothing.
    """

    cluster: FakeCluster
    faults: Faults
    sink: Callable[[Kind, str | None, Manifest], None]
    is_open: bool = True
    _last: float = 0.0

    def open(self) -> None:
        """Lists what there is, then follows."""
        self.cluster.subscribe(self._hear)
        self.relist()

    def relist(self) -> None:
        """What kopf does at its start and after a 410: it reports what exists, and not what has vanished."""
        for kind in WATCHED:
            for manifest in self.cluster.listed(kind):
                self._send(
                    kind, None, {name: one for name, one in manifest.items() if name not in {"apiVersion", "kind"}}
                )

    def _hear(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        if kind not in WATCHED:
            return
        if self.faults.deaf or (self.faults.keeps_deletions and event_type == "DELETED"):
            self.faults.injected += 1
            return
        self._send(kind, event_type, manifest)
        if self.faults.disorder and self.faults.is_due(0.3):
            self._send(kind, event_type, manifest)

    def _send(self, kind: Kind, event_type: str | None, manifest: Manifest) -> None:
        due = seconds() + self.faults.random.uniform(*self.faults.lag)
        if not self.faults.disorder:
            self._last = due = max(due, self._last)
        asyncio.get_running_loop().call_at(due, self._deliver, kind, event_type, manifest)

    def _deliver(self, kind: Kind, event_type: str | None, manifest: Manifest) -> None:
        if self.is_open:
            self.sink(kind, event_type, manifest)
