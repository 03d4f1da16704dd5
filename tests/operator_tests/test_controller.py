import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from octavo_operator.api.names import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    SERVICE,
    WATCHED,
    Key,
    Kind,
    Manifest,
)
from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.cluster.port import Listed, Page
from octavo_operator.core.store import Store
from octavo_operator.errors import Gone, OperatorError, Rejected, Unavailable
from octavo_operator.handlers import controller as controller_module
from octavo_operator.handlers.controller import Controller
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile import Outcome, Reconciler
from octavo_operator.testing import FakeCluster, inference_service

KEY = ("default", "chat")
LOCAL: dict[str, Any] = {"model": {"uri": "file:///m"}}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 the conditions are states of the fake, which sets no events
            await asyncio.sleep(0.001)


class Operator:
    """A running controller on a FakeCluster; `deaf` loses the events."""

    def __init__(
        self,
        cluster: FakeCluster,
        resync_seconds: float = 300.0,
        turn: asyncio.Event | None = None,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self.cluster = cluster
        self.deaf = False
        self.looks: list[Key] = []
        self.metrics = Metrics()
        store = Store()
        self.reconciler = Reconciler(
            cluster,
            store,
            self.metrics,
            autoscaler=Autoscaler(
                cluster,
                store,
                Scraper(),
                self.metrics,
                notify=lambda key: self.controller.look_at(key),  # noqa: PLW0108 it comes later
            ),
            runtime_image="image",
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
        )
        self.controller = Controller(
            cluster, store, self.look, self.metrics, namespaces=namespaces, resync_seconds=resync_seconds, turn=turn
        )
        cluster.subscribe(self.hear)

    def hear(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        if kind in WATCHED and not self.deaf:
            self.controller.on_event(kind, event_type, manifest)

    async def look(self, key: Key) -> Outcome:
        self.looks.append(key)
        return await self.reconciler.reconcile(key)


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[None]:
    task = asyncio.create_task(operator.controller.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def test_run_serves_what_was_there_and_what_comes(cluster: FakeCluster) -> None:
    cluster.put(inference_service("early", **LOCAL))
    operator = Operator(cluster)
    async with running(operator):
        await until(lambda: len(cluster.all(SERVICE)) == 1)
        cluster.put(inference_service("late", **LOCAL))
        await until(lambda: len(cluster.all(DEPLOYMENT)) == 2)
        cluster.delete(SERVICE, ("default", "early"))
        await until(lambda: len(cluster.all(SERVICE)) == 2)


async def test_metrics_tell_the_statuses_that_are_known(cluster: FakeCluster) -> None:
    cluster.put(inference_service(**LOCAL))
    operator = Operator(cluster)
    labels = {"namespace": "default", "inferenceservice": "chat"}

    def sample(name: str, **more: str) -> float | None:
        return operator.metrics.registry.get_sample_value(f"octavo_operator_{name}", labels | more)

    async with running(operator):
        await until(lambda: sample("condition", type="Ready", reason="Starting") == 0)
        assert sample("ready_replicas") == 0
        cluster.delete(INFERENCE_SERVICE, KEY)
        await until(lambda: sample("ready_replicas") is None)


async def test_run_looks_at_an_edit_while_every_worker_is_busy(cluster: FakeCluster) -> None:
    cluster.put(inference_service(**LOCAL))
    operator = Operator(cluster)
    async with running(operator):
        await until(lambda: cluster.all(DEPLOYMENT))
        answer = asyncio.Event()

        async def look(key: Key) -> Outcome:
            operator.looks.append(key)
            if key != KEY:
                await answer.wait()  # an API server that takes its time
            return await operator.reconciler.reconcile(key)

        operator.controller._look = look
        for number in range(10):
            cluster.put(inference_service(f"burst-{number}", **LOCAL))
        await until(lambda: len(operator.controller._started) == 4)
        cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=3))
        await until(lambda: cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 3)
        answer.set()
        await until(lambda: len(cluster.all(DEPLOYMENT)) == 11)


async def test_run_takes_in_every_page_of_a_list(cluster: FakeCluster) -> None:
    names = [f"chat-{number}" for number in range(5)]
    for name in names:
        cluster.put(inference_service(name, **LOCAL))
    operator = Operator(cluster)
    operator.deaf = True
    async with running(operator):
        await until(lambda: len(cluster.all(SERVICE)) == len(names))


async def test_run_does_not_look_before_it_has_seen_everything(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "LIST_RETRY_SECONDS", 0.05)
    cluster.fail_on("list_page", POD, Unavailable("starting"), Unavailable("starting"))
    operator = Operator(cluster)
    async with running(operator):
        cluster.put(inference_service(**LOCAL))
        await until(lambda: len(cluster._faults) == 1)  # the first list has failed, the second not begun
        await asyncio.sleep(0.01)
        assert operator.looks == []
        await until(lambda: operator.controller.is_ready)
        await until(lambda: operator.looks)


async def test_run_without_the_crd_raises(cluster: FakeCluster) -> None:
    cluster.fail_on("list_page", INFERENCE_SERVICE, Gone("the server could not find the requested resource"))
    with pytest.raises(ExceptionGroup) as caught:
        await Operator(cluster).controller.run()
    assert caught.group_contains(Gone)


async def test_run_heals_soon_after_an_outage(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "OUTAGE_SECONDS", 0.01)
    operator = Operator(cluster)
    async with running(operator):
        await until(lambda: operator.controller.is_ready)
        cluster.fail_on("apply", SERVICE, *[Unavailable("down")] * 20)
        cluster.put(inference_service(**LOCAL))
        await until(lambda: cluster.all(SERVICE))
    assert operator.metrics.reconciles.labels("failed")._value.get() == 20


async def test_run_complete_list_heals_what_the_watches_lost(cluster: FakeCluster) -> None:
    operator = Operator(cluster, resync_seconds=0.05)
    async with running(operator):
        cluster.put(inference_service(**LOCAL))
        cluster.put(inference_service("dies", **LOCAL))
        await until(lambda: len(cluster.all(SERVICE)) == 2)
        operator.deaf = True
        cluster.delete(SERVICE, KEY)
        cluster.delete(INFERENCE_SERVICE, ("default", "dies"))
        await until(lambda: len(cluster.all(SERVICE)) == 1)
        assert operator.metrics.objects.labels("InferenceService").collect()
        await until(lambda: operator.controller._store.count(INFERENCE_SERVICE) == 1)


async def test_run_complete_list_parses_nothing_that_is_known(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Key] = []
    manifest = Listed.manifest

    def counting(listed: Listed) -> Manifest:
        parsed.append(listed.key)
        return manifest(listed)

    monkeypatch.setattr(Listed, "manifest", counting)
    cluster.put(inference_service(**LOCAL))
    operator = Operator(cluster, resync_seconds=0.01)
    async with running(operator):
        await until(lambda: cluster.all(INFERENCE_SERVICE)[0].get("status"))
        await until(lambda: not operator.controller._started)  # the answer to its status is taken in, too
        operator.deaf = True
        parsed.clear()
        cluster.put(inference_service("second", **LOCAL))
        await until(lambda: len(cluster.all(SERVICE)) == 2)
    assert set(parsed) == {("default", "second")}


async def test_on_event_of_a_new_list_by_kopf_makes_a_list_of_our_own(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    async with running(operator):
        cluster.put(inference_service(**LOCAL))
        await until(lambda: cluster.all(SERVICE))
        operator.deaf = True
        cluster.delete(SERVICE, KEY)
        # What kopf reports after a 410: the objects that there are, not the one that vanished.
        cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(labels={"a": "b"}))
        (listed,) = cluster.all(INFERENCE_SERVICE)
        operator.controller.on_event(INFERENCE_SERVICE, None, listed)
        await until(lambda: cluster.all(SERVICE))


async def test_on_event_edit_overtakes_a_burst(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    first = cluster.put(inference_service("edited", **LOCAL))
    async with running(operator):
        await until(lambda: operator.looks)
        await until(lambda: len(cluster.all(DEPLOYMENT)) == 1)
        operator.looks.clear()
        for number in range(50):
            cluster.put(inference_service(f"burst-{number}", **LOCAL))
        cluster.edit(INFERENCE_SERVICE, ("default", "edited"), lambda one: one["spec"].update(replicas=3))
        await until(lambda: len(operator.looks) > 50)
    assert first["metadata"]["generation"] == 1
    assert operator.looks[0] == ("default", "edited")


async def test_run_survives_a_fault_of_ours_in_one_object(cluster: FakeCluster) -> None:
    async def look(key: Key) -> Outcome:
        looks.append(key)
        if key[1] == "evil":
            raise ZeroDivisionError
        return Outcome()

    looks: list[Key] = []
    controller = Controller(cluster, Store(), look, Metrics(), workers=1)
    task = asyncio.create_task(controller.run())
    for name in ("evil", "good"):
        controller.on_event(INFERENCE_SERVICE, "ADDED", cluster.put(inference_service(name)))
    await until(lambda: ("default", "good") in looks)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_stuck_looks_names_the_one_that_hangs(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "STUCK_SECONDS", 0.01)

    async def look(_: Key) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    controller = Controller(cluster, Store(), look, Metrics())
    task = asyncio.create_task(controller.run())
    controller.on_event(INFERENCE_SERVICE, "ADDED", cluster.put(inference_service()))
    await until(controller.stuck_looks)
    assert controller.stuck_looks() == [KEY]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_run_creates_one_at_a_time_while_edits_come(cluster: FakeCluster) -> None:
    """What a burst writes is what an edit would wait for at the API server."""
    cluster.put(inference_service(**LOCAL))
    operator = Operator(cluster)
    under_way: set[Key] = set()
    most = 0

    async def look(key: Key) -> Outcome:
        nonlocal most
        under_way.add(key)
        await asyncio.sleep(0)
        if operator.controller._queue._calm_at > asyncio.get_running_loop().time():
            most = max(most, len(under_way - {KEY}))
        under_way.remove(key)
        return await operator.reconciler.reconcile(key)

    async with running(operator):
        await until(lambda: cluster.all(DEPLOYMENT))
        operator.controller._look = look
        cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=3))
        await until(lambda: cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 3)
        for number in range(20):
            cluster.put(inference_service(f"burst-{number}", **LOCAL))
        await until(lambda: len(cluster.all(DEPLOYMENT)) == 21)
        assert most == 1


