"""The parts put together: runs until a signal, or until a part ends by itself."""

import asyncio
import gc
import logging
import signal
import time
from datetime import UTC, datetime

from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.cluster.client import KubernetesClient
from octavo_operator.cluster.port import ClusterPort
from octavo_operator.core.store import Store
from octavo_operator.errors import Gone, NotLeading, OperatorError, SettingsError
from octavo_operator.handlers.controller import Controller
from octavo_operator.handlers.lead import Elector, Fenced, new_identity
from octavo_operator.handlers.watch import watch
from octavo_operator.handlers.web import start_server
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile import Reconciler
from octavo_operator.settings import Settings

__all__ = ["run"]

logger = logging.getLogger("octavo_operator")


async def run(settings: Settings) -> None:
    """Runs the operator until SIGTERM or SIGINT.

    Raises:
        OperatorError: it cannot start, or a part of it ended by itself.
    """
    _tame_collections()
    metrics, store = Metrics(), Store()
    client = await KubernetesClient.connect(settings.kubeconfig)
    elector = Elector(client, settings.lease, new_identity()) if settings.lease is not None else None
    metrics.leader.set_function(lambda: elector is None or elector.leads)
    port: ClusterPort = client if elector is None else Fenced(client, elector)
    autoscaler = Autoscaler(port, store, Scraper(), metrics, notify=lambda key: controller.look_at(key))  # noqa: PLW0108 it comes later
    reconciler = Reconciler(
        port,
        store,
        metrics,
        autoscaler=autoscaler,
        runtime_image=settings.runtime_image,
        allowed=settings.allowed,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
    )
    controller = Controller(
        client,
        store,
        reconciler.reconcile,
        metrics,
        namespaces=settings.namespaces,
        workers=settings.workers,
        resync_seconds=settings.resync_seconds,
        turn=None if elector is None else elector.elected,
    )
    try:
        server = await start_server(
            controller, elector, metrics, autoscaler.recording, host=settings.host, port=settings.port
        )
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        await client.close()
        raise SettingsError(
            f"cannot listen on {settings.host or '*'}:{settings.port}: {error}; choose another --port"
        ) from error
    try:
        await _supervise(controller, autoscaler, elector, client, settings)
    finally:
        await server.cleanup()
        await client.close()


def _tame_collections() -> None:
    """Keeps Python's collector from holding the event loop.

    A full collection walks through every object there is, 70 ms of processor with 800 InferenceServices, of which what
    has been imported is half; in a burst there was one every few seconds.

    What it collects are kopf's views of an event, which refer to each other: 40 objects for an event, and what the event
    itself holds. Nothing of ours is among it, nor what an outage leaves. They die young, so that those of some hundred
    events wait for a collection, 6 MB, however many InferenceServices there are (docs/benchmarks.md).
    """
    gc.freeze()  # what has been imported lives as long as the process
    gc.set_threshold(20_000, 20, 20)


async def _supervise(
    controller: Controller,
    autoscaler: Autoscaler,
    elector: Elector | None,
    client: KubernetesClient,
    settings: Settings,
) -> None:
    """Runs election, controller and watches; the end of one is the end of all, and of what the controller began."""
    # When kopf ends it cancels every task that is younger than itself: the others must be older.
    parts = [asyncio.create_task(controller.run(), name="controller")]
    if elector is not None:
        parts.append(asyncio.create_task(elector.run(), name="election"))
    started = asyncio.Event()
    parts.append(
        asyncio.create_task(
            watch(controller.on_event, client.connection, namespaces=settings.namespaces, ready=started), name="kopf"
        )
    )
    stopped = asyncio.create_task(_stop_signal(started), name="signals")
    tasks = {*parts, stopped}
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks - done:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await autoscaler.close()
    if elector is not None:
        # Nothing writes any more, whatever it was that ended.
        await elector.release()
    if stopped in done:
        logger.info("stopped")
        return
    raise _reason(next(part for part in parts if part in done))


async def _stop_signal(started: asyncio.Event) -> None:
    """Returns on SIGTERM or SIGINT."""
    # kopf installs handlers of its own while it starts; these must come after, or an exit takes seconds.
    await started.wait()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    logger.info("started")
    await stop.wait()


def _reason(task: asyncio.Task[None]) -> OperatorError:
    """Why a task ended that should not have."""
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NotLeading):
        return error
    if isinstance(error, Gone):
        return OperatorError(
            "the CRD inferenceservices.octavo.dev is not installed: kubectl apply --server-side -f crds/, or install "
            f"the chart with crds.enabled=true ({error})"
        )
    return OperatorError(f"{task.get_name()} ended by itself: {error!r}")
