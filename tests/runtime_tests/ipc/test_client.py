"""The server's end of the socket, with a real engine process that follows a script."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import zmq

from octavo_runtime.domain import EngineConfig, Event, FinishReason, Request, SamplingParams
from octavo_runtime.errors import CannotListen, EngineDied, InvalidRequest
from octavo_runtime.ipc.client import EngineClient
from octavo_runtime.testing import ENGINE_COMMAND, Script, ids, write_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK = 16 * 256  # bytes, of the scripted engine


def request(request_id: str, **sampling: Any) -> Request:
    return Request(request_id, ids("hi"), SamplingParams(temperature=0, seed=0, **sampling))


async def start(folder: Path) -> EngineClient:
    script = Script(reply=ids("abcdefgh"), choice_shift=1, step_seconds=0.002, num_blocks=100)
    config = EngineConfig(str(write_model(folder, script)), kv_cache_memory_max=200 * BLOCK)
    client = EngineClient(config, ENGINE_COMMAND)
    await client.start()
    await client.ready()
    return client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineClient]:
    """One that a module's tests share."""
    client = await start(tmp_path_factory.mktemp("client"))
    yield client
    await client.stop()


async def collect(client: EngineClient, *requests: Request, finals: int) -> list[Event]:
    """Events until so many answers have ended."""
    events: list[Event] = []
    async with asyncio.timeout(20), aclosing(client.stream(requests)) as arrivals:
        async for news in arrivals:
            events += [arrival.event for arrival in news]
            if sum(event.finish_reason is not None for event in events) == finals:
                break
    return events


def text(events: list[Event], request_id: str, choice: int = 0) -> str:
    own = [event for event in events if (event.request_id, event.choice) == (request_id, choice)]
    return bytes(token for event in own for token in event.token_ids).decode()


async def test_stream_stays_open_until_each_answer_has_ended(client: EngineClient) -> None:
    async with asyncio.timeout(20), aclosing(client.stream([request("a", n=3, max_tokens=4)])) as arrivals:
        events: list[Event] = []
        async for news in arrivals:
            events += [arrival.event for arrival in news]
            ended = sum(event.finish_reason is not None for event in events)
            assert client.num_open == (ended < 3)
            if ended == 3:
                break
    assert [text(events, "a", choice) for choice in range(3)] == ["abcd", "bcde", "cdef"]
    assert client.num_open == 0


async def test_stream_mixes_requests(client: EngineClient) -> None:
    events = await collect(client, request("a", max_tokens=2), request("b", n=2, max_tokens=3), finals=3)
    assert text(events, "a") == "ab"
    assert [text(events, "b", choice) for choice in range(2)] == ["abc", "bcd"]


async def test_stream_brings_what_has_come_meanwhile_at_once(client: EngineClient) -> None:
    batches: list[int] = []
    async with asyncio.timeout(20), aclosing(client.stream([request("a", max_tokens=8)])) as arrivals:
        async for news in arrivals:
            batches.append(len(news))
            if news[-1].event.finish_reason is not None:
                break
            while client.num_open:  # noqa: ASYNC110 - a reader that is slow: here until all has come
                await asyncio.sleep(0)
    assert len(batches) <= 2
    assert sum(batches) == 8


async def test_abort_of_one_answer_leaves_the_others(client: EngineClient) -> None:
    events: list[Event] = []
    firsts: list[int] = []
    async with asyncio.timeout(20), aclosing(client.stream([request("a", n=2, max_tokens=60)])) as arrivals:
        async for news in arrivals:
            events += [arrival.event for arrival in news]
            of_first = [event.choice for event in events].count(0)
            client.abort("a", 0)
            client.abort("a", 0)
            if events[-1].finish_reason is not None:
                break
            firsts.append(of_first)
    assert len(set(firsts)) <= 1, "of what was aborted nothing comes any more"
    assert events[-1].choice == 1
    assert len(text(events, "a", 1)) == 60
    assert client.num_open == 0


