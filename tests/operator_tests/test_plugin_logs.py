import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api.names import Manifest
from octavo_operator.errors import Rejected
from octavo_operator.plugin import logs
from octavo_operator.plugin.logs import Source, follow, merged, sources, stamped
from tests.operator_tests.plugin_api import CORE, Api, serve


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


LOG = f"{CORE}/pods/chat-a/log"


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)
    async with serve(tmp_path) as scripted:
        scripted.has(f"{CORE}/pods", pod("chat-a", server=RUNS))
        yield scripted


async def followed(api: Api, until: int, heard: Callable[[str], object] = id) -> list[str]:
    """The first lines; `heard` takes each."""
    lines: list[str] = []
    told: list[str] = []
    enough = asyncio.Event()

    def write(source: Source, text: str) -> None:
        lines.append(f"{source.prefix} {text}")
        heard(text)
        if len(lines) >= until:
            enough.set()

    async with api.client() as cluster:
        task = asyncio.create_task(follow(cluster, "team-a", "chat", [("tailLines", "1")], write, told.append))
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for one in (task, waiting):
            one.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return lines


async def test_follow_goes_on_after_a_broken_connection_without_repeating(api: Api) -> None:
    one, two, three = (f"2026-12-01T10:00:00.{number}Z {number}\n" for number in (1, 2, 3))
    api.answers[LOG] = [(200, one + two), (503, {"message": "reset"}), (200, one + two + three), (200, "")]
    assert await followed(api, 3) == ["a 1", "a 2", "a 3"]
    first, second, *_ = (asked for asked in api.asked if LOG in asked)
    assert first == f"GET {LOG}?container=server&timestamps=true&follow=true&tailLines=1"
    assert second == f"GET {LOG}?container=server&timestamps=true&follow=true&sinceTime=2026-12-01T10:00:00Z"


async def test_follow_hears_a_container_that_was_started_again_from_its_first_line(api: Api) -> None:
    def restart(text: str) -> None:
        if text == "dies":
            api.answers[LOG] = [
                (400, {"message": "is waiting to start"}),
                (200, "2026-12-01T10:00:09Z lives\n"),
                (200, ""),
            ]
            api.has(f"{CORE}/pods", pod("chat-a", restarts=1, server=RUNS))

    api.answers[LOG] = [(200, "2026-12-01T10:00:00Z dies\n"), (200, "")]
    assert await followed(api, 2, restart) == ["a dies", "a lives"]
    assert f"GET {LOG}?container=server&timestamps=true&follow=true" in api.asked


async def test_follow_without_the_right_ends(api: Api) -> None:
    api.answers[LOG] = 403, {"message": "cannot get pods/log"}
    with pytest.raises(Rejected, match="pods/log"):
        await followed(api, 1)
