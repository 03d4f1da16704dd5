"""The life of a server process: listen, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from octavo_runtime.domain import EngineConfig, EngineInfo
from octavo_runtime.errors import CannotListen, StartError
from octavo_runtime.ipc.client import ENGINE_COMMAND, EngineClient
from octavo_runtime.server.app import Server
from octavo_runtime.server.loading import LoadingDisplay
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.server.settings import ServerConfig
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["serve"]

_log = logging.getLogger(__name__)


async def serve(config: ServerConfig, engine: EngineConfig, *, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Serves a model until a signal asks for the end; returns when drained.

    Raises:
        StartError: It could not start, or the engine ended.
    """
    stop = _Stop()
    client = EngineClient(engine, command=engine_command)
    metrics = Metrics(config.served_model_name, client)
    client.on_step = metrics.step
    server = Server(config, client, metrics)
    # The handler of a client that is gone is cancelled: that aborts its requests.
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await _listen(runner, config)
        await client.start()
        running = asyncio.create_task(_run(server, client, metrics))
        await _first(running, stop.asked)
        if stop.asked.done():
            await _drain(server, config, stop, running)
        else:
            await running  # raises why
    finally:
        await client.stop()
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: ServerConfig) -> None:
    site = web.TCPSite(runner, config.host, config.port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {config.host} port {config.port}: {error.strerror or error}",
            hint="Stop the program that has the port, or give another --port or --host.",
        ) from error
    port = runner.addresses[0][1]
    _log.info("listening on http://%s:%d; loading the model", config.host, port, extra={"port": port})


async def _run(server: Server, client: EngineClient, metrics: Metrics) -> StartError:
    """Loads, then waits for the engine's end, which it raises."""
    with LoadingDisplay() as display:
        client.on_loading = display
        server.tokenizer = await asyncio.to_thread(Tokenizer, Path(client.config.model))
        info = await client.ready()
    metrics.loaded(info, client.config)
    _log.info("ready: %s", _describe(info))
    raise await client.ended()


def _describe(info: EngineInfo) -> str:
    tokens = info.num_blocks * info.block_size
    return (
        f"{info.device}, {info.dtype}, KV cache in {info.kv_cache_dtype} for {tokens:,} tokens: "
        f"{tokens / info.max_model_len:.1f} requests of the longest length ({info.max_model_len:,})"
    )


async def _drain(server: Server, config: ServerConfig, stop: _Stop, running: asyncio.Task[StartError]) -> None:
    """Lets running requests finish, but not for ever; a second signal ends the wait."""
    server.draining = True
    if server.num_active:
        _log.info("draining: waiting for %d requests; another signal ends them", server.num_active)
    drained = asyncio.create_task(server.drained())
    timeout = asyncio.create_task(asyncio.sleep(config.shutdown_timeout))
    await _first(drained, timeout, stop.insisted, running)
    if not drained.done():
        _log.warning("ending %d requests that still run", server.num_active)
    if running.done():
        await running  # the engine ended meanwhile: raises why
    for task in (drained, timeout, running):
        task.cancel()
    await asyncio.gather(drained, timeout, running, return_exceptions=True)
    _log.info("stopped")


async def _first(*futures: asyncio.Future[None] | asyncio.Task[StartError] | asyncio.Task[None]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


class _Stop:
    """SIGTERM and SIGINT: the first asks, the second insists."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = loop.create_future()
        self.insisted: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal)

    def _signal(self) -> None:
        for future in (self.asked, self.insisted):
            if not future.done():
                future.set_result(None)
                return