@pytest.mark.parametrize("failed", [False, True])
async def test_run_edit_that_an_answer_brought_overtakes_the_burst_and_waits_for_no_backoff(failed: bool) -> None:
    looks: list[str] = []

    async def look(key: Key) -> Outcome:
        looks.append(key[1])
        return Outcome(failed=failed, edited=looks == ["edited"])

    controller = Controller(FakeCluster(), Store(), look, Metrics(), workers=1)
    for name in ("edited", "burst-1", "burst-2"):
        controller.look_at(("default", name))
    task = asyncio.create_task(controller.run())
    await until(lambda: len(looks) == 4)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert looks == ["edited", "edited", "burst-1", "burst-2"]


async def test_on_event_children_that_go_with_their_owner_are_no_outage(cluster: FakeCluster) -> None:
    operator = Operator(cluster)
    async with running(operator):
        cluster.put(inference_service(**LOCAL))
        await until(lambda: cluster.all(DEPLOYMENT))
    cluster.delete(INFERENCE_SERVICE, KEY)
    assert cluster.all(SERVICE) == []
    assert not operator.controller._queue._urgent
    assert len(operator.controller._queue) == 1


async def test_run_failed_look_backs_off(cluster: FakeCluster) -> None:
    async def look(_: Key) -> Outcome:
        times.append(time.monotonic())
        if len(times) == 1:
            raise OperatorError("refused")
        return Outcome()

    times: list[float] = []
    controller = Controller(cluster, Store(), look, Metrics())
    task = asyncio.create_task(controller.run())
    controller.on_event(INFERENCE_SERVICE, "ADDED", cluster.put(inference_service()))
    await until(lambda: len(times) == 2)
    assert times[1] - times[0] >= 1.0
    await until(lambda: not controller._queue._failures)  # the next failure starts from one second again
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_run_before_its_turn_learns_and_does_nothing(cluster: FakeCluster) -> None:
    """What stands by knows everything already when its turn comes."""
    cluster.put(inference_service("early", **LOCAL))
    turn = asyncio.Event()
    operator = Operator(cluster, turn=turn)
    async with running(operator):
        await until(lambda: operator.controller.is_ready)
        cluster.put(inference_service("late", **LOCAL))
        await asyncio.sleep(0.01)
        assert cluster.writes == 0
        assert operator.looks == []
        assert operator.metrics.registry.get_sample_value("octavo_operator_queue_depth") == 0
        turn.set()
        await until(lambda: len(cluster.all(SERVICE)) == 2)


