"""Where bench-operator measures: a fresh control plane with fake nodes, and the operator at work on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bench.reconciling_world import (
    MERGE,
    NAMESPACE,
    SERVICES,
    Api,
    ApiError,
    Manifest,
    Process,
    Write,
    children_path,
    create,
)
from cluster import lifecycle
from cluster.layout import Layout
from cluster.progress import Progress
from operator_harness import OperatorProcess, World, operator_world

__all__ = ["Field", "Recording", "Sizes", "new_field", "new_object", "port_of"]

FAKE_NODES = 20
QUIET_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many objects, and how many seconds."""

    small: int = 1000
    large: int = 5000
    burst: int = 500
    edit_seconds: int = 60
    steady_seconds: int = 600
    outage_seconds: int = 600
    error_seconds: int = 120
    secrets: int = 8000
    pods: int = 20_000


@dataclass(frozen=True, slots=True)
class Recording:
    """What the operator wrote: for one object, and how much of each kind for all of them.

    Attributes:
        sample: metadata of the object that was recorded.
        writes: its writes.
        counts: writes by kind until every object of the measured run had its children and a status.
        count: how many objects those were.
        seconds: how long they took.
    """

    sample: Manifest
    writes: tuple[Write, ...]
    counts: dict[str, float]
    count: int
    seconds: float


@dataclass(slots=True)
class Field:
    """A control plane with fake nodes, and the operator at work on it.

    Attributes:
        api: plain calls.
        world: the operator's identity.
        operator: the operator that runs.
        names: the InferenceServices that exist.
        ports: of those that have been edited.
        recording: what the operator wrote for them.
    """

    api: Api
    world: World
    operator: OperatorProcess
    names: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    recording: Recording | None = None

    @property
    def process(self) -> Process:
        """The operator's process."""
        assert self.operator.process is not None
        assert self.operator.process.poll() is None, f"the operator has ended: {self.operator.log.read_text()[-2000:]}"
        return Process(self.operator.process.pid)

    def writes(self) -> dict[str, float]:
        """What the operator has written so far, by kind."""
        prefix = 'octavo_operator_writes_total{kind="'
        samples = self.operator.metrics()
        return {name.removeprefix(prefix)[:-2]: value for name, value in samples.items() if name.startswith(prefix)}

    def work(self) -> dict[str, float]:
        """How often the operator has looked at an object so far, and how many events its watches have delivered."""
        samples = self.operator.metrics()
        counters = {"looks": "octavo_operator_reconciles_total", "events": "octavo_operator_watch_events_total"}
        return {
            what: sum(value for name, value in samples.items() if name.startswith(counter))
            for what, counter in counters.items()
        }

    async def quiet(self) -> None:
        """Waits until nothing changes any more."""
        before, since = await self.api.mutations(), time.monotonic()
        deadline = since + 600
        while time.monotonic() - since < QUIET_SECONDS:
            await asyncio.sleep(2)
            now = await self.api.mutations()
            if now != before:
                before, since = now, time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster did not come to rest within ten minutes")

    def other_port(self, name: str) -> int:
        """What an edit of an object would make of its Service's port."""
        return 8080 if self.ports.get(name, 80) == 80 else 80

    async def edit(self, name: str) -> None:
        """Edits one object: the port, which makes no pods, so that the operator is measured and not the scheduler."""
        port = self.other_port(name)
        await self.api.call("PATCH", f"{SERVICES}/{name}", {"spec": {"service": {"port": port}}}, MERGE)
        self.ports[name] = port


@asynccontextmanager
async def new_field(layout: Layout) -> AsyncIterator[Field]:
    """A fresh control plane, empty but for its nodes; the operator is not started."""
    lifecycle.control_plane(layout, Progress())
    commands = layout.state / "bin"
    with operator_world(commands / "kubectl", commands / "helm", layout.kubeconfig) as world:
        async with Api(layout) as api:
            await create(api, "/api/v1/namespaces", [new_object("v1", "Namespace", NAMESPACE)])
            nodes = [new_object("v1", "Node", f"fake-{number}") for number in range(FAKE_NODES)]
            await create(api, "/api/v1/nodes", nodes)
            await _claim(api)
            await _served(api)
            # As the chart runs it.
            yield Field(api, world, world.operator(f"--lease={world.home}/{world.home}"))


def new_object(version: str, kind: str, name: str, namespace: str | None = None, **fields: Any) -> Manifest:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


async def _served(api: Api) -> None:
    """A kind that was defined a moment ago is answered 429 at first."""
    for _ in range(100):
        with suppress(ApiError):
            await api.call("GET", SERVICES)
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the API server did not serve InferenceServices within 10 s")


async def _claim(api: Api) -> None:
    """A bound claim for the models, of which no file is ever read."""
    shared = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = shared | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}}
    await api.call("POST", "/api/v1/persistentvolumes", new_object("v1", "PersistentVolume", "models", spec=volume))
    spec = shared | {"volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}}
    path = children_path("persistentvolumeclaims")
    await api.call("POST", path, new_object("v1", "PersistentVolumeClaim", "models", NAMESPACE, spec=spec))
    for _ in range(100):
        if (await api.call("GET", f"{path}/models"))["status"].get("phase") == "Bound":
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the claim was not bound within 10 s")


def port_of(manifest: Manifest) -> int:
    """The port of a Service."""
    port: int = manifest["spec"]["ports"][0]["port"]
    return port
