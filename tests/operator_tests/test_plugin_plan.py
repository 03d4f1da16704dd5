import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.names import DEPLOYMENT, INFERENCE_SERVICE, POD, REVISION, Manifest
from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.fit import fits, not_looked_at
from octavo_operator.plugin.plan import (
    Needs,
    as_json,
    change,
    known_needs,
    needs_of,
    plan_of,
    runtime_image_of,
    screen,
)
from octavo_operator.plugin.plan_pod import plan_pod
from octavo_operator.testing import inference_service
from tests.operator_tests.conftest import GoldenScreen
from tests.operator_tests.test_plugin_fit import busy, node
from tests.operator_tests.test_reconcile import KEY, World
from tests.operator_tests.test_reconcile_rollout import pod_of

SAID = {
    "weightsBytes": 538060032,
    "kvBytesPerToken": 46080,
    "kvTokens": 23296,
    "maxConcurrency": 2.84,
    "maxModelLen": 8192,
}
NEEDS = Needs(538060032, 46080, 23296, 2.84, 8192, source="planned by pod chat-a")
GPU = {"limits": {"nvidia.com/gpu": 1, "memory": "12Gi"}}


@pytest.fixture
async def facts() -> Facts:
    """A service whose one pod serves, as the operator left it."""
    world = World()
    world.claim("Bound")
    world.cluster.put(world_service())
    await world.look()
    world.cluster.put(pod_of(world, "chat-a", PodScheduled="True", Ready="True"))
    world.cluster.edit(POD, ("default", "chat-a"), lambda pod: pod["status"].update(initContainerStatuses=[planned()]))
    await world.look()
    (service,), (deployment,) = world.cluster.all(INFERENCE_SERVICE), world.cluster.all(DEPLOYMENT)
    return Facts(service, deployment, tuple(world.cluster.all(POD)), tuple(world.cluster.all(REVISION)))


def world_service() -> Manifest:
    return inference_service(KEY[1], KEY[0], runtime={"kvCacheMemory": "1Gi"})


def planned(**said: Any) -> Manifest:
    ended = {"exitCode": 0, "message": json.dumps(SAID | said)}
    return {"name": "plan", "ready": True, "state": {"terminated": ended}}


def edited(facts: Facts, **spec: Any) -> Manifest:
    return facts.service | {"spec": facts.service["spec"] | spec}


async def test_screen_of_a_change_that_replaces_pods(facts: Facts, golden_screen: GoldenScreen) -> None:
    dry = edited(facts, runtime={"kvCacheMemory": "1Gi", "maxNumSeqs": 8}, resources=GPU, replicas=2)
    one = change(dry, facts, runtime_image_of(facts))
    assert (one.action, one.replaced) == ("changed", 1)
    pod = one.template["spec"]
    taint = {"key": "gpu", "effect": "NoSchedule"}
    cluster = [
        node("gpu-1"),
        node("gpu-2"),
        node("gpu-3", taints=[taint]),
        node("cpu-1", allocatable={"nvidia.com/gpu": "0"}),
    ]
    pods = [busy("gpu-1", **{"nvidia.com/gpu": "2", "memory": "14Gi"})]
    golden_screen("plan-changed", screen(one, NEEDS, fits(pod, cluster, pods), not_looked_at(pod), []))


async def test_screen_of_a_new_object_that_does_not_fit(golden_screen: GoldenScreen) -> None:
    dry = world_service()
    dry["metadata"] |= {"uid": "u", "generation": 1}
    one = change(dry, None, None)
    assert (one.action, one.replaced) == ("created", None)
    needs = Needs(fault="NotEnoughMemoryForKV: no room; Give runtime.kvCacheMemory 188743680")
    forbidden = 'nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope'
    golden_screen("plan-created", screen(one, needs, None, (), [forbidden]))


