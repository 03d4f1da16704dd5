"""The scenarios of bench-operator. Each takes a Field, measures, and leaves it as it was but for the objects' replicas."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bench.reconciling_ceiling import by_kind, ceiling_seconds
from bench.reconciling_world import (
    MERGE,
    NAMESPACE,
    SERVICES,
    Api,
    ApiError,
    Arrivals,
    Manifest,
    Process,
    Proxy,
    Write,
    children_path,
    create,
    inference_service,
    until,
)
from bench.report import percentiles, say
from cluster import lifecycle
from cluster.layout import Layout
from cluster.progress import Progress
from operator_harness import OperatorProcess, World, operator_world

__all__ = ["ON_A_POPULATION", "Field", "Recording", "Sizes", "ceiling", "new_field", "populate"]

WORKERS = 4
"""Looks that the operator runs at once, by its default, and writes that the ceiling has under way."""

EDITS_PER_SECOND = 10
FAKE_NODES = 20
LOST_SECONDS = 30.0
"""When an edit that no child shows counts as lost."""

QUIET_SECONDS = 8.0
RESYNC_SECONDS = 300.0


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
        replicas: of those that have been edited.
    """

    api: Api
    world: World
    operator: OperatorProcess
    names: list[str] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)

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

    async def scale(self, name: str, replicas: int) -> None:
        """Edits one object."""
        await self.api.call("PATCH", f"{SERVICES}/{name}", {"spec": {"replicas": replicas}}, MERGE)
        self.replicas[name] = replicas


@asynccontextmanager
async def new_field(layout: Layout) -> AsyncIterator[Field]:
    """A fresh control plane, empty but for its nodes; the operator is not started."""
    lifecycle.control_plane(layout, Progress())
    commands = layout.state / "bin"
    with operator_world(commands / "kubectl", commands / "helm", layout.kubeconfig) as world:
        async with Api(layout) as api:
            await create(api, "/api/v1/namespaces", [_object("v1", "Namespace", NAMESPACE)])
            nodes = [_object("v1", "Node", f"fake-{number}") for number in range(FAKE_NODES)]
            await create(api, "/api/v1/nodes", nodes)
            await _claim(api)
            await _served(api)
            # As the chart runs it.
            yield Field(api, world, world.operator(f"--lease={world.home}/{world.home}"))


def _object(version: str, kind: str, name: str, namespace: str | None = None, **fields: Any) -> Manifest:
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
    await api.call("POST", "/api/v1/persistentvolumes", _object("v1", "PersistentVolume", "models", spec=volume))
    spec = shared | {"volumeName": "models", "resources": {"requests": {"storage": "1Gi"}}}
    path = children_path("persistentvolumeclaims")
    await api.call("POST", path, _object("v1", "PersistentVolumeClaim", "models", NAMESPACE, spec=spec))
    for _ in range(100):
        if (await api.call("GET", f"{path}/models"))["status"].get("phase") == "Bound":
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the claim was not bound within 10 s")


async def _sample(field: Field) -> tuple[Manifest, tuple[Write, ...]]:
    """What the operator writes for one object until its pods serve; the object is gone afterwards."""
    name = "recorded-sample"
    with Proxy(field.world.cluster()) as proxy:
        operator = field.world.operator(server=proxy.url)
        operator.start()
        arrivals = Arrivals()
        async with field.api.watching(SERVICES, arrivals):
            sample: Manifest = (await field.api.call("POST", SERVICES, inference_service(name)))["metadata"]
            await until(lambda: name in arrivals.ready, 60, "the recorded object to be ready")
        await asyncio.sleep(1)  # an Event may follow the status
        operator.stop()
        writes = tuple(proxy.writes)
    await field.api.call("DELETE", f"{SERVICES}/{name}")
    return sample, writes


