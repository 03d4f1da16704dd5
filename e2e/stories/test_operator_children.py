"""From an InferenceService to its children, and back when someone touches them: the operator on a real API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import lifecycle
from cluster.layout import Layout
from operator_harness import Kubectl, OperatorProcess, World, condition, eventually

pytestmark = pytest.mark.cluster

REPAIR_SECONDS = 5.0


@pytest.fixture
def kubectl(world: World, operator: OperatorProcess) -> Iterator[Kubectl]:
    assert operator.is_ready()
    own = world.namespace()
    yield own
    own.run("delete", "isvc", "--all", "--wait=false")  # the story may have deleted the namespace


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    defaults = {"model": {"uri": "file:///model"}, "resources": {"requests": {"cpu": "10m"}}}
    metadata = {"name": name}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": defaults | spec,
    }


def created(kubectl: Kubectl, **spec: Any) -> None:
    kubectl.apply(service(**spec))
    eventually(lambda: kubectl.get("deployment", "chat") and kubectl.get("service", "chat"))
    settled(kubectl)


def settled(kubectl: Kubectl) -> dict[str, Any]:
    """The InferenceService once its status speaks of the present spec."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = kubectl.get("isvc", "chat")
        condition(found)
        return found

    return eventually(read)


def reason(kubectl: Kubectl, kind: str = "Ready") -> str:
    return str(condition(kubectl.get("isvc", "chat"), kind)["reason"])


def test_apply_makes_children_and_status(kubectl: Kubectl) -> None:
    kubectl.apply(service(replicas=2, service={"port": 8080}))
    deployment = eventually(lambda: kubectl.get("deployment", "chat"), REPAIR_SECONDS)
    found = eventually(lambda: condition(kubectl.get("isvc", "chat")) and kubectl.get("isvc", "chat"))
    uid = found["metadata"]["uid"]
    others = [kubectl.get(kind, "chat") for kind in ("service", "networkpolicy", "poddisruptionbudget")]
    for child in (deployment, *others):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    assert deployment["spec"]["replicas"] == 2
    status = eventually(lambda: (one := kubectl.get("isvc", "chat")["status"])["replicas"] == 2 and one)
    namespace = kubectl.namespace
    assert status["url"] == f"http://chat.{namespace}.svc:8080"
    assert status["selector"] == "octavo.dev/inferenceservice=chat"
    assert len(kubectl.get("pods", f"--selector={status['selector']}")) == 2
    row = kubectl("get", "isvc", "chat").splitlines()
    assert row[0].split() == ["NAME", "READY", "REASON", "PODS", "DESIRED", "CACHE%", "QUEUE", "MODEL", "AGE"]
    assert row[1].split()[:2] == ["chat", "False"]
    assert row[1].split()[3:6] == ["0", "2", "file:///model"]


def test_object_bears_no_mark_of_the_operator(kubectl: Kubectl) -> None:
    kubectl.apply(service(), arguments=["--server-side"])
    settled(kubectl)
    found = kubectl.get("isvc", "chat", "--show-managed-fields")
    assert not {"finalizers", "annotations", "labels"} & found["metadata"].keys()
    writers = {(one["manager"], one.get("subresource")) for one in found["metadata"]["managedFields"]}
    assert writers == {("kubectl", None), ("octavo-status", "status")}


