"""Which looks leave a decision on record, and that all others write nothing for it."""

from typing import Any

import pytest

from octavo_operator.api.names import DEPLOYMENT, INFERENCE_SERVICE, NETWORK_POLICY, POD, REVISION, SERVICE
from octavo_operator.core.decisions import read_record
from octavo_operator.errors import Gone, Rejected, Unavailable
from octavo_operator.testing import inference_service
from tests.operator_tests.test_reconcile import KEY, World
from tests.operator_tests.test_reconcile_rollout import pod_of


@pytest.fixture
async def world() -> World:
    world = World()
    world.claim("Bound")
    world.cluster.put(inference_service())
    await world.look()
    await world.look()
    return world


def decisions(world: World) -> list[tuple[str, str, str]]:
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    entries = read_record(world.cluster.all(REVISION), service["metadata"]["uid"])
    return [(one["subject"], one["decision"], one["because"]) for one in entries]


def edit(world: World, **spec: Any) -> None:
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(spec))


async def test_reconcile_new_object_restart_and_what_only_follows_the_spec_are_no_decisions(world: World) -> None:
    assert decisions(world) == []
    world.reconciler = world.start()
    await world.look()
    for spec in ({"replicas": 3}, {"suspend": True}, {"service": {"type": "NodePort", "port": 81}}):
        edit(world, **spec)
        await world.look()
    assert decisions(world) == []
    assert len(world.cluster.all(REVISION)) == 1


async def test_reconcile_rollout_is_told_from_the_edit_to_its_end(world: World) -> None:
    world.cluster.put(pod_of(world, "chat-a", PodScheduled="True", Ready="True"))
    edit(world, runtime={"maxNumSeqs": 8})
    await world.look()
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="False", Ready="False"))
    await world.look()
    world.seconds += 20
    await world.look()
    world.cluster.delete(POD, ("default", "chat-a"))
    world.cluster.put(pod_of(world, "chat-b", PodScheduled="True", Ready="True"))
    await world.look()
    template, step, unpinned, over = decisions(world)
    assert template[0] == "Template"
    assert template[2] == 'the spec changed: runtime: nothing to {"maxNumSeqs": 8}'
    assert step == (
        "Rollout",
        "maxSurge 0, maxUnavailable 1",
        "a new pod has found no node for 20 s, while nothing else moved: a ready old pod makes room",
    )
    assert over == ("Rollout", "maxSurge 1, maxUnavailable 0", "nothing is being replaced")
    assert unpinned[2] == "no pod of its template is left, and the spec does not ask for it"
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    inputs = read_record(world.cluster.all(REVISION), service["metadata"]["uid"])[1]["inputs"]
    assert inputs == {
        "before": {"maxSurge": 1, "maxUnavailable": 0},
        "wanted": 1,
        "pods": {"new without a node": 1, "old ready": 1},
    }
    writes = world.cluster.writes
    await world.look()
    assert world.cluster.writes == writes


async def test_reconcile_way_back_and_a_requested_update_are_told_apart(world: World) -> None:
    world.cluster.put(pod_of(world, "chat-a", PodScheduled="True", Ready="True"))
    edit(world, runtime={"maxNumSeqs": 8})
    await world.look()
    edit(world, runtime={})
    await world.look()
    assert decisions(world)[-1][2].startswith("the spec is again as it was when the other template was made")
    world.reconciler = world.start("image:2")
    annotations = {"octavo.dev/update": "now"}
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(annotations=annotations))
    await world.look()
    assert decisions(world)[-1][2] == "an update was asked for: annotation octavo.dev/update=now"


async def test_reconcile_repairs_are_told_once_in_ten_minutes(world: World) -> None:
    for _ in range(5):
        world.cluster.edit(SERVICE, KEY, lambda one: one["spec"].update(type="NodePort"))
        await world.look()
    world.cluster.delete(DEPLOYMENT, KEY)
    await world.look()
    assert decisions(world) == [
        (
            "Repair",
            "Service chat was put right: spec.type: NodePort to ClusterIP",
            "someone else had changed it",
        ),
        ("Repair", "Deployment chat was created again", "it had been deleted"),
    ]


async def test_reconcile_strategy_edited_by_hand_is_a_repair_and_no_step(world: World) -> None:
    rolling = {"maxSurge": 3, "maxUnavailable": 1}
    world.cluster.edit(DEPLOYMENT, KEY, lambda one: one["spec"]["strategy"].update(rollingUpdate=rolling))
    await world.look()
    ((subject, decision, _),) = decisions(world)
    assert subject == "Repair"
    assert decision.startswith("Deployment chat was put right: spec.strategy.rollingUpdate.maxSurge: 3 to 1")


async def test_reconcile_what_changed_while_the_operator_was_away_is_told(world: World) -> None:
    world.cluster.edit(SERVICE, KEY, lambda one: one["spec"].update(type="NodePort"))
    world.reconciler = world.start()
    await world.look()
    ((subject, decision, because),) = decisions(world)
    assert (subject, decision) == ("Repair", "Service chat was put right: spec.type: NodePort to ClusterIP")
    assert because == "someone else had changed it"


async def test_reconcile_what_another_version_made_is_told_and_what_its_spec_asked_for_is_not(world: World) -> None:
    """The record of the last apply tells that this one is another; only the generation tells whether a user asked."""

    def older(one: Any) -> None:
        one["spec"]["ingress"] = [{}]

    world.cluster.edit(NETWORK_POLICY, KEY, older)
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["status"]["applied"].update(NetworkPolicy="older/older"))
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["status"]["applied"].update(Service="older/older"))
    world.reconciler = world.start()
    await world.look()
    ((subject, decision, because),) = decisions(world)
    assert (subject, decision[:34]) == ("Repair", "NetworkPolicy chat was put right: ")
    assert because.startswith("the spec did not change")
    edit(world, service={"type": "ClusterIP", "port": 81})
    await world.look()
    assert len(decisions(world)) == 1


async def test_reconcile_record_that_is_refused_or_late_holds_nothing_up(world: World) -> None:
    world.cluster.delete(DEPLOYMENT, KEY)
    world.cluster.fail_on("apply", REVISION, Rejected("exceeded quota", status=403))
    assert not (await world.look()).failed
    assert decisions(world) == []
    world.cluster.delete(DEPLOYMENT, KEY)
    world.cluster.fail_on("apply", REVISION, Unavailable("away"))
    with pytest.raises(Unavailable):
        await world.look()
    await world.look()
    assert decisions(world) == [("Repair", "Deployment chat was created again", "it had been deleted")]


async def test_reconcile_record_goes_with_its_object(world: World) -> None:
    world.cluster.delete(DEPLOYMENT, KEY)
    world.cluster.fail_on("apply", REVISION, Gone("namespace is terminating"))
    await world.look()
    world.cluster.delete(DEPLOYMENT, KEY)
    await world.look()
    assert len(world.cluster.all(REVISION)) == 2
    world.cluster.delete(INFERENCE_SERVICE, KEY)
    assert world.cluster.all(REVISION) == []
