"""`kubectl octavo logs`: what all pods of a service say, in one stream."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

from octavo_operator.api.names import OWNER_LABEL, POD, Manifest
from octavo_operator.cluster.user import UserCluster
from octavo_operator.core.desired import PLAN, SERVER
from octavo_operator.errors import Gone, Rejected, Unavailable

__all__ = ["Source", "Stamped", "follow", "merged", "read", "sources", "stamped"]

POLL_SECONDS = 2.0
"""How soon a new pod, or a container that was started again, is heard."""

Write = Callable[["Source", str], None]
Stamped = tuple[datetime | None, str]
"""A line and when it was written, if it says so."""


@dataclass(slots=True)
class Source:
    """A container whose log is read.

    Attributes:
        pod: its pod.
        container: its name.
        prefix: what stands before its lines.
        life: tells apart the times that it was started.
        last: when its latest line was written that is known.
    """

    pod: str
    container: str
    prefix: str
    life: tuple[str, str, int]
    last: datetime | None = field(default=None)


def sources(name: str, pods: Iterable[Manifest]) -> list[Source]:
    """The server of each pod, and its plan where that has failed; those that have not started are left out.

    Args:
        name: of the InferenceService.
        pods: its pods.
    """
    found = []
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        metadata, status = pod["metadata"], pod.get("status", {})
        short = metadata["name"].removeprefix(f"{name}-")
        containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        for container in containers:
            kind, restarts = container["name"], container.get("restartCount", 0)
            if (kind == SERVER and _has_run(container)) or (kind == PLAN and _has_failed(container)):
                prefix = short if kind == SERVER else f"{short} {kind}"
                found.append(Source(metadata["name"], kind, prefix, (metadata["uid"], kind, restarts)))
    return found


def stamped(line: str) -> Stamped:
    """Takes the time off a line of a log that was asked for with timestamps."""
    stamp, _, text = line.partition(" ")
    try:
        return datetime.fromisoformat(stamp), text
    except ValueError:
        return None, line


def merged(logs: Iterable[tuple[Source, Iterable[Stamped]]]) -> list[tuple[Source, str]]:
    """The lines of several logs in the order in which they were written; each log's own order stays."""
    lines = []
    for source, log in logs:
        at: datetime | None = None
        for time, text in log:
            at = time or at
            if at is not None:
                lines.append((at, source, text))
    return [(source, text) for _, source, text in sorted(lines, key=lambda line: line[0])]


async def read(
    cluster: UserCluster, namespace: str, source: Source, query: list[tuple[str, str]]
) -> AsyncIterator[Stamped]:
    """The lines of one container's log that are newer than the last known one."""
    asked = [("timestamps", "true"), *query]
    if source.last is not None:
        asked = [one for one in asked if one[0] not in {"tailLines", "sinceSeconds"}]
        asked.append(("sinceTime", source.last.replace(microsecond=0).isoformat().replace("+00:00", "Z")))
    async for line in cluster.log(namespace, source.pod, container=source.container, query=asked):
        time, text = stamped(line)
        if source.last is not None and time is not None and time <= source.last:
            continue  # sinceTime counts in whole seconds
        source.last = time or source.last
        yield time, text


async def follow(
    cluster: UserCluster,
    namespace: str,
    name: str,
    query: list[tuple[str, str]],
    write: Write,
    tell: Callable[[str], None],
) -> NoReturn:
    """Writes all lines as they come, those of new pods and of containers that start again included, until cancelled.

    Args:
        cluster: with the user's rights.
        namespace: of the InferenceService.
        name: of the InferenceService.
        query: parameters of the first request for each log.
        write: takes each line.
        tell: takes what a person should know beside.

    Raises:
        ClusterError: the logs may not be read.
    """
    known: dict[tuple[str, str, int], Source] = {}
    reading: dict[tuple[str, str, int], asyncio.Task[None]] = {}
    first = True
    try:
        while True:
            pods = await cluster.list(POD, namespace, labels=f"{OWNER_LABEL}={name}")
            for source in sources(name, pods):
                task = reading.get(source.life)
                if task is not None and task.done():
                    task.result()
                if task is None or task.done():
                    if source.life not in known and not first:
                        tell(f"{source.prefix}: starts")
                    one = known.setdefault(source.life, source)
                    # What begins later is read from its beginning.
                    asked = query if first else []
                    reading[source.life] = asyncio.create_task(_pass_on(cluster, namespace, one, asked, write))
            first = False
            await asyncio.sleep(POLL_SECONDS)
    finally:
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)


async def _pass_on(
    cluster: UserCluster, namespace: str, source: Source, query: list[tuple[str, str]], write: Write
) -> None:
    try:
        async for _, text in read(cluster, namespace, source, [("follow", "true"), *query]):
            write(source, text)
    except (Gone, Unavailable):
        return  # asked for again at the next look, from the last known line on
    except Rejected as error:
        if error.status == 403:
            raise


def _has_run(container: Manifest) -> bool:
    states = (container.get("state", {}), container.get("lastState", {}))
    return any(kind in state for state in states for kind in ("running", "terminated"))


def _has_failed(container: Manifest) -> bool:
    if container.get("ready"):
        return False
    ends = (container.get(state, {}).get("terminated") or {} for state in ("state", "lastState"))
    return any(end.get("exitCode", 0) != 0 for end in ends)
