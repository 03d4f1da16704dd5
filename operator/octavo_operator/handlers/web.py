"""The operator's own HTTP server: /livez, /readyz, /metrics, and what the autoscaler decided from what.

/livez fails when a look hangs or a watch is silent; an API server that is away is no reason to restart. /readyz waits for the first
complete list, and for the first look at the Lease: an operator that stands by is ready when it could take over.
/autoscaling/NAMESPACE/NAME is known to the one that leads alone.
"""

import errno
import socket
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_operator.api.names import Key
from octavo_operator.handlers.controller import Controller
from octavo_operator.handlers.lead import Elector
from octavo_operator.metrics import Metrics

__all__ = ["start_server"]


async def start_server(
    controller: Controller,
    elector: Elector | None,
    metrics: Metrics,
    recording: Callable[[Key], Iterator[bytes] | None],
    *,
    host: str,
    port: int,
) -> web.AppRunner:
    """Starts to listen; `cleanup()` of the result ends it.

    Args:
        controller: whose state /livez and /readyz tell.
        elector: likewise; None without a Lease.
        metrics: for /metrics.
        recording: the autoscaler's decisions about an InferenceService, as text.
        host: address to listen on; empty for all.
        port: port to listen on.

    Raises:
        OSError: the address is taken or not allowed.
    """

    async def livez(_: web.Request) -> web.Response:
        stuck = controller.stuck_looks()
        if stuck:
            names = ", ".join("/".join(key) for key in stuck)
            return web.Response(status=503, text=f"looks that hang: {names}\n")
        silent = controller.silent_watches()
        if silent:
            return web.Response(status=503, text=f"watches that deliver nothing any more: {', '.join(silent)}\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if not controller.is_ready:
            return web.Response(status=503, text="the first complete list is not in yet\n")
        if elector is not None and not elector.is_ready:
            return web.Response(status=503, text="the Lease could not be read yet; the log says why\n")
        return web.Response(text="ok\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def decisions(request: web.Request) -> web.StreamResponse:
        key = request.match_info["namespace"], request.match_info["name"]
        text = recording(key)
        if text is None:
            why = "it has no spec.autoscaling, is stopped, or another operator leads"
            return web.Response(status=404, text=f"this operator does not scale {'/'.join(key)}: {why}\n")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        for part in text:
            await answer.write(part)
        return answer

    application = web.Application()
    application.add_routes(
        [
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
            web.get("/autoscaling/{namespace}/{name}", decisions),
        ]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await (web.TCPSite(runner, host, port) if host else web.SockSite(runner, _everywhere(port))).start()
    return runner


def _everywhere(port: int) -> socket.socket:
    """Listens on all addresses, those of IPv6 too where there are such: a pod may have no other."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise
    return socket.create_server(("", port))
