"""A way to the API server that can fail: an HTTP proxy on this machine, in a thread of its own."""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
from aiohttp import web

from operator_harness import free_port


class FaultyProxy:
    """A way to the API server that can fail: every request passes through, until it is told otherwise.

    Attributes:
        down: answers `status` to everything.
        status: the HTTP status of an outage.
        mute: watches stay open, and nothing comes through them.
        gone_watches: how many of the next watches have expired: 410 Gone as their only event, as an API server does it.
        missing: a resource that is answered 404, as if its CRD were not there.
    """

    def __init__(self, cluster: Mapping[str, str]) -> None:
        self._upstream = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self.down = False
        self.status = 503
        self.mute = False
        self.gone_watches = 0
        self.missing = ""
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._streams: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_watches()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def cut_watches(self) -> None:
        """Ends every open watch."""
        for stream in list(self._streams):
            self._loop.call_soon_threadsafe(stream.cancel)

    async def _serve(self) -> None:
        self._connector = aiohttp.TCPConnector()
        self._session = aiohttp.ClientSession(connector=self._connector, auto_decompress=False)
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._connector.close(abort_ssl=True)
        await self._session.close()
        await asyncio.sleep(0.1)  # an aborted transport closes its socket in one of the loop's next rounds

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return web.json_response({"kind": "Status", "message": "the proxy plays dead"}, status=self.status)
        if self.missing and f"/{self.missing}" in request.path:
            return web.Response(status=404, text="404 page not found\n")
        watching = request.query.get("watch") in {"true", "1"}
        if watching and self.gone_watches > 0:
            self.gone_watches -= 1
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            return web.json_response({"type": "ERROR", "object": status})
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in {"host", "content-length"}
        }
        body = await request.read() or None
        url = self._upstream + request.raw_path
        async with self._session.request(request.method, url, headers=headers, data=body, ssl=self._tls) as answer:
            response = web.StreamResponse(status=answer.status)
            for name in ("Content-Type", "Content-Encoding"):
                if name in answer.headers:
                    response.headers[name] = answer.headers[name]
            await response.prepare(request)
            task = asyncio.current_task()
            assert task is not None
            if watching:
                self._streams.add(task)
            try:
                async for chunk in answer.content.iter_any():
                    if not (watching and self.mute):
                        await response.write(chunk)
            finally:
                self._streams.discard(task)
                if answer.connection is not None and answer.connection.transport is not None:
                    # Cut short: a TLS farewell would outlive the loop.
                    answer.connection.transport.abort()
            await response.write_eof()
            return response