EDITS: dict[str, tuple[str, Any, str]] = {
    "replicas": ("deployment", {"spec": {"replicas": 3}}, "merge"),
    "image": (
        "deployment",
        [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil"}],
        "json",
    ),
    "argument": ("deployment", [{"op": "remove", "path": "/spec/template/spec/containers/0/args/1"}], "json"),
    "strategy": ("deployment", {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}}, "merge"),
    "paused": ("deployment", {"spec": {"paused": True}}, "merge"),
    "probe": ("deployment", [{"op": "remove", "path": "/spec/template/spec/containers/0/readinessProbe"}], "json"),
    "port renumbered": ("service", [{"op": "replace", "path": "/spec/ports/0/port", "value": 81}], "json"),
    "second port": ("service", [{"op": "add", "path": "/spec/ports/-", "value": {"name": "x", "port": 9}}], "json"),
    "target": ("service", [{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 81}], "json"),
    "selector": ("service", {"spec": {"selector": {"octavo.dev/inferenceservice": "other"}}}, "merge"),
    "selector narrowed": ("service", {"spec": {"selector": {"a": "b"}}}, "merge"),
    "type": ("service", {"spec": {"type": "NodePort"}}, "merge"),
    "labels": ("service", {"metadata": {"labels": None}}, "merge"),
    "owner": ("deployment", {"metadata": {"ownerReferences": None}}, "merge"),
    "policy opened": ("networkpolicy", {"spec": {"ingress": [{}]}}, "merge"),
    "policy narrowed": ("networkpolicy", {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}, "merge"),
    "budget narrowed": ("poddisruptionbudget", {"spec": {"selector": {"matchLabels": {"a": "b"}}}}, "merge"),
    "budget of none": ("poddisruptionbudget", {"spec": {"maxUnavailable": 0}}, "merge"),
    "budget of the healthy": ("poddisruptionbudget", {"spec": {"unhealthyPodEvictionPolicy": None}}, "merge"),
}


@pytest.fixture(scope="module")
def edited(world: World, operator: OperatorProcess) -> Kubectl:
    assert operator.is_ready()
    kubectl = world.namespace()
    created(kubectl)
    return kubectl


def essence(child: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in child["spec"].items() if name != "ports"}
    ports = [{name: port[name] for name in ("name", "port", "targetPort")} for port in child["spec"].get("ports", ())]
    labels, owners = child["metadata"].get("labels"), child["metadata"].get("ownerReferences")
    return {
        "spec": spec,
        "ports": [port for port in ports if port["name"] == "http"],
        "labels": labels,
        "owners": owners,
    }


@pytest.mark.parametrize("what", EDITS)
def test_child_edited_is_repaired(edited: Kubectl, what: str) -> None:
    kind, patch, form = EDITS[what]
    before = essence(edited.get(kind, "chat"))
    edited.patch(f"{kind}/chat", patch, form)
    eventually(lambda: essence(edited.get(kind, "chat")) == before, REPAIR_SECONDS)


@pytest.mark.parametrize("kind", ["deployment", "service", "networkpolicy", "poddisruptionbudget"])
def test_child_deleted_returns(edited: Kubectl, kind: str) -> None:
    before = edited.get(kind, "chat")["metadata"]["uid"]
    edited("delete", kind, "chat", "--wait=false")
    eventually(lambda: edited.get(kind, "chat")["metadata"]["uid"] != before, REPAIR_SECONDS)


def test_longest_name_has_all_its_children(kubectl: Kubectl) -> None:
    """63 characters: what is made of it is longer, and cut where a label or a host's name must not be."""
    name = "n" * 63
    kubectl.apply(service(name))
    pod = eventually(lambda: kubectl.get("pods")[0], 20)
    assert pod["metadata"]["labels"]["octavo.dev/inferenceservice"] == name
    assert len(pod["metadata"]["name"]) <= 63
    assert kubectl.get("service", name)
    (revision,) = kubectl.get("controllerrevisions")
    assert revision["metadata"]["name"].startswith(f"{name}-")
    eventually(lambda: condition(kubectl.get("isvc", name))["reason"] == "InvalidImageName", 30)
    eventually(lambda: [one["reason"] for one in kubectl.get("events", f"--field-selector=involvedObject.name={name}")])


def test_second_writer_is_told_and_not_fought_for_ever(kubectl: Kubectl) -> None:
    created(kubectl)

    def interfere() -> bool:
        kubectl.patch("deployment/chat", {"spec": {"paused": True}})
        return reason(kubectl) == "Contested"

    eventually(interfere, 30)
    assert "something keeps changing Deployment chat back" in condition(kubectl.get("isvc", "chat"))["message"]


