"""A real server on loopback with a real engine process, which follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from octavo_runtime.errors import StartError
from octavo_runtime.server.serve import Service
from octavo_runtime.server.settings import ServerConfig
from octavo_runtime.settings import check_values, engine_config
from octavo_runtime.testing import CHAT_TEMPLATE, ENGINE_COMMAND, Script, ids, write_model


@dataclass(frozen=True)
class Served:
    """A running server, and an HTTP client for it."""

    service: Service
    http: aiohttp.ClientSession
    running: asyncio.Task[Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post(path, json=body) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self.http.get(path) as answer:
            return answer.status, await answer.json()

    async def events(self, path: str, **body: Any) -> list[Any]:
        """All events of a stream."""
        async with self.http.post(path, json={"stream": True, **body}) as answer:
            return [event async for event in self.read(answer)]

    @staticmethod
    async def read(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
        """Events of a stream, by the letter of the format: `data: …` and an empty line."""
        assert answer.status == 200, await answer.text()
        while line := await answer.content.readline():
            assert line.startswith(b"data: "), line
            assert await answer.content.readline() == b"\n"
            data = line[6:].decode().strip()
            yield data if data == "[DONE]" else json.loads(data)

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels without model_name, such as 'vllm:request_success_total{abort}'."""
        async with self.http.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        samples = {}
        for line in lines:
            if not line.startswith("#"):
                name, value = line.replace('model_name="tiny"', "").rsplit(" ", 1)
                samples[name.replace("{}", "").replace(",}", "}").replace("{,", "{")] = float(value)
        return samples

    async def until(self, met: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Waits until the metrics meet a condition."""
        async with asyncio.timeout(20):
            while not met(metrics := await self.metrics()):  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(0.01)
        return metrics


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@contextlib.asynccontextmanager
async def serving(folder: Path, script: Script, *, ready: bool = True, **settings: Any) -> AsyncIterator[Served]:
    """Serves a script; settings are those of the engine and of the server, chat_template and engine_command."""
    model = write_model(folder / "tiny", script, chat_template=settings.pop("chat_template", CHAT_TEMPLATE))
    command = settings.pop("engine_command", ENGINE_COMMAND)
    door = {name: settings.pop(name) for name in list(settings) if name in ServerConfig.__dataclass_fields__}
    config = ServerConfig("tiny", host="127.0.0.1", **{"port": 0, **door})
    check_values(settings)
    service = Service(config, engine_config(str(model), settings), engine_command=command)
    try:
        await service.start()
    except StartError:
        await service.stop()
        raise
    running = asyncio.create_task(service.run())
    async with aiohttp.ClientSession(f"http://127.0.0.1:{service.port}") as http:
        try:
            if ready:
                either: list[asyncio.Future[Any]] = [running, asyncio.create_task(service.ready.wait())]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                either[1].cancel()
            yield Served(service, http, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await service.stop()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serves a script of the test's own: `async with serve(script, max_num_seqs=1) as served`."""
    return lambda script, **settings: serving(tmp_path, script, **settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A server that a module's tests share: it answers "Hello, wörld 😀! " over and over."""
    script = Script(reply=ids("Hello, wörld 😀! "), fail_on=1)
    async with serving(tmp_path_factory.mktemp("served"), script, max_body_bytes=100_000) as served:
        yield served
