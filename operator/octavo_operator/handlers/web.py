"""The operator's own HTTP server: /livez, /readyz, /metrics.

/livez fails when a look hangs or a watch is silent; an API server that is away is no reason to restart. /readyz waits for the first
complete list, and for the first look at the Lease: an operator that stands by is ready when it could take over.
"""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_operator.handlers.controller import Controller
from octavo_operator.handlers.lead import Elector
from octavo_operator.metrics import Metrics

__all__ = ["start_server"]


async def start_server(
    controller: Controller, elector: Elector | None, metrics: Metrics, *, host: str, port: int
) -> web.AppRunner:
    """Starts to listen; `cleanup()` of the result ends it.

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

    application = web.Application()
    application.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