def test_what_others_add_to_a_child_stays(kubectl: Kubectl) -> None:
    created(kubectl)
    kubectl("annotate", "deployment", "chat", "theirs=1")
    kubectl("label", "service", "chat", "theirs=2")
    sidecar = {"name": "theirs", "image": "NOT-AN-IMAGE"}
    kubectl.patch("deployment/chat", {"spec": {"template": {"spec": {"containers": [sidecar]}}}}, "strategic")
    kubectl("scale", "isvc/chat", "--replicas=2")
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 2)
    assert kubectl.get("deployment", "chat")["metadata"]["annotations"]["theirs"] == "1"
    assert kubectl.get("service", "chat")["metadata"]["labels"]["theirs"] == "2"
    containers = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"]
    assert sorted(one["name"] for one in containers) == ["server", "theirs"]


def test_field_left_out_of_the_spec_leaves_the_child(kubectl: Kubectl) -> None:
    created(kubectl, podTemplate={"spec": {"nodeSelector": {"a": "b"}}}, service={"annotations": {"a": "b"}})
    assert kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}
    kubectl.apply(service())
    eventually(lambda: "nodeSelector" not in kubectl.get("deployment", "chat")["spec"]["template"]["spec"])
    eventually(lambda: "annotations" not in kubectl.get("service", "chat")["metadata"])


def test_rollout_type_changes_both_ways(kubectl: Kubectl) -> None:
    created(kubectl)
    recreate = {"type": "Recreate", "maxSurge": None, "maxUnavailable": None}
    for wanted, strategy in (
        (
            {"type": "RollingUpdate", "maxUnavailable": 1},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        ),
        (recreate, {"type": "Recreate"}),
        ({"type": "RollingUpdate"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ({"type": "Auto"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
    ):
        kubectl.patch("isvc/chat", {"spec": {"rollout": wanted}})
        eventually(lambda expected=strategy: kubectl.get("deployment", "chat")["spec"]["strategy"] == expected)  # type: ignore[misc] # lambda with a default


def test_delete_leaves_nothing(kubectl: Kubectl) -> None:
    created(kubectl)
    eventually(lambda: kubectl.get("pods"))
    kubectl("delete", "isvc", "chat", "--timeout=10s")
    owned = "deployments,replicasets,controllerrevisions,pods,services,networkpolicies,poddisruptionbudgets"
    kinds = f"{owned},inferenceservices.octavo.dev"
    eventually(lambda: kubectl.get(kinds) == [], 60)


def test_delete_while_the_claim_is_missing(kubectl: Kubectl) -> None:
    kubectl.apply(service(model={"uri": "pvc://nowhere/m"}))
    eventually(lambda: reason(kubectl) == "ClaimNotFound")
    kubectl("delete", "isvc", "chat", "--timeout=10s")
    eventually(lambda: not kubectl.get("deployments,services,pods"), 60)


def test_delete_of_the_namespace_is_no_trouble(kubectl: Kubectl, operator: OperatorProcess) -> None:
    """Children vanish before their owner does, and none can be created any more: that is no error."""
    created(kubectl)
    said = len(operator.log.read_text())
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=90s")
    news = operator.log.read_text()[said:]
    assert "ERROR" not in news
    assert "Traceback" not in news


def test_new_revision_does_not_wait_for_a_broken_one(kubectl: Kubectl) -> None:
    created(kubectl)
    eventually(lambda: reason(kubectl) == "InvalidImageName", 30)
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"image": "NOT-AN-IMAGE-EITHER"}}})

    def images() -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in kubectl.get("pods")}

    eventually(lambda: "NOT-AN-IMAGE-EITHER" in images())
    eventually(lambda: "NOT-AN-IMAGE-EITHER" in condition(kubectl.get("isvc", "chat"))["message"], 30)


def test_many_at_once_all_get_there(kubectl: Kubectl) -> None:
    count = 100
    kubectl.apply(*[service(f"chat-{number}", replicas=0) for number in range(count)])

    def stopped() -> int:
        services = kubectl.get("isvc")
        return sum(1 for one in services if "status" in one and condition(one)["reason"] == "Stopped")

    eventually(lambda: stopped() == count, 60, every=0.5)
    assert len(kubectl.get("deployments")) == len(kubectl.get("services")) == count


