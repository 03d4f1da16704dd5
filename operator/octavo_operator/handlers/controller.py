"""News in, looks out: the store, the work queue, the workers and the complete lists, on one event loop.

Every source of news ends in `queue.add(key)`; a worker then looks at the whole InferenceService. Nothing depends on
which event came or whether one was missed: a complete list from time to time brings what the watches lost.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from octavo_operator.api.names import (
    CHILDREN,
    INFERENCE_SERVICE,
    WATCHED,
    Key,
    Kind,
    Manifest,
    key_of,
    version_of,
)
from octavo_operator.cluster.port import ClusterPort
from octavo_operator.core.queue import WorkQueue
from octavo_operator.core.silence import Silence
from octavo_operator.core.store import Store
from octavo_operator.errors import ClusterError, Gone, OperatorError, Rejected, Stale, Unavailable
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile import Outcome

__all__ = ["Controller"]

logger = logging.getLogger(__name__)

OUTAGE_SECONDS = 2.0
"""How soon a look is repeated that found no API server: it shall heal at once when the server is back."""

LIST_RETRY_SECONDS = 2.0
STUCK_SECONDS = 300.0
"""A look that takes longer than this is not alive: each of its few requests ends after 30 s."""


class Controller:
    """Feeds the workers.

    Args:
        port: the cluster, for the complete lists.
        store: what is known.
        look: the reconciler's look at one key.
        metrics: counters.
        namespaces: the namespaces to list; none means all.
        workers: how many looks run at once; as many again are for edits alone.
        resync_seconds: time between complete lists.
        turn: set when the workers may begin; until then they only learn what there is. None: at once.
    """

    def __init__(
        self,
        port: ClusterPort,
        store: Store,
        look: Callable[[Key], Awaitable[Outcome]],
        metrics: Metrics,
        *,
        namespaces: tuple[str, ...] = (),
        workers: int = 4,
        resync_seconds: float = 300.0,
        turn: asyncio.Event | None = None,
    ) -> None:
        self._port = port
        self._store = store
        self._look = look
        self._metrics = metrics
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._put_off: dict[str | None, set[Key]] = {scope: set() for scope in self._scopes}
        """By namespace, while no complete list of it is in: what to look at then."""
        self._workers = workers
        self._resync_seconds = resync_seconds
        self._turn = turn
        self._queue: WorkQueue[Key] = WorkQueue()
        self._wake = asyncio.Event()
        self._listed = asyncio.Event()
        self._relist = asyncio.Event()
        self._started: dict[Key, float] = {}
        self._silence = Silence()
        metrics.queue_depth.set_function(self._depth)
        for kind in WATCHED:
            metrics.objects.labels(kind.kind).set_function(partial(store.count, kind))
        metrics.tell_of(partial(store.all, INFERENCE_SERVICE))

    @property
    def is_ready(self) -> bool:
        """Whether the first complete list is in, so that looks see everything."""
        return self._listed.is_set()

    def stuck_looks(self) -> list[Key]:
        """The keys whose look hangs."""
        now = _clock()
        return [key for key, started in self._started.items() if now - started > STUCK_SECONDS]

    def silent_watches(self) -> list[str]:
        """The kinds, and the namespace where they are watched by namespace, whose watch delivers nothing any more."""
        return [f"{kind.kind} in {scope}" if scope else kind.kind for kind, scope in self._silence.silent()]

    def on_event(self, kind: Kind, event_type: str | None, manifest: Manifest) -> None:
        """Takes in a watch event.

        Args:
            kind: the object's kind.
            event_type: ADDED, MODIFIED or DELETED; None for an object in a list that kopf made.
            manifest: the object.
        """
        self._metrics.watch_events.labels(kind.kind).inc()
        self._silence.delivered((kind, self._scope_of(manifest["metadata"]["namespace"])), version_of(manifest))
        known = self._store.generation(kind, key_of(manifest))
        if event_type == "DELETED":
            # A child that is gone is an outage; a whole object that is gone can wait, and so can what goes with it.
            for owner in self._store.delete(kind, manifest):
                is_outage = kind in CHILDREN and self._store.generation(INFERENCE_SERVICE, owner) is not None
                self._add([owner], urgent=is_outage)
            return
        owners = self._store.upsert(kind, manifest)
        edited = kind is INFERENCE_SERVICE and known not in {None, manifest["metadata"]["generation"]}
        self._add(owners, urgent=edited)
        if event_type is None and owners and self.is_ready:
            # kopf listed again, so its watch had lost its place: what vanished meanwhile it does not say.
            self._relist.set()

    def _scope_of(self, namespace: str) -> str | None:
        return None if self._scopes == (None,) else namespace

    def _depth(self) -> int:
        """The keys that wait for a worker; they do not while the workers wait for their turn."""
        return len(self._queue) if self._turn is None or self._turn.is_set() else 0

    def look_at(self, key: Key) -> None:
        """Has an InferenceService looked at, as soon as its turn comes."""
        self._add([key])

    async def run(self) -> None:
        """Lists, then works, until cancelled.

        Raises:
            Gone: the CRD is not installed.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._list_forever(), name="complete lists")
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"worker {number}")
                # An edit overtakes a burst in the queue; it shall not wait for the looks that are under way either.
                tasks.create_task(self._work(urgent_only=True), name=f"worker {number} for edits")

    def _add(self, keys: Iterable[Key], *, urgent: bool = False) -> None:
        for key in sorted(keys):  # sets have another order in each process, and a run must be repeatable
            self._queue.add(key, urgent=urgent)
        self._wake.set()

    async def _list_forever(self) -> None:
        while True:
            try:
                await self._list_all()
            except Gone:
                raise
            except ClusterError as error:
                logger.warning("cannot list: %s", error)
                self._silence.interrupted(self._scopes)
                await asyncio.sleep(LIST_RETRY_SECONDS)
                continue
            if not self.is_ready:
                logger.info("known: %s", {kind.kind: self._store.count(kind) for kind in WATCHED})
                self._listed.set()
            if self.silent_watches():
                logger.error("silent watches, which owe what the lists show: %s", ", ".join(self.silent_watches()))
            due = self._silence.due()
            pause = self._resync_seconds if due is None else min(self._resync_seconds, due - _clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._relist.wait()
            self._relist.clear()

    async def _list_all(self) -> None:
        """Lists all namespaces that may be read.

        Raises:
            ClusterError: there is none, or the API server does not answer.
        """
        refusals: list[Rejected] = []
        for scope in self._scopes:
            try:
                for kind in WATCHED:
                    newest = await self._list(kind, scope)
                    self._silence.listed((kind, scope), newest, _clock())
            except Rejected as error:
                # Its Role is gone, mostly with the namespace itself: no reason to leave the others alone.
                refusals.append(error)
                self._silence.interrupted((scope,))
            else:
                self._add(self._put_off.pop(scope, ()))
        if len(refusals) == len(self._scopes):
            raise refusals[0]
        for refusal in refusals:
            logger.warning("a namespace is left alone: %s", refusal)
        if not refusals:
            self._metrics.last_list.set_to_current_time()

    async def _list(self, kind: Kind, scope: str | None) -> int:
        """Makes the store equal to a complete list; the version of the newest object in it."""
        listed: set[Key] = set()
        token, newest = "", 0
        while True:
            page = await self._port.list_page(kind, scope, token)
            for one in page.items:
                listed.add(one.key)
                newest = max(newest, one.version)
                if self._store.is_news(kind, one.key, one.version):
                    self._add(self._store.upsert(kind, one.manifest()))
            token = page.more
            if not token:
                self._add(self._store.prune(kind, scope, listed, page.version))
                return newest

    async def _work(self, *, urgent_only: bool = False) -> None:
        await self._listed.wait()
        if self._turn is not None:
            await self._turn.wait()
        while True:
            key = self._queue.take(_clock(), urgent_only=urgent_only)
            if key is None:
                await self._sleep()
                continue
            self._started[key] = _clock()
            try:
                put_off = self._put_off.get(self._scope_of(key[0]))
                if put_off is None:
                    await self._look_at(key)
                else:  # a look would judge by half of what is there
                    put_off.add(key)
            finally:
                self._metrics.reconcile_seconds.observe(_clock() - self._started.pop(key))
                self._queue.done(key)
                self._wake.set()  # one that gave way may go on

    async def _sleep(self) -> None:
        """Waits for news, or for the next key that is due."""
        due = self._queue.next_due(_clock())
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - _clock())):
                await self._wake.wait()

    async def _look_at(self, key: Key) -> None:
        name = "/".join(key)
        try:
            outcome = await self._look(key)
        except (Unavailable, Stale) as error:
            logger.warning("%s: %s; looking again", name, error)
            self._look_again(key, OUTAGE_SECONDS, "failed")
        except OperatorError as error:
            logger.error("%s: %s", name, error)  # noqa: TRY400 the message is all that helps
            self._back_off(key)
        except Exception:
            # A fault of ours in one object must not stop the others.
            logger.exception("%s: a look failed", name)
            self._back_off(key)
        else:
            if outcome.edited:
                self._add([key], urgent=True)
            if outcome.failed:
                self._back_off(key)
                return
            self._queue.succeed(key)
            if outcome.look_again_after is None:
                self._metrics.reconciles.labels("done").inc()
            else:
                self._look_again(key, outcome.look_again_after, "waiting")

    def _look_again(self, key: Key, delay: float, outcome: str) -> None:
        self._metrics.reconciles.labels(outcome).inc()
        self._queue.add_at(key, _clock() + delay * (1 + random.random() / 4))  # noqa: S311 spreads the load
        self._wake.set()

    def _back_off(self, key: Key) -> None:
        self._metrics.reconciles.labels("failed").inc()
        self._queue.retry(key, _clock(), jitter=random.random())  # noqa: S311 spreads the load
        self._wake.set()


def _clock() -> float:
    """The time by which the loop's own timeouts go, so that a loop with another clock moves everything here."""
    return asyncio.get_running_loop().time()
