from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.names import (
    CHILDREN,
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    SERVICE,
    WATCHED,
    Manifest,
)
from octavo_operator.api.privileges import Privilege
from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.core.store import Store
from octavo_operator.errors import ClusterError, Gone, Rejected, Stale, Unavailable
from octavo_operator.metrics import Metrics
from octavo_operator.reconcile import Outcome, Reconciler
from octavo_operator.testing import FakeCluster, inference_service

KEY = ("default", "chat")


class World:
    """A FakeCluster whose events reach the reconciler's store at once, and a clock that the test moves."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.store = Store()
        self.seconds = 0.0
        self.told: list[tuple[str, str]] = []
        self.reconciler = self.start()
        self.cluster.subscribe(self.tell)

    def tell(self, kind: Any, event_type: str, manifest: Manifest) -> None:
        if kind in WATCHED:
            (self.store.delete if event_type == "DELETED" else self.store.upsert)(kind, manifest)

    def start(self, image: str = "image", allowed: Collection[Privilege] = ()) -> Reconciler:
        metrics = Metrics()
        self.autoscaler = Autoscaler(self.cluster, self.store, Scraper(), metrics, notify=self.told.append)
        return Reconciler(
            self.cluster,
            self.store,
            metrics,
            autoscaler=self.autoscaler,
            runtime_image=image,
            allowed=allowed,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds),
            monotonic=lambda: self.seconds,
        )

    async def look(self) -> Outcome:
        return await self.reconciler.reconcile(KEY)

    def claim(self, phase: str) -> None:
        metadata = {"name": "models", "namespace": "default"}
        status = {"phase": phase}
        self.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "status": status})

    def ready(self) -> tuple[str, str]:
        return self.condition("Ready")

    def events(self) -> list[tuple[str, str, int]]:
        return [(one["type"], one["reason"], one["count"]) for one in self.cluster.all(EVENT)]

    def condition(self, kind: str) -> tuple[str, str]:
        (service,) = self.cluster.all(INFERENCE_SERVICE)
        return next((one["status"], one["reason"]) for one in service["status"]["conditions"] if one["type"] == kind)


@pytest.fixture
def world() -> World:
    world = World()
    world.claim("Bound")
    world.cluster.put(inference_service())
    return world


async def test_reconcile_creates_children_and_status_then_rests(world: World) -> None:
    assert await world.look() == Outcome()
    assert [len(world.cluster.all(kind)) for kind in CHILDREN] == [1] * len(CHILDREN)
    assert world.ready() == ("False", "Starting")
    await world.look()  # the status now says that the Service is there
    writes = world.cluster.writes
    for _ in range(5):
        await world.look()
    assert world.cluster.writes == writes


async def test_reconcile_reads_what_it_wrote(world: World) -> None:
    """The watch is late: what a look has written the next one knows all the same, and writes nothing."""
    world.cluster.unsubscribe()
    await world.look()
    writes = world.cluster.writes
    assert writes == len(CHILDREN) + 2  # the revision and the status
    await world.look()
    assert world.cluster.writes == writes


async def test_reconcile_adds_neither_finalizer_nor_annotation(world: World) -> None:
    await world.look()
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    assert not {"finalizers", "annotations", "labels"} & service["metadata"].keys()


async def test_reconcile_follows_the_deployment_to_ready_and_back(world: World) -> None:
    await world.look()
    counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
    world.cluster.edit(DEPLOYMENT, KEY, lambda child: child.update(status=counts))
    await world.look()
    assert world.ready() == ("True", "Serving")
    world.cluster.edit(DEPLOYMENT, KEY, lambda child: child["status"].update(readyReplicas=0))
    await world.look()
    assert world.ready() == ("False", "Starting")


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
async def test_reconcile_brings_a_deleted_child_back(world: World, kind: Any) -> None:
    await world.look()
    (before,) = world.cluster.all(kind)
    world.cluster.delete(kind, KEY)
    await world.look()
    (after,) = world.cluster.all(kind)
    assert after["spec"] == before["spec"]


async def test_reconcile_repairs_a_renumbered_port(world: World) -> None:
    await world.look()
    world.cluster.edit(SERVICE, KEY, lambda child: child["spec"]["ports"][0].update(port=81))
    assert await world.look() == Outcome()
    (service,) = world.cluster.all(SERVICE)
    assert [port["port"] for port in service["spec"]["ports"]] == [80]


async def test_reconcile_child_that_lost_its_label_is_found_and_labelled(world: World) -> None:
    await world.look()
    world.cluster.edit(SERVICE, KEY, lambda child: child["metadata"].pop("labels"))
    await world.look()
    (service,) = world.cluster.all(SERVICE)
    assert service["metadata"]["labels"]


@pytest.mark.parametrize("labelled", [False, True])
async def test_reconcile_leaves_an_object_of_someone_else_alone(world: World, labelled: bool) -> None:
    labels = {"app.kubernetes.io/managed-by": "octavo-operator"} if labelled else {}
    foreign = world.cluster.put(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "default", "labels": labels},
         "spec": {"ports": [{"port": 5, "protocol": "TCP"}]}}
    )  # fmt: skip
    for seconds in (0, 3600):
        world.seconds += seconds
        outcome = await world.look()
        # Nothing tells when the name becomes free, and whoever was told to free it waits.
        assert not outcome.failed
        assert 0 < (outcome.look_again_after or 0) <= 30
    assert world.cluster.all(SERVICE) == [foreign]
    assert world.ready() == ("False", "NameTaken")
    assert len(world.cluster.all(DEPLOYMENT)) == 1
    world.cluster.delete(SERVICE, KEY)
    assert await world.look() == Outcome()
    assert world.ready() == ("False", "Starting")


@pytest.mark.parametrize(
    ("phase", "reason"), [(None, "ClaimNotFound"), ("Pending", "ClaimPending"), ("Lost", "ClaimLost")]
)
async def test_reconcile_claim_heals_by_itself(world: World, phase: str | None, reason: str) -> None:
    if phase is None:
        world.cluster.delete(CLAIM, ("default", "models"))
    else:
        world.claim(phase)
    outcome = await world.look()
    assert outcome.look_again_after is not None
    assert outcome.look_again_after <= 5
    assert world.condition("ModelResolved") == ("False", reason)
    assert world.ready() == ("False", reason)
    world.claim("Bound")
    world.seconds += outcome.look_again_after
    assert await world.look() == Outcome()
    assert world.condition("ModelResolved") == ("True", "ClaimBound")


async def test_reconcile_claim_awaited_long_is_read_less_often(world: World) -> None:
    world.cluster.delete(CLAIM, ("default", "models"))
    waits = []
    for _ in range(60):
        outcome = await world.look()
        assert outcome.look_again_after is not None
        waits.append(outcome.look_again_after)
        world.seconds += outcome.look_again_after
    assert (waits[0], waits[-1]) == (2.0, 30.0)
    assert waits == sorted(waits)


@pytest.mark.parametrize("spec", [{}, {"autoscaling": {"maxReplicas": 3}}], ids=["plain", "autoscaled"])
async def test_reconcile_by_a_process_that_takes_over_writes_nothing_but_repairs(
    world: World, spec: dict[str, Any]
) -> None:
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(spec))
    await world.look()
    await world.autoscaler.close()
    writes = world.cluster.writes
    world.reconciler = world.start()
    await world.look()
    assert world.cluster.writes == writes
    await world.autoscaler.close()
    world.cluster.edit(DEPLOYMENT, KEY, lambda one: one["spec"].update(replicas=7))
    world.cluster.delete(SERVICE, KEY)
    world.reconciler = world.start()
    await world.look()
    await world.autoscaler.close()
    assert [one["spec"]["replicas"] for one in world.cluster.all(DEPLOYMENT)] == [1]
    assert len(world.cluster.all(SERVICE)) == 1
    assert world.cluster.writes == writes + 3  # both children, and the record of why


async def test_reconcile_bound_claim_is_not_read_each_time(world: World) -> None:
    await world.look()
    world.cluster.fail_on("get", CLAIM, Unavailable("must not be read"))
    await world.look()
    world.cluster.put(inference_service("other"))  # it has its model in the same claim
    await world.reconciler.reconcile(("default", "other"))
    world.seconds += 61
    with pytest.raises(Unavailable):
        await world.look()


async def test_reconcile_refusal_is_told_and_does_not_keep_the_other_child_back(world: World) -> None:
    world.cluster.fail_on("apply", SERVICE, Rejected("spec.type: no load balancer here", status=422))
    assert (await world.look()).failed
    assert len(world.cluster.all(DEPLOYMENT)) == 1
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    ready = service["status"]["conditions"][0]
    assert ready["reason"] == "ApplyRejected"
    assert ready["message"] == "Service chat: spec.type: no load balancer here"
    assert not (await world.look()).failed
    assert world.ready() == ("False", "Starting")


async def test_reconcile_unknown_field_is_told_and_touches_nothing(world: World) -> None:
    await world.look()
    (before,) = world.cluster.all(DEPLOYMENT)
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(turbo=True, replicas=7))
    await world.look()
    assert world.ready() == ("False", "SpecInvalid")
    assert world.cluster.all(DEPLOYMENT) == [before]


async def test_reconcile_object_that_goes_gets_no_children(world: World) -> None:
    moment = "2026-01-01T00:00:00Z"
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(deletionTimestamp=moment))
    assert await world.look() == Outcome()
    assert world.cluster.all(DEPLOYMENT) == []


async def test_reconcile_deleted_object_leaves_nothing_to_do(world: World) -> None:
    await world.look()
    world.cluster.delete(INFERENCE_SERVICE, KEY)
    assert await world.look() == Outcome()
    assert world.cluster.all(DEPLOYMENT) == world.cluster.all(SERVICE) == []


@pytest.mark.parametrize(
    ("method", "kind"), [("apply", SERVICE), ("apply_status", INFERENCE_SERVICE), ("get", DEPLOYMENT)]
)
async def test_reconcile_terminating_namespace_is_no_error(world: World, method: str, kind: Any) -> None:
    world.cluster.fail_on(method, kind, Gone("namespace default is being terminated"))
    assert await world.look() == Outcome()


async def test_reconcile_gone_and_made_again_starts_anew(world: World) -> None:
    """Between two looks the object was replaced by one of the same name: the children follow the new one."""
    await world.look()
    world.cluster.delete(INFERENCE_SERVICE, KEY)
    world.cluster.put(inference_service(replicas=4))
    await world.look()
    (child,) = world.cluster.all(DEPLOYMENT)
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    assert child["spec"]["replicas"] == 4
    assert child["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]


async def test_reconcile_child_of_a_predecessor_is_not_adopted(world: World) -> None:
    """The garbage collector takes its time, and would take the child away from its new owner."""
    await world.look()
    world.cluster.edit(DEPLOYMENT, KEY, lambda one: one["metadata"]["ownerReferences"][0].update(uid="uid-of-old"))
    (before,) = world.cluster.all(DEPLOYMENT)
    await world.look()
    assert world.cluster.all(DEPLOYMENT) == [before]
    assert world.ready() == ("False", "NameTaken")
    world.cluster.delete(DEPLOYMENT, KEY)
    await world.look()
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    (after,) = world.cluster.all(DEPLOYMENT)
    assert after["metadata"]["ownerReferences"][0]["uid"] == service["metadata"]["uid"]


def scale(child: Manifest) -> None:
    child["spec"]["replicas"] += 1


async def test_reconcile_contested_child_is_written_ten_times_a_minute(world: World) -> None:
    await world.look()
    for _ in range(30):
        world.cluster.edit(DEPLOYMENT, KEY, scale)
        await world.look()
    (child,) = world.cluster.all(DEPLOYMENT)
    assert child["metadata"]["generation"] == 1 + 10 * 2 + 20
    assert world.ready() == ("False", "Contested")
    world.seconds += 61
    assert not (await world.look()).failed
    assert world.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 1
    assert world.ready() == ("False", "Starting")


async def test_reconcile_edits_by_the_user_are_never_contested(world: World) -> None:
    for replicas in range(30):
        world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one, count=replicas: one["spec"].update(replicas=count))  # type: ignore[misc] # lambda with a default
        await world.look()
        assert world.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == replicas


async def test_reconcile_tells_each_change_of_readys_reason_once(world: World) -> None:
    counts = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}

    async def ready_pods(count: int) -> None:
        world.cluster.edit(DEPLOYMENT, KEY, lambda child: child.update(status=counts | {"readyReplicas": count}))
        await world.look()

    await world.look()
    assert world.events() == []
    await ready_pods(1)
    assert world.events() == [("Normal", "Serving", 1)]
    await ready_pods(0)
    await ready_pods(1)
    story = [("Normal", "Serving", 2), ("Normal", "Starting", 1)]
    assert world.events() == story
    # Nothing is said again, by this operator or by one that starts anew.
    await world.look()
    world.reconciler = world.start()
    await world.look()
    await world.look()
    assert world.events() == story


@pytest.mark.parametrize(
    "error", [Rejected("events is forbidden", status=403), Unavailable("503"), Stale("409"), Gone("namespace")]
)
async def test_reconcile_does_not_depend_on_events(world: World, error: ClusterError) -> None:
    world.cluster.delete(CLAIM, ("default", "models"))
    world.cluster.fail_on("record", EVENT, error)
    outcome = await world.look()
    assert not outcome.failed
    assert world.ready() == ("False", "ClaimNotFound")
    assert world.events() == []


async def test_reconcile_looks_again_when_a_pod_has_been_set_up_for_too_long(world: World) -> None:
    await world.look()
    template = world.cluster.all(DEPLOYMENT)[0]["spec"]["template"]["metadata"]["labels"]
    waits = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "chat-1", "namespace": "default", "labels": dict(template)}
    status = {"phase": "Pending", "conditions": [waits]}
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})
    assert (await world.look()).look_again_after == 30
    assert world.ready() == ("False", "Starting")
    world.seconds = 30
    assert (await world.look()).look_again_after is None
    assert world.ready() == ("False", "VolumesOrNetworkNotReady")