@pytest.mark.parametrize(
    ("spec", "action", "replaced", "plans_as_before"),
    [
        ({}, "unchanged", 0, True),
        ({"replicas": 3}, "changed", 0, True),
        ({"rollout": {"type": "Recreate", "drainSeconds": 120}}, "changed", 0, True),
        ({"service": {"type": "ClusterIP", "port": 8080}}, "changed", 0, True),
        ({"rollout": {"type": "Auto", "drainSeconds": 60}}, "changed", 1, True),
        ({"runtime": {"kvCacheMemory": "1Gi", "maxNumSeqs": 8}}, "changed", 1, True),
        ({"runtime": {"kvCacheMemory": "2Gi"}}, "changed", 1, False),
        ({"runtime": {"kvCacheMemory": "1Gi", "image": "other"}}, "changed", 1, False),
        ({"model": {"uri": "pvc://others/m"}}, "changed", 1, False),
    ],
)
async def test_change_tells_settings_from_replaced_pods(
    facts: Facts, spec: dict[str, Any], action: str, replaced: int, plans_as_before: bool
) -> None:
    one = change(edited(facts, **spec), facts, runtime_image_of(facts))
    assert (one.action, one.replaced, one.plans_as_before) == (action, replaced, plans_as_before)
    assert one.note == ""


async def test_change_by_another_version_of_the_operator_is_told_and_judged_all_the_same(facts: Facts) -> None:
    def older(pods: Callable[[Manifest], None]) -> Facts:
        revisions = json.loads(json.dumps(facts.revisions))
        pods(revisions[0]["data"]["template"])
        return replace(facts, revisions=tuple(revisions))

    other = older(lambda template: template["spec"].update(enableServiceLinks=True))
    unchanged = change(edited(facts), other, runtime_image_of(other))
    assert unchanged.replaced == 0
    assert "this program renders pods otherwise" in unchanged.note
    assert change(edited(facts, runtime={"maxNumSeqs": 8}), other, runtime_image_of(other)).replaced == 1


async def test_change_without_rights_on_revisions_claims_nothing(facts: Facts) -> None:
    one = change(edited(facts), replace(facts, revisions=()), "image")
    assert one.replaced is None
    assert one.how.startswith("not known whether any is replaced")


async def test_known_needs_are_those_of_a_pod_of_this_template(facts: Facts) -> None:
    assert known_needs(facts) == NEEDS
    status = {"plan": {"weightsBytes": 5, "kvBytesPerToken": 4, "kvTokens": 3, "maxConcurrency": 2}}
    by_status = replace(facts, pods=(), service=facts.service | {"status": status})
    assert known_needs(by_status) == Needs(5, 4, 3, 2, None, source="from the object's status")
    assert known_needs(replace(by_status, service=facts.service | {"status": {}})) is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"code": "BadFlags"}', "Traceback"])
def test_plan_of_anything_else_is_none(text: str) -> None:
    assert plan_of(text, "") is None


def ended(**state: Any) -> Manifest:
    container = {"name": "plan", "ready": False, "state": {"terminated": state}}
    return {"status": {"phase": "Failed", "containerStatuses": [container]}}


def test_needs_of_a_pod_that_planned() -> None:
    pod = ended(exitCode=0, message=json.dumps(SAID | {"kvTokens": None, "maxConcurrency": None}))
    assert needs_of(pod, "here") == Needs(538060032, 46080, None, None, 8192, source="here")
    said = {"code": "ModelNotFound", "message": "no config.json", "hint": "see --device"}
    assert needs_of(ended(exitCode=10, message=json.dumps(said)), "").fault == (
        "ModelNotFound: no config.json; see runtime.device"
    )
    late = {"status": {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}}
    assert needs_of(late, "").unknown == "the plan's pod ended without a plan: DeadlineExceeded Pod was active too long"


async def test_plan_pod_is_restricted_and_nobodys(facts: Facts) -> None:
    one = change(edited(facts, resources=GPU), facts, "image")
    pod = plan_pod(one.name, one.namespace, one.template, ["--gpu-memory=80Gi"])
    (container,) = pod["spec"]["containers"]
    assert container["args"][:2] == ["plan", "/models/models/SmolLM2-135M-Instruct"]
    assert container["args"][-1] == "--gpu-memory=80Gi"
    assert container["resources"] == {"limits": {"memory": "12Gi"}}
    assert container["volumeMounts"][0]["readOnly"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "initContainers" not in pod["spec"]
    assert not any(label.startswith("octavo.dev/") for label in pod["metadata"]["labels"])
    assert pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "octavo-operator"


async def test_as_json_has_everything(facts: Facts) -> None:
    one = change(edited(facts, replicas=2), facts, "image")
    told = as_json(one, NEEDS, fits(one.template["spec"], [node()], []), [])
    assert told["plan"] == SAID
    assert told["nodes"] == [{"name": "n", "pods": 110, "lacks": []}]
    assert (told["action"], told["podsReplaced"], told["edits"]) == ("changed", 0, ["replicas: 1 to 2"])
