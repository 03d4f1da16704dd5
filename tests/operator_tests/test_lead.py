import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_operator.api.names import LEASE, SERVICE, Kind, Manifest
from octavo_operator.core.election import Durations
from octavo_operator.errors import NotLeading, Rejected, Unavailable
from octavo_operator.handlers.lead import Elector, Fenced, new_identity, seconds_since_boot
from octavo_operator.testing import FakeCluster, inference_service

NAME = ("default", "octavo-operator")
QUICK = Durations(retry=0.001)


class Clock:
    """Stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LosesAnswers(FakeCluster):
    """Stores a write of the Lease, and then the line is dead."""

    lost = 0

    async def update(self, manifest: Manifest) -> Manifest:
        answer = await super().update(manifest)
        if self.lost:
            self.lost -= 1
            raise Unavailable("the connection was cut")
        return answer


class HangsOnce(FakeCluster):
    hung = False

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        if not self.hung:
            self.hung = True
            await asyncio.Event().wait()
        return await super().get(kind, namespace, name)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def elector(cluster: FakeCluster, clock: Clock, identity: str = "me", durations: Durations = QUICK) -> Elector:
    return Elector(cluster, NAME, identity, clock=clock, durations=durations)


@asynccontextmanager
async def running(candidate: Elector) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(candidate.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, NotLeading):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 the conditions are states of the fake, which sets no events
            await asyncio.sleep(0.001)


def lease(cluster: FakeCluster) -> Any:
    return cluster.all(LEASE)[0]["spec"]


def renewals(cluster: FakeCluster) -> Callable[[], int]:
    before = cluster.writes
    return lambda: cluster.writes - before


async def test_run_without_a_lease_leads_at_once(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    assert not me.is_ready
    async with running(me):
        await me.elected.wait()
        assert me.leads
        assert me.is_ready
    assert lease(cluster)["holderIdentity"] == "me"


async def test_run_renews_so_that_it_leads_on(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    async with running(me):
        await me.elected.wait()
        for _ in range(5):
            clock.now += 8
            count = renewals(cluster)
            await until(lambda: count() >= 2)  # noqa: B023 awaited within the turn
            assert me.leads
    assert lease(cluster)["leaseTransitions"] == 0


async def test_run_of_a_second_one_stands_by_until_the_first_is_silent(cluster: FakeCluster, clock: Clock) -> None:
    first, second = elector(cluster, clock, "first"), elector(cluster, clock, "second")
    async with running(first), running(second):
        await until(lambda: first.leads != second.leads and first.is_ready and second.is_ready)
    leader, other = (first, second) if first.leads else (second, first)
    async with running(other):
        await asyncio.sleep(0.01)
        clock.now += 14.9
        await asyncio.sleep(0.01)
        assert not other.leads
        clock.now += 0.1
        await other.elected.wait()
    assert other.leads
    assert not leader.leads
    assert lease(cluster)["leaseTransitions"] == 1


async def test_run_lost_answers_do_not_depose(clock: Clock) -> None:
    """The write counted, and the next one names a version that is past: the Lease is read, and is still ours."""
    cluster = LosesAnswers()
    cluster.lost = 1
    me = elector(cluster, clock)
    async with running(me) as task:
        await me.elected.wait()
        cluster.lost = 3
        await until(lambda: cluster.lost == 0)
        count = renewals(cluster)
        await until(lambda: count() >= 2)
        clock.now += 9.9
        count = renewals(cluster)
        await until(lambda: count() >= 2)
        assert me.leads
        assert not task.done()


async def test_run_outage_shorter_than_the_deadline_changes_nothing(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    async with running(me):
        await me.elected.wait()
        cluster.fail_on("update", LEASE, *[Unavailable("down")] * 5)
        clock.now += 9
        await until(lambda: not cluster._faults)
        count = renewals(cluster)
        await until(lambda: count() >= 2)
        clock.now += 9
        assert me.leads


@pytest.mark.parametrize("error", [Unavailable("no route"), Rejected("forbidden", status=403)])
async def test_run_that_cannot_renew_ends_with_the_reason(
    cluster: FakeCluster, clock: Clock, error: Unavailable | Rejected
) -> None:
    me = elector(cluster, clock)
    async with running(me) as task:
        await me.elected.wait()
        cluster.fail_on("update", LEASE, *[error] * 10_000)
        await until(lambda: len(cluster._faults) < 10_000)
        assert not task.done()
        clock.now += 10
        with pytest.raises(NotLeading, match=rf"default/octavo-operator could not be renewed within 10 s \({error}\)"):
            await task


async def test_run_after_a_pause_ends_without_another_write(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    async with running(me) as task:
        await me.elected.wait()
        clock.now += 10
        before = cluster.writes
        with pytest.raises(NotLeading, match="this process did not run"):
            await task
        assert cluster.writes == before


async def test_run_ends_when_another_one_holds_the_lease(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    async with running(me) as task:
        await me.elected.wait()
        cluster.edit(LEASE, NAME, lambda one: one["spec"].update(holderIdentity="other"))
        with pytest.raises(NotLeading, match="is held by other now"):
            await task
        assert not me.leads
    assert lease(cluster)["holderIdentity"] == "other"


async def test_run_makes_a_deleted_lease_anew(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    async with running(me):
        await me.elected.wait()
        cluster.delete(LEASE, NAME)
        await until(lambda: cluster.all(LEASE))
        assert me.leads


async def test_run_gives_up_a_call_that_hangs(clock: Clock) -> None:
    me = elector(HangsOnce(), clock, durations=Durations(deadline=0.02, retry=0.001))
    async with running(me):
        await me.elected.wait()


async def test_run_says_once_what_goes_on(cluster: FakeCluster, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    cluster.fail_on("get", LEASE, *[Rejected("leases is forbidden", status=403)] * 20)
    me = elector(cluster, clock)
    async with running(me):
        await until(lambda: len(cluster._faults) < 10)
        assert not me.is_ready
        await me.elected.wait()
    assert caplog.text.count("Lease default/octavo-operator: leases is forbidden") == 1


async def test_run_in_a_namespace_that_does_not_exist_says_so(
    cluster: FakeCluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.namespaces.clear()
    async with running(elector(cluster, clock)):
        await until(lambda: 'namespaces "default" not found' in caplog.text)


async def test_release_lets_another_one_lead_at_once(cluster: FakeCluster, clock: Clock) -> None:
    first, second = elector(cluster, clock, "first"), elector(cluster, clock, "second")
    async with running(first):
        await first.elected.wait()
    async with running(second):
        await until(lambda: second.is_ready)
        assert not second.leads
        await first.release()
        assert not first.leads
        await second.elected.wait()
    assert lease(cluster)["holderIdentity"] == "second"


async def test_release_after_an_answer_was_lost(clock: Clock) -> None:
    cluster = LosesAnswers()
    me = elector(cluster, clock)
    async with running(me):
        await me.elected.wait()
        cluster.lost = 1
        await until(lambda: cluster.lost == 0)
    await me.release()
    assert lease(cluster)["holderIdentity"] == ""


async def test_release_of_one_that_stands_by_writes_nothing(cluster: FakeCluster, clock: Clock) -> None:
    first, second = elector(cluster, clock, "first"), elector(cluster, clock, "second")
    async with running(first):
        await first.elected.wait()
    async with running(second):
        await until(lambda: second.is_ready)
    await second.release()
    assert lease(cluster)["holderIdentity"] == "first"


async def test_release_during_an_outage_does_not_fail(
    cluster: FakeCluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    me = elector(cluster, clock)
    async with running(me):
        await me.elected.wait()
    cluster.fail_on("update", LEASE, Unavailable("down"))
    await me.release()
    assert not me.leads
    assert "is not given back, the next leader waits for it: down" in caplog.text


async def test_fenced_writes_only_while_it_leads(cluster: FakeCluster, clock: Clock) -> None:
    me = elector(cluster, clock)
    port = Fenced(cluster, me)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "one"},
        "spec": {"ports": []},
    }
    event = {"metadata": {"namespace": "default", "name": "one"}, "message": "m", "lastTimestamp": "t", "count": 1}
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: port.apply(service, manager="one"),
        lambda: port.merge(SERVICE, "default", "one", {"metadata": {"labels": {"a": "b"}}}, manager="one"),
        lambda: port.remove(SERVICE, cluster.all(SERVICE)[0]),
        lambda: port.apply_status(inference_service() | {"status": {}}, manager="one"),
        lambda: port.record(event | {"apiVersion": "v1", "kind": "Event"}),
        lambda: port.update(cluster.all(LEASE)[0]),
    ]
    async with running(me):
        await me.elected.wait()
    cluster.put(inference_service())
    for write in writes:
        await write()
    clock.now += 10
    before = cluster.writes
    for write in writes[:2] + writes[3:]:
        with pytest.raises(NotLeading):
            await write()
    with pytest.raises(NotLeading):
        await port.remove(SERVICE, service)
    assert cluster.writes == before
    assert await port.get(SERVICE, "default", "one") is None
    assert (await port.list_page(SERVICE, None)).items == ()


def test_new_identity_is_never_the_same() -> None:
    assert new_identity() != new_identity()


def test_seconds_since_boot_without_that_clock_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_since_boot() <= seconds_since_boot()
    fallback = SimpleNamespace(CLOCK_MONOTONIC=1, clock_gettime=float)
    monkeypatch.setattr("octavo_operator.handlers.lead.time", fallback)
    assert seconds_since_boot() == 1.0
