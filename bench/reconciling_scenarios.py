"""The scenarios of bench-operator. Each takes a Field, measures, and leaves it fit for the next one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from bench.reconciling_ceiling import by_kind, ceiling_seconds, renamed, with_port
from bench.reconciling_faults import errors, failover, gap, outage
from bench.reconciling_field import Field, Recording, Sizes, new_object, port_of
from bench.reconciling_world import (
    SERVICES,
    Arrivals,
    Manifest,
    Proxy,
    Write,
    children_path,
    create,
    inference_service,
    until,
)
from bench.report import percentiles, say

__all__ = ["ON_A_POPULATION", "ceiling", "populate"]

WORKERS = 4
"""Looks that the operator runs at once, by its default, and writes that the ceiling has under way."""

EDITS_PER_SECOND = 10
LOST_SECONDS = 30.0
"""When an edit that no child shows counts as lost."""


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
    arrivals, cpu, before, work = Arrivals(), field.process.cpu_seconds(), field.writes(), field.work()
    async with field.api.watching(SERVICES, arrivals):
        began = time.monotonic()
        await create(field.api, SERVICES, (inference_service(name) for name in names))
        created = time.monotonic() - began
        told = lambda: f"{len(arrivals.told)} have a status, {len(arrivals.ready)} are ready"  # noqa: E731
        await until(lambda: len(arrivals.told) == count, 60 + count / 5, "every object to have a status", told)
        counts = {kind: value - before.get(kind, 0) for kind, value in field.writes().items()}
        seconds = max(arrivals.told.values()) - began
        for plural in ("deployments", "services"):
            assert set(names) <= await field.api.names(children_path(plural)), f"not every object has its {plural}"
        await until(lambda: len(arrivals.ready) == count, 60 + count / 5, "every object to be ready", told)
        figures[f"serving_{count}_s"] = max(arrivals.ready.values()) - began
    field.names = names
    figures[f"created_{count}_s"], figures[f"reconciled_{count}_s"] = created, seconds
    await field.quiet()
    figures[f"cpu_ms_per_object_{count}"] = 1e3 * (field.process.cpu_seconds() - cpu) / count
    written = {kind: value - before.get(kind, 0) for kind, value in field.writes().items()}
    figures[f"writes_per_object_{count}"] = sum(written.values()) / count
    for what, total in field.work().items():
        figures[f"{what}_per_object_{count}"] = (total - work[what]) / count
    say(f"    {seconds:.1f} s; writes per object until then and until all served:")
    for kind, value in written.items():
        say(f"      {kind} {counts.get(kind, 0) / count:.2f}, {value / count:.2f}")
    field.recording = Recording(sample, writes, counts, count, seconds)
    return field.recording


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


async def _edit(
    field: Field,
    going_on: Callable[[], bool],
    figures: dict[str, float],
    name: str,
    follow: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Edits random objects at a steady rate, and measures from the API server's answer to the child's change.

    Args:
        field: where the objects are.
        going_on: whether more edits are to come.
        figures: get the figures.
        name: what they begin with.
        follow: changes the child of the object of this name; None where the operator does.
    """
    sent: dict[str, tuple[int, float]] = {}
    latencies: list[float] = []
    requests: list[float] = []

    def on_service(_: str, manifest: Manifest, now: float) -> None:
        edited = sent.get(manifest["metadata"]["name"])
        if edited is not None and port_of(manifest) == edited[0]:
            del sent[manifest["metadata"]["name"]]
            latencies.append(max(0.0, now - edited[1]))

    async def edit(target: str) -> None:
        port, began = field.other_port(target), time.monotonic()
        sent[target] = port, began  # until the answer is there; the child can be faster
        await field.edit(target)
        answered = time.monotonic()
        requests.append(answered - began)
        if target in sent:
            sent[target] = port, answered
        if follow is not None:
            await follow(target)

    count = 0
    order: Iterator[str] = iter(())
    async with field.api.watching(children_path("services"), on_service), asyncio.TaskGroup() as tasks:
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
    await field.quiet()
    field.operator.stop()
    try:
        names += await _burst_floor(field, sizes, figures)
    finally:
        field.operator.start()
    for name in names:
        await field.api.call("DELETE", f"{SERVICES}/{name}")


async def _burst_floor(field: Field, sizes: Sizes, figures: dict[str, float]) -> list[str]:
    """The same edits in the same burst without an operator: a plain client sends its writes, an edit's at once.

    Returns:
        The names of the objects that it has made.
    """
    recording = field.recording
    assert recording is not None, "nothing was recorded"
    found = await field.api.call("GET", SERVICES)
    metadata = {one["metadata"]["name"]: one["metadata"] for one in found["items"]}
    (recorded, *_) = by_kind(recording.writes)["Service"]

    async def follow(name: str) -> None:
        write = with_port(renamed(recorded, recording.sample, metadata[name]), field.ports[name])
        await field.api.send(write.method, write.path, write.body, write.media)

    names = [f"floor-{number:05d}" for number in range(sizes.burst)]
    counts = {kind: count * sizes.burst / recording.count for kind, count in recording.counts.items()}

    async def more() -> None:
        await asyncio.sleep(3)
        await ceiling_seconds(field.api, recording.writes, recording.sample, counts, names=names, workers=WORKERS)

    async with field.api.watching(SERVICES, Arrivals()), asyncio.TaskGroup() as tasks:
        burst = tasks.create_task(more())
        await _edit(field, lambda: not burst.done(), figures, "floor_under_burst", follow)
    figures["event_to_apply_under_burst_vs_floor"] = (
        figures["event_to_apply_under_burst_p99_s"] / figures["floor_under_burst_p99_s"]
    )
    return names


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
    await create(field.api, "/api/v1/namespaces", [new_object("v1", "Namespace", "elsewhere")])
    data = {"stringData": {"text": "x" * 1000}}
    secrets = (new_object("v1", "Secret", f"s-{number}", "elsewhere", **data) for number in range(sizes.secrets))
    await create(field.api, "/api/v1/namespaces/elsewhere/secrets", secrets)
    # No scheduler places them: it is their number that counts.
    spec = {"schedulerName": "nobody", "containers": [{"name": "server", "image": "none"}]}
    pods = (new_object("v1", "Pod", f"p-{number}", "elsewhere", spec=spec) for number in range(sizes.pods))
    await create(field.api, "/api/v1/namespaces/elsewhere/pods", pods)
    await field.quiet()
    running = field.process.memory_mb()
    after = await _restarted_mb(field)
    figures["rss_foreign_objects_delta_mb"] = max(running, after) - before
    figures["rss_restarted_mb"] = before
    say(f"    {before:.0f} MB before, {running:.0f} MB while they came, {after:.0f} MB after a start beside them")


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
