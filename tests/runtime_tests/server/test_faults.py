"""What happens when something breaks: the client goes, a request fails, the engine dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from octavo_runtime.errors import BadFlags, CannotListen, DeviceLost, EngineDied, InternalError, StartError
from octavo_runtime.replay.trace import read_trace
from octavo_runtime.testing import Script, ids

if TYPE_CHECKING:
    from tests.runtime_tests.server.conftest import Serve, Served

PATH = "/v1/completions"
SLOW = Script(reply=ids("word "), step_seconds=0.01)
LONG = {"prompt": "hi", "max_tokens": 500}


async def first_event(answer: aiohttp.ClientResponse) -> bytes:
    assert answer.status == 200
    return await answer.content.readline()


async def head(served: Served) -> Mapping[str, str]:
    async with served.http.get("/ping") as answer:
        return answer.headers


async def check_all_free(served: Served, *, aborted: int) -> None:
    """Waits for the aborts, and for the blocks. (That they take two steps at most is the loop's to promise.)"""
    await served.until(lambda m: m['vllm:request_success_total{finished_reason="abort"}'] == aborted)
    metrics = await served.until(lambda m: m["vllm:num_requests_running"] == 0 and m["vllm:kv_cache_usage_perc"] == 0)
    assert metrics["vllm:num_requests_waiting"] == 0


async def test_client_gone_while_streaming(serve: Serve) -> None:
    async with serve(SLOW) as served:
        async with served.http.post(PATH, json={**LONG, "stream": True}) as answer:
            await first_event(answer)
            answer.close()
        await check_all_free(served, aborted=1)


async def test_client_gone_while_waiting_for_the_whole(serve: Serve) -> None:
    async with serve(SLOW) as served:
        request = asyncio.create_task(served.post(PATH, **LONG))
        await served.until(lambda m: m["vllm:num_requests_running"] == 1)
        request.cancel()
        await check_all_free(served, aborted=1)


async def test_client_gone_while_queued(serve: Serve) -> None:
    async with serve(SLOW, max_num_seqs=1) as served:
        running = asyncio.create_task(served.post(PATH, **LONG))
        await served.until(lambda m: m["vllm:num_requests_running"] == 1)
        queued = asyncio.create_task(served.post(PATH, prompt=["a", "b"], max_tokens=5))
        await served.until(lambda m: m["vllm:num_requests_waiting"] == 2)
        queued.cancel()
        metrics = await served.until(lambda m: m["vllm:num_requests_waiting"] == 0)
        assert metrics["vllm:num_requests_running"] == 1
        running.cancel()
        await check_all_free(served, aborted=3)


async def test_stop_string_ends_the_request_in_the_engine(serve: Serve) -> None:
    async with serve(SLOW) as served:
        await served.post(PATH, **LONG, stop="word")
        metrics = await served.until(lambda m: m["vllm:num_requests_running"] == 0)
        assert metrics['vllm:request_success_total{finished_reason="stop"}'] == 1
        assert metrics["vllm:iteration_tokens_total_count"] < 20, "the engine went on without a reader"


async def test_client_gone_takes_all_its_answers_along(serve: Serve) -> None:
    async with serve(SLOW) as served:
        async with served.http.post(PATH, json={**LONG, "n": 3, "max_tokens": 400, "stream": True}) as answer:
            await first_event(answer)
            answer.close()
        await check_all_free(served, aborted=3)


async def test_queue_full_is_503_for_new_requests_only(serve: Serve) -> None:
    async with serve(SLOW, max_num_seqs=1, max_num_queued_reqs=1) as served:
        held = [asyncio.create_task(served.post(PATH, prompt="hi", max_tokens=30)) for _ in range(2)]
        await served.until(lambda m: m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == 2)
        async with served.http.post(PATH, json={"prompt": "hi"}) as answer:
            assert answer.status == 503
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            error = (await answer.json())["error"]
            assert (error["type"], error["code"]) == ("server_error", "queue_full")
        assert (await served.get("/readyz"))[0] == 200, "overload must not change readiness"
        assert [status for status, _ in await asyncio.gather(*held)] == [200, 200]
        metrics = await served.metrics()
        assert metrics['octavo:requests_refused_total{code="queue_full"}'] == 1
        assert metrics["octavo:max_num_queued_reqs"] == 1


async def test_queue_full_of_tokens(serve: Serve) -> None:
    async with serve(SLOW, max_num_seqs=1, max_num_queued_tokens=50) as served:
        running = asyncio.create_task(served.post(PATH, prompt="hi", max_tokens=100))
        await served.until(lambda m: m["vllm:generation_tokens_total"] > 0)
        # Nothing waits, so even what is longer than the limit may.
        held = [asyncio.create_task(served.post(PATH, prompt="x" * 60, max_tokens=1))]
        await served.until(lambda m: m["vllm:num_requests_waiting"] == 1)
        status, body = await served.post(PATH, prompt="x")
        assert (status, body["error"]["code"]) == (503, "queue_full")
        assert [status for status, _ in await asyncio.gather(running, *held)] == [200, 200]
        assert (await served.post(PATH, prompt="x" * 60, max_tokens=1))[0] == 200


async def test_engine_killed_ends_streams_with_an_error_event(serve: Serve) -> None:
    async with serve(SLOW) as served:
        whole = asyncio.create_task(served.post(PATH, **LONG))
        async with served.http.post(PATH, json={**LONG, "stream": True}) as answer:
            await first_event(answer)
            os.kill(served.service.client.pid, signal.SIGKILL)
            rest = await answer.content.read()
        assert b'data: {"error":{"message":"the engine process was killed (SIGKILL)' in rest
        assert b"[DONE]" not in rest
        status, body = await whole
        assert status == 503
        assert body["error"]["type"] == "server_error"
        with pytest.raises(EngineDied, match="killed") as caught:
            await served.running
        assert "memory" in caught.value.hint
        assert (await served.get("/livez"))[0] == 503
        assert (await served.get("/readyz"))[0] == 503
        status, body = await served.post(PATH, prompt="hi")
        assert (status, body["error"]["code"]) == (503, "engine_died")
        metrics = await served.metrics()
        assert metrics['vllm:request_success_total{finished_reason="error"}'] == 2


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (Script(reply=ids("x"), die_on=7), EngineDied, "killed"),
        (Script(reply=ids("x"), raise_on=7), InternalError, "RuntimeError in the engine: scripted fault"),
        (Script(reply=ids("x"), lose_device_on=7), DeviceLost, "fell off the bus"),
    ],
    ids=["die", "raise", "lose device"],
)
async def test_engine_end_keeps_its_cause(serve: Serve, script: Script, kind: type[StartError], said: str) -> None:
    async with serve(script) as served:
        status, body = await served.post(PATH, prompt=[7])
        assert status == 503
        with pytest.raises(kind, match=said):
            await served.running
        assert "error" in body


