"""How fast the API server takes the operator's own writes when a plain client sends them: what no operator can beat.

What the operator writes for one object is recorded, and how often it wrote each kind for each object of the measured
run is counted. The ceiling sends the same requests for as many objects, from as many workers as the operator has, with
no watch, no cache and no decision.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bench.reconciling_world import SERVICES, Api, Manifest, Write, create, inference_service

__all__ = ["by_kind", "ceiling_seconds", "renamed", "shares", "with_port"]


def by_kind(writes: Sequence[Write]) -> dict[str, list[Write]]:
    """Recorded writes by what they wrote: the kind, `InferenceService/status`; in the order of first appearance.

    A patch that names no kind is left out: it repeats an Event.
    """
    kinds: defaultdict[str, list[Write]] = defaultdict(list)
    for write in writes:
        kind = json.loads(write.body or b"{}").get("kind")
        if kind is not None and kind != "DeleteOptions":
            kinds[f"{kind}/status" if "/status?" in write.path else kind].append(write)
    return dict(kinds)


def shares(total: float, count: int) -> list[int]:
    """A number of writes dealt out to objects, as evenly as whole numbers can be."""
    return [int(total * (number + 1) / count) - int(total * number / count) for number in range(count)]


def renamed(write: Write, before: Manifest, after: Manifest) -> Write:
    """The same write for another object.

    Args:
        write: as recorded.
        before: metadata of the object that it was recorded for.
        after: metadata of the other object.
    """
    body = json.loads(write.body)
    if body["kind"] != "InferenceService":
        body["metadata"].pop("uid", None)  # a precondition on the recorded child
    text, path = json.dumps(body), write.path
    for field in ("uid", "name"):
        text, path = (given.replace(before[field], after[field]) for given in (text, path))
    return Write(write.method, path, write.media, text.encode())


def with_port(write: Write, port: int) -> Write:
    """The write that made a Service, as one that changes its port."""
    body = json.loads(write.body)
    body["metadata"].pop("resourceVersion", None)  # it lets an apply only create
    body["spec"]["ports"][0]["port"] = port
    return Write(write.method, write.path, write.media, json.dumps(body).encode())


async def ceiling_seconds(
    api: Api,
    writes: Sequence[Write],
    sample: Manifest,
    counts: Mapping[str, float],
    *,
    names: Sequence[str],
    workers: int,
) -> float:
    """Creates the objects and sends their writes: the time for all of them.

    Args:
        api: the API server; no operator runs on it.
        writes: what the operator wrote for one object.
        sample: metadata of that object.
        counts: how often each kind is to be written, over all objects.
        names: of the objects to create.
        workers: how many writes are under way at once.
    """
    kinds = by_kind(writes)
    missing = sorted(kind for kind, count in counts.items() if count and kind not in kinds)
    if missing:
        raise ValueError(f"nothing was recorded for {', '.join(missing)}")
    dealt = {kind: shares(counts.get(kind, 0), len(names)) for kind in kinds}
    created: asyncio.Queue[tuple[int, Manifest]] = asyncio.Queue()
    began = time.monotonic()

    async def work() -> None:
        while True:
            number, metadata = await created.get()
            for kind, recorded in kinds.items():
                for turn in range(dealt[kind][number]):
                    write = renamed(recorded[turn % len(recorded)], sample, metadata)
                    await api.send(write.method, write.path, write.body, write.media)
            created.task_done()

    async with asyncio.TaskGroup() as tasks:
        crew = [tasks.create_task(work()) for _ in range(workers)]
        order = iter(range(len(names)))
        await create(
            api,
            SERVICES,
            (inference_service(name) for name in names),
            lambda answer: created.put_nowait((next(order), answer["metadata"])),
        )
        await created.join()
        seconds = time.monotonic() - began
        for task in crew:
            task.cancel()
    return seconds