async def test_silent_watches_names_the_kind_whatever_we_write_ourselves(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store learns of the children from the answers to our own writes; that is no sign of life of their watches."""
    operator = Operator(cluster)
    monkeypatch.setattr(operator.controller._silence, "patience", 0.05)
    async with running(operator):
        cluster.put(inference_service(**LOCAL))
        await until(lambda: cluster.all(SERVICE) and not operator.controller.silent_watches())
        operator.deaf = True
        cluster.delete(SERVICE, KEY)
        operator.controller._relist.set()
        await until(lambda: len(cluster.all(SERVICE)) == 1)
        operator.controller._relist.set()
        await until(operator.controller.silent_watches)
        assert "Service" in operator.controller.silent_watches()
        assert "Pod" not in operator.controller.silent_watches()
        operator.deaf = False
        cluster.edit(SERVICE, KEY, lambda one: one["metadata"].update(annotations={"a": "b"}))
        assert "Service" not in operator.controller.silent_watches()


async def test_silent_watches_names_the_namespace_where_there_are_several(cluster: FakeCluster) -> None:
    controller = Controller(cluster, Store(), Operator(cluster).look, Metrics(), namespaces=("default", "other"))
    controller._silence.listed((SERVICE, "default"), 1, 0.0)
    controller._silence.listed((SERVICE, "default"), 1, 100.0)
    controller.on_event(SERVICE, "ADDED", {"metadata": {"namespace": "other", "name": "a", "resourceVersion": "9"}})
    assert controller.silent_watches() == ["Service in default"]


class Narrow(FakeCluster):
    """Lists nothing in the namespaces that are `closed`."""

    closed = frozenset[str | None]()

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        if namespace in self.closed:
            raise Rejected(f"cannot list {kind.plural} in the namespace {namespace}", status=403)
        return await super().list_page(kind, namespace, token, owner=owner)


@pytest.mark.parametrize("closed_at_start", [True, False])
async def test_run_namespace_that_may_not_be_read_holds_up_no_other(
    closed_at_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Role is gone, mostly with the namespace itself."""
    cluster = Narrow()
    cluster.namespaces |= {"other"}
    operator = Operator(cluster, namespaces=("other", "default"))
    if closed_at_start:
        cluster.closed = frozenset({"other"})
    cluster.put(inference_service(**LOCAL))
    async with running(operator):
        await until(lambda: cluster.peek(DEPLOYMENT, KEY))
        cluster.closed = frozenset({"other"})
        operator.controller._relist.set()
        await until(lambda: not operator.controller._relist.is_set())
        cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=3))
        await until(lambda: cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 3)
        assert operator.controller.is_ready
        assert "cannot list inferenceservices in the namespace other" in caplog.text
        # When it may be read again, all is as ever: nothing of it is touched before all of it is known.
        operator.deaf = True
        cluster.put(inference_service(namespace="other", **LOCAL))
        cluster.closed = frozenset()
        operator.controller._relist.set()
        await until(lambda: cluster.peek(DEPLOYMENT, ("other", "chat")))
        caplog.clear()
        operator.controller._relist.set()
        await until(lambda: not operator.controller._relist.is_set())
        assert caplog.text == ""


async def test_run_looks_at_nothing_in_a_namespace_that_is_not_listed() -> None:
    cluster = Narrow()
    cluster.namespaces |= {"other"}
    cluster.closed = frozenset({"other"})
    operator = Operator(cluster, namespaces=("default", "other"))
    async with running(operator):
        cluster.put(inference_service(namespace="other", **LOCAL))
        cluster.put(inference_service(**LOCAL))
        await until(lambda: cluster.peek(DEPLOYMENT, KEY))
        await asyncio.sleep(0.01)
        assert {key for key in operator.looks if key[0] == "other"} == set()
        cluster.closed = frozenset()
        operator.controller._relist.set()
        await until(lambda: cluster.peek(DEPLOYMENT, ("other", "chat")))


async def test_run_without_a_namespace_that_may_be_read_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "LIST_RETRY_SECONDS", 0.001)
    cluster = Narrow()
    cluster.closed = frozenset({"default", "other"})
    operator = Operator(cluster, namespaces=("default", "other"))
    cluster.put(inference_service(**LOCAL))
    async with running(operator):
        await asyncio.sleep(0.01)
        assert not operator.controller.is_ready
        cluster.closed = frozenset()
        await until(lambda: cluster.peek(DEPLOYMENT, KEY))