async def populate(field: Field, count: int, figures: dict[str, float]) -> Recording:
    """Starts the operator, creates objects all at once, and measures until each has its children and a status."""
    sample, writes = await _sample(field)
    field.operator.start()
    await field.quiet()
    say(f"  creating {count} objects")
    names = [f"isvc-{number:05d}" for number in range(count)]
    arrivals, cpu, before = Arrivals(), field.process.cpu_seconds(), field.writes()
    async with field.api.watching(SERVICES, arrivals):
        began = time.monotonic()
        await create(field.api, SERVICES, (inference_service(name) for name in names))
        created = time.monotonic() - began
        told = lambda: f"{len(arrivals.told)} have a status, {len(arrivals.ready)} are ready"  # noqa: E731
        await until(lambda: len(arrivals.told) == count, 60 + count / 5, "every object to have a status", told)
        counts = {kind: value - before.get(kind, 0) for kind, value in field.writes().items()}
        seconds = max(arrivals.told.values()) - began
        for plural in ("deployments", "services"):
            assert len(await field.api.names(children_path(plural))) == count, f"not every object has its {plural}"
        await until(lambda: len(arrivals.ready) == count, 60 + count / 5, "every object to be ready", told)
        figures[f"serving_{count}_s"] = max(arrivals.ready.values()) - began
    field.names = names
    figures[f"created_{count}_s"], figures[f"reconciled_{count}_s"] = created, seconds
    await field.quiet()
    figures[f"cpu_ms_per_object_{count}"] = 1e3 * (field.process.cpu_seconds() - cpu) / count
    written = {kind: value - before.get(kind, 0) for kind, value in field.writes().items()}
    figures[f"writes_per_object_{count}"] = sum(written.values()) / count
    say(f"    {seconds:.1f} s; writes per object until then and until all served:")
    for kind, value in written.items():
        say(f"      {kind} {counts.get(kind, 0) / count:.2f}, {value / count:.2f}")
    return Recording(sample, writes, counts, count, seconds)


async def ceiling(field: Field, recording: Recording, figures: dict[str, float]) -> None:
    """Sends the same writes without an operator."""
    say(f"  the ceiling: {', '.join(by_kind(recording.writes))} of {recording.count} objects by a plain client")
    count = recording.count
    names = [f"isvc-{number:05d}" for number in range(count)]
    async with field.api.watching(SERVICES, Arrivals()):
        seconds = await ceiling_seconds(
            field.api, recording.writes, recording.sample, recording.counts, names=names, workers=WORKERS
        )
    figures[f"ceiling_{count}_s"] = seconds
    figures[f"reconciled_{count}_vs_ceiling"] = recording.seconds / seconds
    say(f"    {seconds:.1f} s")


async def _edit(field: Field, going_on: Callable[[], bool], figures: dict[str, float], name: str) -> None:
    """Edits random objects at a steady rate, and measures from the API server's answer to the child's change."""
    sent: dict[str, tuple[int, float]] = {}
    latencies: list[float] = []
    requests: list[float] = []

    def on_deployment(_: str, manifest: Manifest, now: float) -> None:
        edited = sent.get(manifest["metadata"]["name"])
        if edited is not None and manifest["spec"]["replicas"] == edited[0]:
            del sent[manifest["metadata"]["name"]]
            latencies.append(max(0.0, now - edited[1]))

    async def edit(target: str) -> None:
        replicas = 3 - field.replicas.get(target, 1)
        began = time.monotonic()
        sent[target] = replicas, began  # until the answer is there; the child can be faster
        await field.scale(target, replicas)
        answered = time.monotonic()
        requests.append(answered - began)
        if target in sent:
            sent[target] = replicas, answered

    count = 0
    order: Iterator[str] = iter(())
    async with field.api.watching(children_path("deployments"), on_deployment), asyncio.TaskGroup() as tasks:
        await asyncio.sleep(2)  # what exists comes first
        began = time.monotonic()
        while going_on():
            target = next(order, None)
            if target is None:
                order = iter(random.sample(field.names, len(field.names)))
                continue
            if target not in sent:
                tasks.create_task(edit(target))
                count += 1
            await asyncio.sleep(max(0.0, began + count / EDITS_PER_SECOND - time.monotonic()))
        with suppress(TimeoutError):
            await until(lambda: not sent, LOST_SECONDS, "the last edits")
    figures[f"{name}_lost"] = len(sent)
    figures |= percentiles(f"{name}_s", latencies + [LOST_SECONDS] * len(sent))
    figures |= percentiles(f"{name}_request_s", requests)
    figures[f"{name}_p99_s"] = figures.pop(f"{name}_s_p99")
    say(
        f"    {count} edits, p50 {figures[f'{name}_s_p50']:.3f} s, p99 {figures[f'{name}_p99_s']:.3f} s, {len(sent)} lost"
    )