def test_orphaned_children_are_adopted_without_a_new_pod(kubectl: Kubectl) -> None:
    created(kubectl)
    pods = eventually(lambda: kubectl.get("pods"))
    kubectl("delete", "isvc", "chat", "--cascade=orphan")
    assert kubectl.get("deployment", "chat")
    kubectl.apply(service())
    uid = kubectl.get("isvc", "chat")["metadata"]["uid"]
    eventually(lambda: kubectl.get("deployment", "chat")["metadata"]["ownerReferences"][0]["uid"] == uid)
    settled(kubectl)
    assert [one["metadata"]["uid"] for one in kubectl.get("pods")] == [one["metadata"]["uid"] for one in pods]


def test_object_of_someone_else_is_left_alone(kubectl: Kubectl) -> None:
    kubectl("create", "service", "clusterip", "chat", "--tcp=7:7")
    before = kubectl.get("service", "chat")
    kubectl.apply(service())
    eventually(lambda: reason(kubectl) == "NameTaken")
    assert "Service chat exists and belongs to someone else" in condition(kubectl.get("isvc", "chat"))["message"]
    assert kubectl.get("service", "chat") == before
    kubectl("delete", "service", "chat")
    eventually(lambda: reason(kubectl) != "NameTaken", 30)
    assert kubectl.get("service", "chat")["spec"]["ports"][0]["port"] == 80


def test_scale_and_a_later_apply_without_replicas(kubectl: Kubectl) -> None:
    created(kubectl)
    kubectl("scale", "isvc/chat", "--replicas=3")
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 3)
    kubectl.apply(service(runtime={"maxNumSeqs": 8}))
    eventually(
        lambda: (
            "--max-num-seqs=8" in kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["args"]
        )
    )
    assert kubectl.get("deployment", "chat")["spec"]["replicas"] == 3
    kubectl("scale", "isvc/chat", "--replicas=0")
    eventually(lambda: reason(kubectl) == "Stopped")


def test_suspend_stops_the_pods_and_resume_brings_as_many_back(kubectl: Kubectl) -> None:
    created(kubectl, replicas=2)
    eventually(lambda: len(kubectl.get("pods")) == 2)
    before = kubectl.get("deployment", "chat")
    kubectl.patch("isvc/chat", {"spec": {"suspend": True}})
    eventually(lambda: reason(kubectl) == "Suspended")
    eventually(lambda: not kubectl.get("pods"), 30)
    eventually(lambda: reason(kubectl, "Progressing") == "Complete")
    assert kubectl("get", "isvc", "chat", "--no-headers").split()[1:5] == ["False", "Suspended", "0", "2"]
    found = kubectl.get("isvc", "chat")
    assert (found["status"]["replicas"], found["status"]["selector"]) == (0, "octavo.dev/inferenceservice=chat")
    kubectl("scale", "isvc/chat", "--replicas=3")
    settled(kubectl)
    assert kubectl.get("deployment", "chat")["spec"]["replicas"] == 0
    kubectl.patch("isvc/chat", {"spec": {"suspend": False}})
    eventually(lambda: len(kubectl.get("pods")) == 3)
    after = kubectl.get("deployment", "chat")
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["spec"]["strategy"] == before["spec"]["strategy"]


def test_horizontal_pod_autoscaler_can_use_scale(kubectl: Kubectl) -> None:
    created(kubectl)
    target = {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "name": "chat"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4, "metrics": [metric]}
    kubectl.apply(
        {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "chat"}, "spec": spec}
    )
    # Below its minimum it needs no metric to scale: it has read /scale, its selector included, and written it.
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 2, 45)
    scaler = eventually(lambda: (one := kubectl.get("hpa", "chat")).get("status", {}).get("conditions") and one, 45)
    able = next(one for one in scaler["status"]["conditions"] if one["type"] == "AbleToScale")
    assert able["status"] == "True"
    assert "selector" not in str(scaler["status"]["conditions"])