async def test_loading_fails_with_its_own_error(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"), load_error="BadWeights")) as served:
        with pytest.raises(StartError, match="loading failed") as caught:
            await served.running
        assert (caught.value.code, caught.value.exit_code) == ("BadWeights", 11)


async def test_engine_program_that_cannot_run(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), engine_command=("false",)) as served:
        with pytest.raises(EngineDied, match="ended with exit code 1"):
            await served.running


NONSENSE = """
import json, sys, zmq
socket = zmq.Context().socket(zmq.PAIR)
socket.connect(json.loads(sys.stdin.readline())["address"])
socket.send(b"nonsense")
sys.stdin.read()
"""


async def test_engine_that_talks_nonsense(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), engine_command=(sys.executable, "-c", NONSENSE)) as served:
        with pytest.raises(InternalError, match="on a message of the engine"):
            await served.running


async def test_livez_fails_when_the_engine_hangs(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"), hang_on=7), step_timeout=0.3) as served:
        assert (await served.get("/livez"))[0] == 200
        hung = asyncio.create_task(served.post(PATH, prompt=[7]))
        async with asyncio.timeout(10):
            # One answer is looked at: a process that starts slowly is late once, and goes on.
            while (answer := await served.get("/livez"))[0] == 200:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        status, body = answer
        assert (status, body["status"]) == (503, "hung")
        assert "no step" in body["detail"]
        hung.cancel()


async def test_stream_is_kept_open_while_it_waits(serve: Serve) -> None:
    script = Script(reply=ids("x"), step_seconds=0.3)
    async with (
        serve(script, sse_ping_seconds=0.05) as served,
        served.http.post(PATH, json={"prompt": "hi", "max_tokens": 1, "stream": True}) as answer,
    ):
        assert await answer.content.readline() == b": ping\n"
        assert await answer.content.readline() == b"\n"
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def test_livez_is_fine_when_idle_for_long(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), step_timeout=0.001) as served:
        await served.post(PATH, prompt="hi", max_tokens=1)
        await served.until(lambda m: m["vllm:num_requests_running"] == 0)
        assert (await served.get("/livez"))[0] == 200