async def edits(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """Ten edits a second."""
    await field.quiet()
    cpu, end = field.process.cpu_seconds(), time.monotonic() + sizes.edit_seconds + 2
    await _edit(field, lambda: time.monotonic() < end, figures, "event_to_apply")
    await field.quiet()
    count = sizes.edit_seconds * EDITS_PER_SECOND
    figures["cpu_ms_per_edit"] = 1e3 * (field.process.cpu_seconds() - cpu) / count


async def burst(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """Ten edits a second while more objects are created."""
    await field.quiet()
    names = [f"burst-{number:05d}" for number in range(sizes.burst)]
    arrivals = Arrivals()

    async def more() -> None:
        await asyncio.sleep(3)
        await create(field.api, SERVICES, (inference_service(name) for name in names))

    async with field.api.watching(f"{SERVICES}", arrivals), asyncio.TaskGroup() as tasks:
        tasks.create_task(more())
        end = time.monotonic() + 600
        open_ = lambda: not all(name in arrivals.told for name in names) and time.monotonic() < end  # noqa: E731
        await _edit(field, open_, figures, "event_to_apply_under_burst")
    for name in names:
        await field.api.call("DELETE", f"{SERVICES}/{name}")


async def steady(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """Nothing happens: what is written, and what it costs."""
    await field.quiet()
    say(f"  nothing happens for {sizes.steady_seconds} s")
    before, cpu, began = await field.api.mutations(), field.process.cpu_seconds(), time.monotonic()
    await asyncio.sleep(sizes.steady_seconds)
    after, seconds = await field.api.mutations(), time.monotonic() - began
    written = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    if written:
        say(f"    written by whomever: {written}")
    figures["steady_writes_per_min"] = sum(written.values()) * 60 / seconds
    figures["idle_cpu_percent"] = 100 * (field.process.cpu_seconds() - cpu) / seconds
    figures["rss_mb"] = field.process.memory_mb()
    say(f"    {figures['idle_cpu_percent']:.2f} % of a core, {figures['rss_mb']:.0f} MB")


async def _restarted_mb(field: Field) -> float:
    field.operator.stop()
    field.operator.start()
    await field.quiet()
    return field.process.memory_mb()


async def foreign(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """Objects that are none of the operator's business, while it runs and while it starts."""
    before = await _restarted_mb(field)
    say(f"  creating {sizes.secrets} Secrets and {sizes.pods} pods that are nobody's")
    await create(field.api, "/api/v1/namespaces", [_object("v1", "Namespace", "elsewhere")])
    data = {"stringData": {"text": "x" * 1000}}
    secrets = (_object("v1", "Secret", f"s-{number}", "elsewhere", **data) for number in range(sizes.secrets))
    await create(field.api, "/api/v1/namespaces/elsewhere/secrets", secrets)
    # No scheduler places them: it is their number that counts.
    spec = {"schedulerName": "nobody", "containers": [{"name": "server", "image": "none"}]}
    pods = (_object("v1", "Pod", f"p-{number}", "elsewhere", spec=spec) for number in range(sizes.pods))
    await create(field.api, "/api/v1/namespaces/elsewhere/pods", pods)
    await field.quiet()
    running = field.process.memory_mb()
    after = await _restarted_mb(field)
    figures["rss_foreign_objects_delta_mb"] = max(running, after) - before
    figures["rss_restarted_mb"] = before
    say(f"    {before:.0f} MB before, {running:.0f} MB while they came, {after:.0f} MB after a start beside them")


@contextmanager
def _through_proxy(field: Field) -> Iterator[Proxy]:
    """The operator sees the API server through a proxy meanwhile. It holds no Lease: losing one ends the process."""
    field.operator.stop()
    direct = field.operator
    with Proxy(field.world.cluster()) as proxy:
        field.operator = field.world.operator(f"--resync-seconds={RESYNC_SECONDS:.0f}", server=proxy.url)
        field.operator.start()
        try:
            yield proxy
        finally:
            field.operator.stop()
            field.operator = direct
    field.operator.start()


async def _mended(field: Field, fail: Callable[[], Awaitable[None]], heal: Callable[[], Awaitable[None]]) -> float:
    """Edits objects, deletes some and deletes children while something is wrong; the seconds from healing to harmony."""
    edited, bereft, gone = (field.names[start : start + 5] for start in (0, 5, 10))
    wanted = {name: 3 - field.replicas.get(name, 1) for name in edited}
    await fail()
    for name in edited:
        await field.scale(name, wanted[name])
    for name in bereft:
        await field.api.call("DELETE", f"{children_path('services')}/{name}")
    for name in gone:
        await field.api.call("DELETE", f"{SERVICES}/{name}")
    field.names = [name for name in field.names if name not in gone]
    await heal()
    began = time.monotonic()
    while time.monotonic() - began < RESYNC_SECONDS + 60:
        shown = [await field.api.call("GET", f"{children_path('deployments')}/{name}") for name in edited]
        known = field.operator.metrics()['octavo_operator_objects{kind="InferenceService"}']
        if (
            all(one["spec"]["replicas"] == wanted[one["metadata"]["name"]] for one in shown)
            and set(bereft) <= await field.api.names(children_path("services"))
            and known == len(await field.api.names(SERVICES))
        ):
            assert field.process.pid, "it must not have ended"
            return time.monotonic() - began
        await asyncio.sleep(0.2)
    say("    not mended in time")
    return time.monotonic() - began


async def outage(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The API server is away, for the operator; the world goes on."""
    with _through_proxy(field) as proxy:
        await field.quiet()
        say(f"  no API server for {sizes.outage_seconds} s")

        async def fail() -> None:
            proxy.down = True
            proxy.cut_watches()

        async def heal() -> None:
            await asyncio.sleep(sizes.outage_seconds)
            proxy.down = False

        figures["outage_recovery_s"] = await _mended(field, fail, heal)
    say(f"    {figures['outage_recovery_s']:.1f} s until all was right")


async def errors(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The API server answers nothing but an error."""
    for status in (403, 500, 503):
        with _through_proxy(field) as proxy:
            await field.quiet()
            say(f"  nothing but {status} for {sizes.error_seconds} s")

            async def fail(proxy: Proxy = proxy, status: int = status) -> None:
                proxy.status = status
                proxy.cut_watches()

            async def heal(proxy: Proxy = proxy) -> None:
                await asyncio.sleep(sizes.error_seconds)
                proxy.status = 0

            figures[f"error_{status}_recovery_s"] = await _mended(field, fail, heal)
        say(f"    {figures[f'error_{status}_recovery_s']:.1f} s until all was right")


async def gap(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The watches have lost their place (410 Gone): what was deleted meanwhile nobody reports."""
    del sizes
    with _through_proxy(field) as proxy:
        await field.quiet()
        say("  watches that expire, with deletions in the gap")

        async def fail() -> None:
            field.operator.send(signal.SIGSTOP)
            proxy.gone_watches = 10
            proxy.cut_watches()

        async def heal() -> None:
            await asyncio.sleep(2)  # so that the garbage is collected in the gap too
            field.operator.send(signal.SIGCONT)

        figures["gap_recovery_s"] = await _mended(field, fail, heal)
        assert proxy.gone_watches < 10, "no watch was answered 410"
    say(f"    {figures['gap_recovery_s']:.1f} s until all was right")


async def failover(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The leader is killed; an edit follows at once."""
    del sizes
    other = field.world.operator(*field.operator.arguments)
    other.start()
    await field.quiet()
    name = field.names[0]
    wanted = 3 - field.replicas.get(name, 1)
    assert field.operator.metrics()["octavo_operator_leader"] == 1, "the first operator does not lead"
    field.operator.stop(signal.SIGKILL)
    began = time.monotonic()
    field.operator = other
    await field.scale(name, wanted)
    followed: list[float] = []

    def on_deployment(_: str, manifest: Manifest, now: float) -> None:
        if manifest["metadata"]["name"] == name and manifest["spec"]["replicas"] == wanted:
            followed.append(now)

    async with field.api.watching(children_path("deployments"), on_deployment):
        await until(lambda: bool(followed), 60, "the other operator to take over")
    figures["failover_s"] = followed[0] - began
    say(f"    {figures['failover_s']:.1f} s from the kill to the other's first write")


Scenario = Callable[[Field, Sizes, dict[str, float]], Awaitable[None]]

ON_A_POPULATION: dict[str, Scenario] = {
    "edits": edits,
    "burst": burst,
    "steady": steady,
    "outage": outage,
    "errors": errors,
    "gap": gap,
    "failover": failover,
    "foreign": foreign,
}