async def test_abort_of_the_last_answer_closes(client: EngineClient) -> None:
    async with asyncio.timeout(20), aclosing(client.stream([request("a", n=2, max_tokens=200)])) as arrivals:
        async for _ in arrivals:
            break
        client.abort("a", 1)
        assert client.num_open == 1
        client.abort("a", 0)
        assert client.num_open == 0
        client.abort("a", 0)
        client.abort("never heard of")
    # The engine has forgotten it, too: the id may come again.
    assert text(await collect(client, request("a", max_tokens=3), finals=1), "a") == "abc"


async def test_refused_by_the_engine_is_an_end_of_each_answer(client: EngineClient) -> None:
    events = await collect(client, request("a", n=2, max_tokens=5000), finals=2)
    assert [(event.choice, event.finish_reason) for event in events] == [(n, FinishReason.ERROR) for n in range(2)]


async def test_resize(client: EngineClient) -> None:
    info = await client.resize(4 * BLOCK + 7)
    assert client.info is info
    assert (info.num_blocks, info.max_num_blocks, info.max_model_len) == (4, 200, 64)
    with pytest.raises(InvalidRequest, match="1 to 200 blocks here, not 201") as refused:
        await client.resize(201 * BLOCK)
    assert refused.value.param == "bytes"
    assert client.info is info
    both = await asyncio.gather(client.resize(50 * BLOCK), client.resize(100 * BLOCK))
    assert [each.num_blocks for each in both] == [50, 100]
    assert client.info.num_blocks == 100


async def test_resize_that_nobody_waits_for(client: EngineClient) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.resize(90 * BLOCK)
    assert (await client.resize(100 * BLOCK)).num_blocks == 100


async def test_engine_killed_ends_each_answer_and_each_resize(tmp_path: Path) -> None:
    client = await start(tmp_path)
    try:
        events: list[Event] = []
        async with asyncio.timeout(20), aclosing(client.stream([request("a", n=3, max_tokens=400)])) as arrivals:
            async for news in arrivals:
                if not events:
                    os.kill(client.pid, signal.SIGSTOP)  # so that it cannot answer any more
                    client.abort("a", 1)
                    waiting = asyncio.create_task(client.resize(50 * BLOCK))
                    os.kill(client.pid, signal.SIGKILL)
                events += [arrival.event for arrival in news]
                if sum(event.finish_reason is FinishReason.ERROR for event in events) == 2:
                    break
        assert sorted(e.choice for e in events if e.finish_reason is FinishReason.ERROR) == [0, 2]
        with pytest.raises(EngineDied):
            await waiting
        with pytest.raises(EngineDied):
            await client.resize(50 * BLOCK)
    finally:
        await client.stop()


async def test_engine_killed_is_no_reason_to_wait(tmp_path: Path) -> None:
    """The socket knows that the other end is gone before anybody knows that the process is."""
    client = await start(tmp_path)
    try:
        async with aclosing(client.stream([request("a", n=2, max_tokens=100_000)])) as arrivals:
            await anext(arrivals)
            os.kill(client.pid, signal.SIGKILL)
            until = time.monotonic() + 20
            while client._socket.poll(10, zmq.POLLOUT):  # and the loop does not get its turn meanwhile
                assert time.monotonic() < until, "the socket did not notice"
            assert client.failure is None
            client.abort("a", 0)
            client.abort("a")
            with pytest.raises(EngineDied):
                await asyncio.wait_for(client.resize(150 * BLOCK), 20)
        assert client.num_open == 0
    finally:
        await client.stop()


@pytest.mark.parametrize(
    ("folder", "told"), [("none", "No such file or directory"), ("n" * 100, "is longer than 107 characters")]
)
async def test_start_no_place_for_the_socket(
    folder: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("n" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    client = EngineClient(EngineConfig("model"), ENGINE_COMMAND)
    with pytest.raises(CannotListen, match=told) as caught:
        await client.start()
    assert "TMPDIR" in caught.value.hint
    await client.stop()
    assert [path.name for path in (tmp_path / ("n" * 100)).iterdir()] == []
