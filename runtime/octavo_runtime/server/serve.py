"""The life of a server process: listen, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never

from aiohttp import web

from octavo_runtime.domain import EngineConfig, EngineInfo
from octavo_runtime.errors import CannotListen
from octavo_runtime.ipc.client import ENGINE_COMMAND, EngineClient
from octavo_runtime.server.app import Server
from octavo_runtime.server.errors import HTTP_LOG
from octavo_runtime.server.loading import LoadingDisplay
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.server.prompts import Prompts
from octavo_runtime.server.recording import Recording
from octavo_runtime.server.settings import ServerConfig
from octavo_runtime.text.sampling_defaults import sampling_defaults
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Service", "serve"]

_log = logging.getLogger(__name__)
_BACKLOG = 1024
_FLUSH_SECONDS = 5.0  # for the last bytes of answers


async def serve(config: ServerConfig, engine: EngineConfig, *, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Serves a model until SIGTERM or SIGINT asks for the end; returns when drained.

    Raises:
        StartError: It could not start, or the engine ended.
    """
    service = Service(config, engine, engine_command=engine_command)
    asked, insisted = _signals()
    try:
        await service.start()
        running = asyncio.create_task(service.run())
        either: list[asyncio.Future[Any]] = [running, asked]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            await service.drain(running, insisted)
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running  # raises why the engine ended, if it did
    finally:
        await service.stop()
    _log.info("stopped")


class Service:
    """A server and its engine.

    Args:
        config: The server's settings.
        engine: The engine's settings.
        engine_command: The engine's program; tests give their own.

    Raises:
        BadFlags: The trace cannot be written.

    Attributes:
        client: The engine's end.
        ready: Set once the model is loaded.
        port: Where it listens, once started.
    """

    def __init__(
        self, config: ServerConfig, engine: EngineConfig, *, engine_command: Sequence[str] = ENGINE_COMMAND
    ) -> None:
        self.client = EngineClient(engine, command=engine_command)
        self.ready = asyncio.Event()
        self.port = config.port
        self._config = config
        self._metrics = Metrics(config.served_model_name, self.client, max_num_queued_reqs=config.max_num_queued_reqs)
        self._recording = Recording(config.record_trace)
        self._server = Server(config, self.client, self._metrics, self._recording)
        self.client.on_step = self._metrics.step
        # The handler of a client that is gone is cancelled: that aborts its requests.
        self._runner = web.AppRunner(
            self._server.app(),
            handler_cancellation=True,
            access_log=None,
            logger=HTTP_LOG,
            shutdown_timeout=_FLUSH_SECONDS,
        )

    async def start(self) -> None:
        """Listens, then starts the engine, which loads meanwhile.

        Raises:
            CannotListen: The address is taken or not allowed.
        """
        host, port = self._config.host, self._config.port
        await self._runner.setup()
        try:
            if host:
                await web.TCPSite(self._runner, host, port, backlog=_BACKLOG).start()
            else:
                await web.SockSite(self._runner, _everywhere(port), backlog=_BACKLOG).start()
        except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CannotListen(
                f"cannot listen on {host or 'all addresses,'} port {port}: {why}",
                hint="Stop the program that has the port, or give another --port or --host.",
            ) from error
        self.port = self._runner.addresses[0][1]
        _log.info("listening on %s; loading %s", self._url, self.client.config.model)
        await self.client.start()

    @property
    def _url(self) -> str:
        host = self._config.host or "0.0.0.0"  # noqa: S104 - what people know as all addresses
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def run(self) -> Never:
        """Loads, serves, and raises why the engine ended.

        Raises:
            StartError: The cause.
        """
        with LoadingDisplay() as display:
            self.client.on_loading = display
            model = Path(self.client.config.model)
            if self._config.generation_config == "auto":
                self._server.sampling_defaults = defaults = sampling_defaults(model)
                if defaults:
                    _log.info("requests that do not say are sampled as generation_config.json has it: %s", defaults)
            self._server.prompts = Prompts(await asyncio.to_thread(Tokenizer, model))
            info = await self.client.ready()
        self._metrics.loaded(info, self.client.config)
        self._recording.loaded(info, self.client.config)
        _log.info("ready: %s at %s/v1; %s", self._config.served_model_name, self._url, _describe(info))
        self.ready.set()
        raise await self.client.ended()

    async def drain(self, *cut_short: asyncio.Future[Any]) -> None:
        """Takes no new requests and lets running ones finish, until the timeout or one of the futures is done."""
        self._server.draining = True
        if self._server.num_active:
            _log.info("draining: waiting for %d requests; another signal ends them", self._server.num_active)
        drained = asyncio.create_task(self._server.drained())
        await asyncio.wait(
            [drained, *cut_short], timeout=self._config.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not drained.done():
            _log.warning("ending %d requests that still run", self._server.num_active)
            drained.cancel()

    async def stop(self) -> None:
        """Ends the engine; requests that still run get an error. Then stops listening."""
        await self.client.stop()
        await self._runner.cleanup()
        self._server.close()
        self._recording.close()


def _everywhere(port: int) -> socket.socket:
    """Listens on all addresses, those of IPv6 too where there are such: a pod may have no other."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise
    return socket.create_server(("", port))


def _describe(info: EngineInfo) -> str:
    tokens = info.num_blocks * info.block_size
    return (
        f"{info.device}, {info.dtype}, KV cache in {info.kv_cache_dtype} for {tokens:,} tokens: "
        f"{tokens / info.max_model_len:.1f} requests of the longest length ({info.max_model_len:,})"
    )


def _signals() -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """Futures of the first SIGTERM or SIGINT, which asks for the end, and of the second, which insists."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = [loop.create_future(), loop.create_future()]
    asked, insisted = waiting

    def take() -> None:
        if waiting:
            waiting.pop(0).set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, take)
    return asked, insisted
