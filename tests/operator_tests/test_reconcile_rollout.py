import json

import pytest

from octavo_operator.api.names import DEPLOYMENT, INFERENCE_SERVICE, POD, REVISION, SERVICE, Manifest
from octavo_operator.errors import Gone, Rejected
from octavo_operator.reconcile import Outcome
from octavo_operator.testing import inference_service
from tests.operator_tests.test_reconcile import KEY, World


@pytest.fixture
def world() -> World:
    world = World()
    world.claim("Bound")
    world.cluster.put(inference_service())
    return world


def strategy(world: World) -> tuple[int, int]:
    (child,) = world.cluster.all(DEPLOYMENT)
    rolling = child["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


def templates(world: World) -> list[Manifest]:
    """The revisions that keep a template: all but the record of decisions."""
    return [one for one in world.cluster.all(REVISION) if "template" in one["data"]]


def pod_of(world: World, name: str, **conditions: str) -> Manifest:
    """A pod as the Deployment makes it now."""
    (child,) = world.cluster.all(DEPLOYMENT)
    moment = "2026-01-01T00:00:00Z"
    told = [{"type": kind, "status": status, "lastTransitionTime": moment} for kind, status in conditions.items()]
    metadata = {"name": name, "namespace": "default", "labels": child["spec"]["template"]["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"conditions": told}}


async def test_reconcile_rollout_makes_room_on_the_last_gpu_and_surges_again(world: World) -> None:
    await world.look()
    world.cluster.put(pod_of(world, "chat-a", PodScheduled="True", Ready="True"))
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(runtime={"maxNumSeqs": 8}))
    await world.look()
    assert strategy(world) == (1, 0)
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="False", Ready="False"))
    outcome = await world.look()
    assert outcome.look_again_after == 20.0
    world.seconds += outcome.look_again_after
    assert (await world.look()).look_again_after is None
    assert strategy(world) == (0, 1)
    writes = world.cluster.writes
    await world.look()
    assert world.cluster.writes == writes
    world.cluster.delete(POD, ("default", "chat-a"))
    await world.look()
    assert strategy(world) == (0, 1)
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="True", Ready="True"))
    await world.look()
    assert strategy(world) == (1, 0)


async def test_reconcile_rollout_takes_no_pod_by_old_news(world: World) -> None:
    """The new pod has found a node, and the watch is late: the list knows."""
    await world.look()
    world.cluster.put(pod_of(world, "chat-a", PodScheduled="True", Ready="True"))
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(runtime={"maxNumSeqs": 8}))
    await world.look()
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="False", Ready="False"))
    await world.look()
    world.cluster.unsubscribe()
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="True", Ready="False"))
    world.seconds += 20.0
    await world.look()
    assert strategy(world) == (1, 0)


async def test_reconcile_another_rendering_rolls_nothing_and_repairs_with_the_pinned_one(world: World) -> None:
    await world.look()
    (before,) = world.cluster.all(DEPLOYMENT)
    assert world.condition("UpdatePending") == ("False", "UpToDate")
    world.reconciler = world.start("image:2")
    await world.look()
    assert world.cluster.all(DEPLOYMENT) == [before]
    assert world.condition("UpdatePending") == ("True", "OperatorChanged")
    world.cluster.delete(DEPLOYMENT, KEY)
    await world.look()
    (after,) = world.cluster.all(DEPLOYMENT)
    assert after["spec"] == before["spec"]
    annotations = {"octavo.dev/update": "now"}
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(annotations=annotations))
    await world.look()
    (after,) = world.cluster.all(DEPLOYMENT)
    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "image:2"
    assert world.condition("UpdatePending") == ("False", "UpToDate")
    assert len(templates(world)) == 1


async def test_reconcile_refused_revision_is_told_and_serves_all_the_same(world: World) -> None:
    world.cluster.fail_on("apply", REVISION, Rejected("exceeded quota", status=403))
    assert (await world.look()).failed
    assert len(world.cluster.all(DEPLOYMENT)) == 1
    assert world.ready() == ("False", "ApplyRejected")
    assert not (await world.look()).failed
    assert len(templates(world)) == 1


async def test_reconcile_revision_that_someone_else_has_deleted_is_no_error(world: World) -> None:
    await world.look()
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(runtime={"maxNumSeqs": 8}))
    world.cluster.fail_on("remove", REVISION, Gone("not found"))
    assert await world.look() == Outcome()
    assert await world.look() == Outcome()
    assert len(templates(world)) == 1


async def test_reconcile_revision_that_may_not_be_deleted_holds_up_nothing(world: World) -> None:
    await world.look()
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(runtime={"maxNumSeqs": 8}))
    world.cluster.fail_on("remove", REVISION, Rejected("denied by a policy", status=403))
    assert await world.look() == Outcome()
    args = world.cluster.all(DEPLOYMENT)[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-num-seqs=8" in args
    assert len(templates(world)) == 2
    assert await world.look() == Outcome()
    assert len(templates(world)) == 1


async def test_reconcile_suspended_stops_the_pods_and_keeps_everything_else(world: World) -> None:
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=3))
    await world.look()
    before = {kind: world.cluster.all(kind) for kind in (DEPLOYMENT, SERVICE, REVISION)}
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(suspend=True))
    await world.look()
    (deployment,) = world.cluster.all(DEPLOYMENT)
    assert deployment["spec"] == before[DEPLOYMENT][0]["spec"] | {"replicas": 0}
    assert {kind: world.cluster.all(kind) for kind in (SERVICE, REVISION)} == {
        kind: before[kind] for kind in (SERVICE, REVISION)
    }
    assert world.ready() == ("False", "Suspended")
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    assert service["spec"]["replicas"] == 3
    assert service["status"]["selector"] == "octavo.dev/inferenceservice=chat"
    # What `kubectl scale` does meanwhile counts afterwards.
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=2))
    await world.look()
    assert world.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 0
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].pop("suspend"))
    await world.look()
    assert world.cluster.all(DEPLOYMENT)[0]["spec"] == before[DEPLOYMENT][0]["spec"] | {"replicas": 2}


async def test_reconcile_deployment_waits_for_a_large_model_once_it_is_known(world: World) -> None:
    await world.look()
    (before,) = world.cluster.all(DEPLOYMENT)
    pod = pod_of(world, "chat-a", PodScheduled="True", Ready="False")
    ended = {"terminated": {"exitCode": 0, "message": json.dumps({"weightsBytes": 700_000_000_000})}}
    pod["status"]["initContainerStatuses"] = [{"name": "plan", "ready": True, "state": ended}]
    world.cluster.put(pod)
    await world.look()
    (after,) = world.cluster.all(DEPLOYMENT)
    assert after["spec"]["template"] == before["spec"]["template"]
    deadlines = [child["spec"]["progressDeadlineSeconds"] for child in (before, after)]
    assert deadlines == [2100, 14_300]
    writes = world.cluster.writes
    await world.look()
    assert world.cluster.writes == writes