async def test_listening_while_loading(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"), load_seconds=0.5), ready=False) as served:
        assert (await served.get("/livez"))[0] == 200
        assert await served.get("/readyz") == (503, {"status": "loading"})
        async with served.http.post(PATH, json={"prompt": "hi"}) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
        assert (await served.get("/v1/models"))[0] == 503
        await served.service.ready.wait()
        assert await served.get("/readyz") == (200, {"status": "ready"})
        assert (await served.get("/health"))[0] == 200


async def test_livez_fails_when_loading_hangs(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"), load_seconds=60), ready=False, load_timeout=1) as served:
        assert (await served.get("/livez"))[0] == 200
        async with asyncio.timeout(10):
            # One answer is looked at: a process that starts slowly is late once, and goes on.
            while (answer := await served.get("/livez"))[0] == 200:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        status, body = answer
        assert (status, body["status"]) == (503, "hung")
        assert "loading has made no progress" in body["detail"]


async def test_livez_is_fine_while_loading_makes_progress(serve: Serve) -> None:
    """Ten reports: loading takes longer than its timeout, but none of its parts does."""
    script = Script(reply=ids("x"), load_seconds=6)
    async with serve(script, ready=False, load_timeout=3, step_timeout=0.001) as served:
        while not served.service.ready.is_set():
            assert (await served.get("/livez"))[0] == 200
            await asyncio.sleep(0.05)
        assert (await served.get("/livez"))[0] == 200


async def test_start_on_a_taken_port(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1 port {port}: .*in use"):
            async with serve(Script(reply=ids("x")), port=port):
                pass


async def test_drain_finishes_what_runs_and_refuses_the_rest(serve: Serve) -> None:
    async with serve(SLOW) as served:
        async with served.http.post(PATH, json={"prompt": "hi", "max_tokens": 50, "stream": True}) as answer:
            await first_event(answer)
            await served.get("/version")  # a connection that is kept
            drain = asyncio.create_task(served.service.drain())
            async with served.http.post(PATH, json={"prompt": "hi", "max_tokens": 1}) as last:
                assert last.status == 200
                assert last.headers["Connection"] == "close"
            assert (await served.get("/readyz"))[1]["status"] == "draining"
            assert (await served.get("/livez"))[0] == 200
            async with served.http.post(PATH, json={"prompt": "hi"}) as refused:
                assert refused.status == 503
                assert refused.headers["Connection"] == "close"
                assert int(refused.headers["Retry-After"]) > 0
            assert not drain.done()
            rest = await answer.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert rest.count(b'"finish_reason":null') == 49
        async with asyncio.timeout(5):
            await drain


async def test_drain_gives_up_after_the_timeout(serve: Serve) -> None:
    async with (
        serve(SLOW, shutdown_timeout=0.05) as served,
        served.http.post(PATH, json={**LONG, "stream": True}) as answer,
    ):
        await first_event(answer)
        began = time.monotonic()
        await served.service.drain()
        assert time.monotonic() - began < 2
        await served.service.stop()
        assert b"the server is shutting down" in await answer.content.read()


async def test_connection_age_closes_politely(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), max_connection_age=0.2) as served:
        ages = []
        for _ in range(2):  # the second connection has an age of its own
            began = time.monotonic()
            async with asyncio.timeout(5):
                while (await head(served)).get("Connection") != "close":  # noqa: ASYNC110 - it is the server's clock
                    await asyncio.sleep(0.005)
            ages.append(time.monotonic() - began)
        assert all(age > 0.2 * 0.8 - 0.05 for age in ages), ages


async def test_connection_age_zero_keeps_connections(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), max_connection_age=0.0) as served:
        for _ in range(3):
            assert "Connection" not in await head(served)


async def test_resize_within_bounds(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), kv_cache_memory_max=1 << 20) as served:
        status, body = await served.post("/kv_cache_memory", bytes=1 << 19)
        assert status == 200, body
        assert 0 < body["bytes"] <= 1 << 19
        metrics = await served.until(lambda m: m["octavo:kv_cache_blocks"] == body["num_blocks"])
        assert metrics["octavo:kv_cache_blocks"] > 0
        assert (await served.post(PATH, prompt="hi", max_tokens=1))[0] == 200
        for size in (1 << 21, 0, -1, 2**64):
            status, body = await served.post("/kv_cache_memory", bytes=size)
            assert (status, body["error"]["param"]) == (400, "bytes"), body
        status, body = await served.post("/kv_cache_memory", bytes="4Gi")
        assert (status, body["error"]["param"]) == (400, "bytes")


