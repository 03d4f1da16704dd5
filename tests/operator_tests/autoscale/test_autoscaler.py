"""The autoscaler between a fake cluster and pods that answer on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from octavo_operator.api.names import DELETION_COST, INFERENCE_SERVICE, OWNER_LABEL, POD, WATCHED, Kind, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale import autoscaler as module
from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.core import ring as ring_module
from octavo_operator.autoscale.core.recording import RecordingInvalid, Round, read_recording
from octavo_operator.autoscale.core.replay import first_difference, replay
from octavo_operator.autoscale.core.report import Load
from octavo_operator.autoscale.core.values import Verdict
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.core.store import Store
from octavo_operator.errors import Unavailable
from octavo_operator.metrics import Metrics
from octavo_operator.testing import FakeCluster, inference_service

KEY = ("default", "chat")
LABELS = {OWNER_LABEL: "chat", "app.kubernetes.io/managed-by": "octavo-operator"}


class World:
    """One InferenceService; its pods are addresses of this machine, and answer what `loads` says: (running, waiting)."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cluster = FakeCluster()
        self.store = Store()
        self.loads: dict[str, tuple[int, int] | None] = {}
        self.told = 0
        self.metrics = Metrics()
        self.autoscaler = Autoscaler(self.cluster, self.store, Scraper(), self.metrics, notify=self.notify)
        self.cluster.subscribe(self.hear)

    def hear(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        if kind in WATCHED:
            (self.store.delete if event_type == "DELETED" else self.store.upsert)(kind, manifest)

    def notify(self, key: tuple[str, str]) -> None:
        assert key == KEY
        self.told += 1

    def create(self, replicas: int, **autoscaling: Any) -> None:
        given = {"maxReplicas": 8, "scaleDownStabilizationSeconds": 0} | autoscaling
        self.cluster.put(inference_service(replicas=replicas, autoscaling=given))
        self.follow()

    def follow(self) -> None:
        (manifest,) = self.cluster.all(INFERENCE_SERVICE)
        self.autoscaler.follow(InferenceService.parse(manifest))

    def pod(self, number: int, load: tuple[int, int] | None, *, ready: bool = True) -> None:
        address = f"127.0.0.{number + 1}"
        self.loads[address] = load
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:03:00Z"}]
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"chat-{number}", "namespace": "default", "labels": LABELS},
                "status": {"podIP": address, "conditions": conditions},
            }
        )

    @property
    def replicas(self) -> int:
        (manifest,) = self.cluster.all(INFERENCE_SERVICE)
        return int(manifest["spec"]["replicas"])

    def scrapes(self, outcome: str = "ok") -> float:
        return self.metrics.registry.get_sample_value("octavo_operator_scrapes_total", {"outcome": outcome}) or 0.0

    def recorded(self) -> list[Round]:
        text = b"".join(self.autoscaler.recording(KEY) or ()).decode()
        return read_recording(text.splitlines(keepends=True))[1]

    def verdict(self) -> Verdict | None:
        report = self.autoscaler.report(KEY)
        return report.decision.verdict if report is not None else None

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        load = self.loads[request.transport.get_extra_info("sockname")[0]]
        if load is None:
            return web.Response(status=500)
        running, waiting = load
        return web.Response(
            text=f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
            "vllm:kv_cache_usage_perc 0.25\nvllm:generation_tokens_total 100\n"
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 the conditions are states of the fake, which sets no events
            await asyncio.sleep(0.01)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(module, "BUSY_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(module, "PORT", unused_tcp_port)
    world = World(unused_tcp_port)
    application = web.Application()
    application.router.add_get("/metrics", world.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    for number in range(4):
        await web.TCPSite(runner, f"127.0.0.{number + 1}", unused_tcp_port).start()
    yield world
    await world.autoscaler.close()
    await runner.cleanup()


async def test_autoscaler_that_takes_over_tells_the_load_that_is_stored_while_it_is_about_right(world: World) -> None:
    world.pod(0, (3, 0))
    world.create(replicas=1)
    status = {"cacheUsage": 21, "queueLength": 1}
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one.update(status=status))
    await until(lambda: world.autoscaler.report(KEY) is not None and world.verdict() is not Verdict.NO_METRICS)
    report = world.autoscaler.report(KEY)
    assert report is not None
    assert report.load == Load(21, 1)


async def test_autoscaler_full_pods_bring_more_and_the_report_says_why(world: World) -> None:
    world.pod(0, (64, 0))
    world.create(replicas=1)
    await until(lambda: world.replicas == 2)
    report = world.autoscaler.report(KEY)
    assert report is not None
    assert report.scaled is not None
    assert (report.scaled.before, report.scaled.after) == (1, 2)
    assert report.scaled.reason == "1.0 replicas' worth of work come in"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(report.scaled.time)).total_seconds() < 60
    assert report.load is not None
    assert (report.load.cache_usage, report.load.queue_length) == (25, 0)
    assert world.told >= 1


async def test_autoscaler_idle_pods_go_and_the_one_with_the_fewest_streams_is_marked(world: World) -> None:
    for number, load in enumerate([(9, 0), (0, 0), (3, 1)]):
        world.pod(number, load)
    world.create(replicas=3)
    await until(lambda: world.replicas == 1)
    costs = {
        pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(DELETION_COST)
        for pod in world.cluster.all(POD)
    }
    assert costs == {"chat-0": "9", "chat-1": None, "chat-2": "4"}


async def test_autoscaler_observe_writes_nothing(world: World) -> None:
    world.pod(0, (64, 100))
    world.create(replicas=1, mode="Observe")
    writes = world.cluster.writes
    await until(lambda: (report := world.autoscaler.report(KEY)) is not None and report.decision.replicas > 1)
    assert world.cluster.writes == writes
    assert world.replicas == 1


async def test_autoscaler_silent_pods_change_nothing(world: World) -> None:
    for number in range(3):
        world.pod(number, None)
    world.create(replicas=3)
    await until(lambda: world.verdict() is Verdict.NO_METRICS)
    told = world.told
    await until(lambda: world.scrapes("failed") > 30)
    assert world.replicas == 3
    report = world.autoscaler.report(KEY)
    assert report is not None
    assert "answered 500" in report.trouble
    assert world.told == told  # once, not with each round


async def test_autoscaler_bounds_count_without_a_metric(world: World) -> None:
    world.create(replicas=1, minReplicas=3)
    await until(lambda: world.replicas == 3)


async def test_autoscaler_gives_way_to_another_one(world: World) -> None:
    world.pod(0, (64, 0))
    world.create(replicas=1)

    def set_back() -> bool:
        if world.replicas != 1:
            world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=1))
        report = world.autoscaler.report(KEY)
        return report is not None and report.rivalled

    await until(set_back)
    assert world.replicas == 1
    report = world.autoscaler.report(KEY)
    assert report is not None
    assert report.decision.replicas > 1