def test_claim_missing_then_pending_then_bound(kubectl: Kubectl) -> None:
    kubectl.apply(service(model={"uri": "pvc://models/m"}))
    eventually(lambda: reason(kubectl) == "ClaimNotFound")
    message = condition(kubectl.get("isvc", "chat"))["message"]
    assert (
        message
        == f"PersistentVolumeClaim {kubectl.namespace}/models does not exist; create it, or change spec.model.uri"
    )
    size = {"storage": "1Mi"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": {
        "accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": size}}}  # fmt: skip
    kubectl.apply(claim)
    eventually(lambda: reason(kubectl, "ModelResolved") == "ClaimPending", 10)
    name = f"volume-{kubectl.namespace}"
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "accessModes": ["ReadOnlyMany"], "capacity": size, "hostPath": {"path": "/opt"},
        "claimRef": {"name": "models", "namespace": kubectl.namespace}}}  # fmt: skip
    try:
        kubectl.apply(volume)
        eventually(lambda: condition(kubectl.get("isvc", "chat"), "ModelResolved")["status"] == "True", 30)
        eventually(lambda: reason(kubectl, "Scheduled") == "Placed", 30)
    finally:
        kubectl("delete", "isvc", "chat")
        kubectl("delete", "persistentvolume", name, "--wait=false")


def test_gpu_that_is_not_there_yet(kubectl: Kubectl, cluster: Layout) -> None:
    lifecycle.set_gpus(cluster, 0)
    kubectl.apply(service(resources={"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": 1}}))
    eventually(lambda: reason(kubectl) == "WaitingForGPU", 20)
    assert "Insufficient nvidia.com/gpu" in condition(kubectl.get("isvc", "chat"), "Scheduled")["message"]
    try:
        lifecycle.set_gpus(cluster, 1)
        eventually(lambda: reason(kubectl, "Scheduled") == "Placed", 60)
    finally:
        kubectl("delete", "isvc", "chat")
        lifecycle.set_gpus(cluster, 0)


def test_pods_that_cannot_start_say_why(kubectl: Kubectl) -> None:
    created(kubectl, runtime={"image": "octavo.invalid/runtime:0"})
    eventually(lambda: reason(kubectl) == "ImagePullBackOff", 30)
    assert "octavo.invalid/runtime" in condition(kubectl.get("isvc", "chat"))["message"]


def test_pods_that_a_quota_refuses_say_why(kubectl: Kubectl) -> None:
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    )
    eventually(lambda: kubectl.get("resourcequota", "none").get("status", {}).get("hard"))
    kubectl.apply(service())
    eventually(lambda: reason(kubectl) == "PodsRefused", 20)
    assert "exceeded quota" in condition(kubectl.get("isvc", "chat"))["message"]


def test_child_that_the_api_server_refuses_says_why_and_heals(kubectl: Kubectl) -> None:
    kubectl.apply(service(podTemplate={"metadata": {"labels": {"not a label": "x"}}}))
    eventually(lambda: reason(kubectl) == "ApplyRejected")
    assert "Deployment chat" in condition(kubectl.get("isvc", "chat"))["message"]
    kubectl.apply(service())
    eventually(lambda: reason(kubectl) != "ApplyRejected")
    assert kubectl.get("deployment", "chat")


def test_quiet_cluster_sees_no_writes(kubectl: Kubectl, operator: OperatorProcess) -> None:
    """Quantities that the API server rewrites, defaults that it adds, pods that fail again: no reason to write."""
    limits = {"cpu": "1000m", "memory": "1024Mi"}
    resources = {"limits": limits, "requests": {"cpu": "0.010", "memory": "0.5Gi"}}
    created(kubectl, resources=resources)
    kinds = "deployments,services,networkpolicies,poddisruptionbudgets,inferenceservices.octavo.dev"

    def versions() -> list[str]:
        return [one["metadata"]["resourceVersion"] for one in kubectl.get(kinds)]

    eventually(lambda: reason(kubectl) == "InvalidImageName", 30)
    eventually(lambda: stands_still(operator.writes, 3), 60)
    before, writes = versions(), operator.writes()
    assert stands_still(operator.writes, 20), f"{operator.writes() - writes} writes"
    assert versions() == before


def stands_still(read: Callable[[], float], seconds: float) -> bool:
    """Whether a number stays what it is for so long."""
    before, end = read(), time.monotonic() + seconds
    while time.monotonic() < end:
        if read() != before:
            return False
        time.sleep(0.2)
    return True
