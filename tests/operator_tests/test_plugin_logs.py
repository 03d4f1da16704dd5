import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from octavo_operator.api.names import Manifest
from octavo_operator.cluster.user import UserCluster
from octavo_operator.errors import Rejected, Unavailable
from octavo_operator.plugin import logs
from octavo_operator.plugin.logs import Source, follow, merged, sources, stamped


def pod(name: str, *, restarts: int = 0, **containers: dict[str, Any]) -> Manifest:
    listed = [{"name": one, "restartCount": restarts, **state} for one, state in containers.items()]
    init = [one for one in listed if one["name"] == "plan"]
    main = [one for one in listed if one["name"] != "plan"]
    status = {"initContainerStatuses": init, "containerStatuses": main}
    return {"metadata": {"name": name, "uid": name}, "status": status}


RUNS: dict[str, Any] = {"state": {"running": {}}}
CRASHES = {"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 14}}}
DONE = {"ready": True, "state": {"terminated": {"exitCode": 0}}}
WAITS = {"state": {"waiting": {"reason": "PodInitializing"}}}


def test_sources_are_servers_that_ran_and_plans_that_failed() -> None:
    pods = [
        pod("chat-b", plan=CRASHES, server=WAITS),
        pod("chat-a", plan=DONE, server=RUNS, sidecar=RUNS),
        pod("chat-c", plan=DONE, server=CRASHES),
        {"metadata": {"name": "chat-d", "uid": "d"}},
    ]
    assert [(one.pod, one.prefix) for one in sources("chat", pods)] == [
        ("chat-a", "a"),
        ("chat-b", "b plan"),
        ("chat-c", "c"),
    ]


def test_stamped_takes_the_time_off() -> None:
    assert stamped("2026-12-01T10:00:00.123456789Z a b") == (datetime(2026, 12, 1, 10, 0, 0, 123456, UTC), "a b")
    assert stamped("unable to retrieve") == (None, "unable to retrieve")
    assert stamped("") == (None, "")


def test_merged_keeps_a_line_without_a_time_behind_its_predecessor() -> None:
    one, other = (Source(name, "server", name, (name, "server", 0)) for name in "ab")
    first = [stamped(line) for line in ("2026-12-01T10:00:01Z 1", "more of 1", "2026-12-01T10:00:03Z 3")]
    second = [stamped("2026-12-01T10:00:02Z 2")]
    assert [text for _, text in merged([(one, first), (other, second)])] == ["1", "more of 1", "2", "3"]


class Cluster:
    """Pods and logs as a test lays them out; each log can break off, and then goes on where it was."""

    def __init__(self) -> None:
        self.pods: list[Manifest] = []
        self.texts: dict[tuple[str, int], list[list[str] | Exception]] = {}
        self.asked: list[list[tuple[str, str]]] = []
        self.heard = asyncio.Event()

    async def list(self, *_: object, **__: object) -> Sequence[Manifest]:
        return self.pods

    async def log(self, _: str, name: str, *, container: str, query: Any) -> AsyncIterator[str]:
        assert container == "server"
        self.asked.append(query)
        self.heard.set()
        (found,) = (one for one in self.pods if one["metadata"]["name"] == name)
        parts = self.texts.get((name, found["status"]["containerStatuses"][0]["restartCount"]), [])
        if not parts:
            await asyncio.Event().wait()
        part = parts.pop(0)
        if isinstance(part, Exception):
            raise part
        for line in part:
            yield line


async def followed(cluster: Cluster, until: int) -> list[str]:
    lines: list[str] = []
    enough = asyncio.Event()

    def write(source: Source, text: str) -> None:
        lines.append(f"{source.prefix} {text}")
        if len(lines) >= until:
            enough.set()

    told: list[str] = []
    client = cast("UserCluster", cluster)
    task = asyncio.create_task(follow(client, "default", "chat", [("tailLines", "1")], write, told.append))
    done, _ = await asyncio.wait({task, asyncio.create_task(enough.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        task.result()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return lines


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
async def test_follow_goes_on_after_a_broken_connection_without_repeating() -> None:
    cluster = Cluster()
    cluster.pods = [pod("chat-a", server=RUNS)]
    cluster.texts["chat-a", 0] = [
        ["2026-12-01T10:00:00.1Z one", "2026-12-01T10:00:00.2Z two"],
        Unavailable("reset"),
        ["2026-12-01T10:00:00.1Z one", "2026-12-01T10:00:00.2Z two", "2026-12-01T10:00:00.3Z three"],
    ]
    assert await followed(cluster, 3) == ["a one", "a two", "a three"]
    assert cluster.asked[0] == [("timestamps", "true"), ("follow", "true"), ("tailLines", "1")]
    assert cluster.asked[1] == [("timestamps", "true"), ("follow", "true"), ("sinceTime", "2026-12-01T10:00:00Z")]


@pytest.mark.usefixtures("quick")
async def test_follow_hears_a_container_that_was_started_again() -> None:
    cluster = Cluster()
    cluster.pods = [pod("chat-a", server=RUNS)]
    cluster.texts["chat-a", 0] = [["2026-12-01T10:00:00Z dies"]]
    cluster.texts["chat-a", 1] = [Rejected("is waiting to start", status=400), ["2026-12-01T10:00:09Z lives"]]
    following = asyncio.create_task(followed(cluster, 2))
    await cluster.heard.wait()
    cluster.pods = [pod("chat-a", restarts=1, server=RUNS)]
    assert await following == ["a dies", "a lives"]


@pytest.mark.usefixtures("quick")
async def test_follow_without_the_right_ends() -> None:
    cluster = Cluster()
    cluster.pods = [pod("chat-a", server=RUNS)]
    cluster.texts["chat-a", 0] = [Rejected("cannot get pods/log", status=403)]
    with pytest.raises(Rejected, match="pods/log"):
        await followed(cluster, 1)