async def test_autoscaler_goes_on_after_an_outage(world: World) -> None:
    world.pod(0, (64, 0))
    world.cluster.fail_on("scale", INFERENCE_SERVICE, Unavailable("away"), Unavailable("away"))
    world.create(replicas=1)
    await until(lambda: world.replicas == 2)


@pytest.mark.parametrize("change", [{"suspend": True}, {"replicas": 0}, {"autoscaling": None}])
async def test_autoscaler_is_paused_by_the_spec(world: World, change: dict[str, Any]) -> None:
    world.pod(0, (0, 0))
    world.create(replicas=1)
    await until(lambda: world.autoscaler.report(KEY) is not None)
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(change))
    world.follow()
    assert world.autoscaler.report(KEY) is None


async def test_autoscaler_object_of_the_same_name_starts_anew(world: World) -> None:
    world.pod(0, (64, 0))
    world.create(replicas=1)
    await until(lambda: world.replicas == 2)
    world.cluster.delete(INFERENCE_SERVICE, KEY)
    world.create(replicas=1, maxReplicas=1)
    assert world.autoscaler.report(KEY) is None
    await until(lambda: world.autoscaler.report(KEY) is not None)
    assert world.replicas == 1


async def test_autoscaler_recording_gives_the_same_decisions_again(world: World) -> None:
    world.pod(0, (64, 9))
    world.pod(1, (64, 9))
    world.cluster.fail_on("scale", INFERENCE_SERVICE, Unavailable("away"))
    assert world.autoscaler.recording(KEY) is None
    world.create(replicas=2, maxReplicas=3)
    with pytest.raises(RecordingInvalid, match="it holds no decision yet"):
        world.recorded()
    await until(lambda: world.replicas == 3)
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"]["autoscaling"].update(maxReplicas=2))
    world.follow()
    await until(lambda: world.replicas == 2)
    world.loads["127.0.0.1"] = None
    await until(lambda: world.scrapes("failed") > 1)
    made = world.recorded()
    # What could not be written was decided all the same: without it the next decision would not come out again.
    assert [one.desired for one in made if one.decision.replicas == 3][:2] == [2, 2]
    assert {one.settings.max_replicas for one in made} == {3, 2}
    assert all(one.acts for one in made)
    assert first_difference(replay(made)) is None
    world.autoscaler.forget(KEY)
    assert world.autoscaler.recording(KEY) is None


async def test_autoscaler_recording_says_where_decisions_are_not_carried_out(world: World) -> None:
    world.pod(0, (64, 100))
    world.create(replicas=1, mode="Observe")
    await until(lambda: world.verdict() is not None)
    assert not world.recorded()[0].acts


async def test_autoscaler_recordings_share_the_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDED_BYTES", 0)
    monkeypatch.setattr(ring_module, "GROUP", 3)
    world.pod(0, (1, 0))
    world.create(replicas=1)
    await until(lambda: world.scrapes() > 9)
    assert len(world.recorded()) <= 3