async def test_resize_is_off_by_default(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"))) as served:
        assert (await served.post("/kv_cache_memory", bytes=1 << 19))[0] == 404


async def test_priority_goes_first(serve: Serve) -> None:
    async with serve(SLOW, max_num_seqs=1, scheduling_policy="priority") as served:
        order: list[int] = []

        async def ask(priority: int) -> None:
            await served.post(PATH, prompt="hi", max_tokens=20, priority=priority)
            order.append(priority)

        held = [asyncio.create_task(ask(priority)) for priority in (0, 5, 3)]
        await served.until(lambda m: m["vllm:num_requests_waiting"] == 2)
        await asyncio.gather(*held, ask(-1))
        assert order == [-1, 0, 3, 5]


async def test_trace_that_cannot_be_written(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(BadFlags, match=r"--record-trace: .* cannot be written: No such file"):
        async with serve(Script(reply=ids("x")), record_trace=tmp_path / "no" / "trace"):
            pass


async def test_trace_of_what_was_served(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    async with serve(Script(reply=ids("secret ")), record_trace=file, scheduling_policy="priority") as served:
        await served.post(PATH, prompt="private", max_tokens=20, n=2)
        await served.post(PATH, prompt="private", max_tokens=20, stop="t", priority=3)
    trace = read_trace(file)
    assert trace.header.scheduler.policy == "priority"
    assert [(line.prompt, line.outputs, line.priority) for line in trace.lines] == [(7, (20, 20), 0), (7, (6,), 3)]
    assert b"secret" not in file.read_bytes()


async def test_generation_config_fills_in_what_a_request_leaves_open(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "generation_config.json").write_text('{"top_p": 0.5, "min_p": 0.5}')
    for setting, expected in (("auto", {"top_p": 0.5, "min_p": 0.5}), ("none", {})):
        async with serve(Script(reply=ids("x")), generation_config=setting) as served:
            assert served.service._server.sampling_defaults == expected
            assert (await served.post(PATH, prompt="hi", max_tokens=1))[0] == 200
            # Beams are not sampled: the model's defaults must not get in their way.
            assert (await served.post(PATH, prompt="hi", max_tokens=1, n=2, use_beam_search=True))[0] == 200
