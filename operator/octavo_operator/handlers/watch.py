"""kopf as the watcher: it delivers events and does nothing else.

Handlers of `kopf.on.event` add neither a finalizer nor an annotation. kopf's own storages are replaced by ones that
store nothing: it would compute a copy of every object for handlers that do not exist.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from octavo_operator.api.names import INFERENCE_SERVICE, MANAGED_SELECTOR, WATCHED, Kind, Manifest
from octavo_operator.cluster.client import Connection

__all__ = ["EventSink", "watch"]

EventSink = Callable[[Kind, str | None, Manifest], None]
"""Takes (kind, event type or None for an object of a list, object)."""

LOGIN_LIFETIME = timedelta(minutes=10)
"""A service account's token is rotated: it must be read again."""


class _Forever:
    """Backoffs without end. kopf iterates them anew for each request, which an iterator would not survive."""

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(1.0)


class _NoDiffBase(kopf.DiffBaseStorage):
    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        pass


class _NoProgress(kopf.ProgressStorage):
    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: Any) -> Any:
        return essence


async def watch(
    sink: EventSink,
    connect: Callable[[], Awaitable[Connection]],
    *,
    namespaces: tuple[str, ...],
    ready: asyncio.Event,
) -> None:
    """Watches until cancelled; when it returns or raises by itself, the operator must end.

    Args:
        sink: gets every event.
        connect: tells the credentials, at the start and from time to time.
        namespaces: the namespaces to watch; none means all.
        ready: set when kopf has started.
    """
    scope: dict[str, Any] = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    # `stop_flag` is left out: with it an exit takes five seconds.
    await kopf.operator(
        registry=_registry(sink, connect),
        # Without one kopf asks for the user's name, which the user id of a container need not have.
        identity="octavo-operator",  # type: ignore[arg-type]  # kopf's Identity is a str without a public name
        standalone=True,
        ready_flag=ready,
        **scope,
    )


def _registry(sink: EventSink, connect: Callable[[], Awaitable[Connection]]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _login(await connect())

    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(_handler(sink, kind))
    return registry


def _handler(sink: EventSink, kind: Kind) -> Callable[..., Awaitable[None]]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        sink(kind, event["type"], dict(event["object"]))

    return handle


def _configure(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # A watch that goes silent is the classic fault: the server ends each after five minutes, bookmarks show life.
    settings.watching.server_timeout = 300
    settings.watching.inactivity_timeout = 70
    settings.watching.connect_timeout = settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.watching.chunk_size = 250
    # A worker of kopf's keeps its last event for as long as it idles: after a start, that is all objects there are.
    settings.queueing.idle_timeout = 0.1
    settings.networking.error_backoffs = _Forever()
    # Without these lines the API server sends every Deployment, Service and Pod there is.
    for kind in WATCHED:
        if kind != INFERENCE_SERVICE:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = MANAGED_SELECTOR
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()


def _login(connection: Connection) -> kopf.ConnectionInfo:
    scheme, _, token = (connection.authorization or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=connection.server,
        insecure=not connection.verify,
        ca_path=connection.ca_path,
        certificate_path=connection.certificate_path,
        private_key_path=connection.key_path,
        scheme=scheme or None,
        token=token or None,
        expiration=datetime.now(UTC) + LOGIN_LIFETIME,
    )
