"""What kubectl tells of a service that does not serve yet, on the real kubelet: which of its words, and how often."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from cluster import lifecycle, models
from cluster.layout import Layout
from demo import CLAIM, MODEL, converted_model
from operator_harness import Kubectl, OperatorProcess, World, condition, eventually

pytestmark = pytest.mark.cluster

START = 180.0  # seconds for a pod to load on a busy machine

STAND_IN = """\
import http.server, signal, sys

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): ...

if "serve" in sys.orig_argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    http.server.HTTPServer(("", 8000), Ready).serve_forever()
"""
"""A server that is ready at once and needs no GPU; the rest of the image stays as it is."""


@pytest.fixture
def operator(world: World, image_references: dict[str, str]) -> Iterator[OperatorProcess]:
    process = world.operator(f"--runtime-image={image_references['runtime']}")
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def kubectl(world: World, cluster: Layout, operator: OperatorProcess) -> Iterator[Kubectl]:
    """kubectl in a namespace with the model and the stand-in for the server."""
    assert operator.is_ready()
    own = world.namespace()
    models.publish(cluster, converted_model(), MODEL, CLAIM, own.namespace)
    own.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stand-in"},
               "data": {"sitecustomize.py": STAND_IN}})  # fmt: skip
    yield own
    own("delete", "isvc", "--all", "--wait=false")


def service(*, stand_in: bool = True, **changes: Any) -> dict[str, Any]:
    runtime: dict[str, Any] = {"dtype": "float32", "kvCacheMemory": "256Mi", **changes.pop("runtime", {})}
    spec: dict[str, Any] = {
        "model": {"uri": f"pvc://{CLAIM}/{MODEL}"},
        "runtime": runtime,
        "resources": {"requests": {"cpu": "10m"}},
        "rollout": {"type": "Recreate", "drainSeconds": 0},
        **changes,
    }
    if stand_in:
        runtime["env"] = [{"name": "PYTHONPATH", "value": "/stand-in"}, *runtime.get("env", ())]
        runtime["volumeMounts"] = [{"name": "stand-in", "mountPath": "/stand-in"}]
        spec["podTemplate"] = {"spec": {"volumes": [{"name": "stand-in", "configMap": {"name": "stand-in"}}]}}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": spec,
    }


def told(kubectl: Kubectl, reason: str, seconds: float = 60.0) -> dict[str, Any]:
    """The condition Ready once it has this reason."""

    def read() -> dict[str, Any] | None:
        ready = condition(kubectl.get("isvc", "chat"))
        assert ready["reason"] == reason, ready
        return ready

    found = eventually(read, seconds, every=0.2)
    assert found is not None
    return found


def story(kubectl: Kubectl) -> dict[str, tuple[str, str]]:
    """Type and age of each Event that `kubectl describe` shows, by reason; the age has the count."""
    _, _, text = kubectl("describe", "isvc", "chat").partition("Events:")
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=4) for line in text.splitlines()[3:]]
    found = {row[1]: (row[0], row[2]) for row in rows}
    assert len(found) == len(rows), "a reason has two events"
    return found


def counts(kubectl: Kubectl) -> dict[str, int]:
    events = kubectl.get("events", "--field-selector=involvedObject.kind=InferenceService")
    return {one["reason"]: one["count"] for one in events}


def test_plan_is_shown_before_the_weights_are_read(kubectl: Kubectl) -> None:
    kubectl.apply(service(stand_in=False, resources={"requests": {"cpu": "10m", "memory": "1Gi"}}))
    plan = eventually(lambda: kubectl.get("isvc", "chat")["status"]["plan"], 60)
    assert condition(kubectl.get("isvc", "chat"))["reason"] == "Starting"
    # 30 layers, keys and values, 3 heads of 64, 4 bytes; 256 MiB of that, in whole blocks of 16 tokens
    per_token = 30 * 2 * 3 * 64 * 4
    tokens = (256 << 20) // (16 * per_token) * 16
    assert plan == {"weightsBytes": 269030016, "kvBytesPerToken": per_token, "kvTokens": tokens, "maxConcurrency": 1}
    kubectl("wait", "isvc/chat", "--for=condition=Ready", f"--timeout={START:.0f}s")
    assert condition(kubectl.get("isvc", "chat"), "Scheduled")["reason"] == "Placed"
    assert story(kubectl).keys() == {"Serving"}
    (pod,) = kubectl.get("pods")
    (status,) = pod["status"]["initContainerStatuses"]
    started, finished = (
        datetime.fromisoformat(status["state"]["terminated"][f"{edge}At"]) for edge in ("started", "finished")
    )
    assert (finished - started).total_seconds() < 5, "the plan is to cost little"
    assert kubectl.get("isvc", "chat")["status"]["plan"] == plan
    again = service(stand_in=False, resources={"requests": {"cpu": "10m", "memory": "1Gi"}})
    again["spec"]["runtime"]["kvCacheDtype"] = "bfloat16"
    kubectl.apply(again)
    eventually(lambda: kubectl.get("isvc", "chat")["status"]["plan"]["kvBytesPerToken"] == per_token // 2, 60)


def test_gpu_missing_is_told_in_the_schedulers_words_then_added(kubectl: Kubectl, cluster: Layout) -> None:
    lifecycle.set_gpus(cluster, 0)
    kubectl.apply(service(resources={"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": 1}}))
    ready = told(kubectl, "WaitingForGPU")
    assert "Insufficient nvidia.com/gpu" in ready["message"]
    scheduled = condition(kubectl.get("isvc", "chat"), "Scheduled")
    assert (scheduled["status"], scheduled["reason"], scheduled["message"]) == (
        "False",
        "WaitingForGPU",
        ready["message"],
    )
    assert kubectl("get", "isvc", "chat").splitlines()[1].split()[:3] == ["chat", "False", "WaitingForGPU"]
    lifecycle.set_gpus(cluster, 1)
    try:
        kubectl("wait", "isvc/chat", "--for=condition=Ready", f"--timeout={START:.0f}s")
        assert condition(kubectl.get("isvc", "chat"), "Scheduled")["status"] == "True"
        # What the weights leave of a GPU is known when they are loaded.
        assert {"weightsBytes", "kvBytesPerToken"} <= kubectl.get("isvc", "chat")["status"]["plan"].keys()
        events = story(kubectl)
        assert events["WaitingForGPU"][0] == "Warning"
        assert events["Serving"][0] == "Normal"
    finally:
        kubectl("delete", "isvc", "chat")
        lifecycle.set_gpus(cluster, 0)


def test_no_room_for_kv_fails_in_the_plan_with_the_field_to_change(kubectl: Kubectl, operator: OperatorProcess) -> None:
    kubectl.apply(service(runtime={"kvCacheMemory": "1Mi", "maxModelLen": 4096}))
    ready = told(kubectl, "NotEnoughMemoryForKV")
    assert "Give runtime.kvCacheMemory 188743680, or runtime.maxModelLen" in ready["message"]

    def restarts() -> int:
        (pod,) = kubectl.get("pods")
        (status,) = pod["status"]["initContainerStatuses"]
        return int(status["restartCount"])

    eventually(lambda: restarts() >= 2, 60)
    operator.stop(signal.SIGKILL)
    operator.start()
    eventually(lambda: restarts() >= 3, 90)
    assert story(kubectl)["NotEnoughMemoryForKV"][0] == "Warning"
    assert counts(kubectl)["NotEnoughMemoryForKV"] == 1, "a crash loop and a new operator are no news"
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"kvCacheMemory": "256Mi"}}})
    told(kubectl, "Serving", START)
    assert counts(kubectl)["Serving"] == 1


def test_out_of_memory_of_the_host_is_told_apart(kubectl: Kubectl) -> None:
    """The plan fits into 96 MiB; the engine does not."""
    kubectl.apply(service(stand_in=False, resources={"requests": {"cpu": "10m"}, "limits": {"memory": "96Mi"}}))
    ready = told(kubectl, "OOMKilled", START)
    assert ready["message"].startswith(
        "the server exceeded its memory limit and was killed; raise resources.limits.memory"
    )
    assert kubectl.get("isvc", "chat")["status"]["plan"]["weightsBytes"] == 269030016


def test_secret_missing_is_named_then_created(kubectl: Kubectl) -> None:
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}
    kubectl.apply(service(runtime={"env": [token]}))
    assert 'secret "token" not found' in told(kubectl, "SecretNotFound")["message"]
    kubectl("create", "secret", "generic", "token", "--from-literal=other=x")
    eventually(lambda: "find key t in Secret" in told(kubectl, "SecretNotFound")["message"], 60)
    kubectl("delete", "secret", "token")
    kubectl("create", "secret", "generic", "token", "--from-literal=t=x")
    told(kubectl, "Serving", START)
    events = story(kubectl)
    assert (events["SecretNotFound"][0], events["Serving"][0]) == ("Warning", "Normal")
    assert counts(kubectl)["SecretNotFound"] == 1


def test_secret_missing_from_a_volume_is_named_then_created(kubectl: Kubectl) -> None:
    """The kubelet says so in an Event of the pod alone."""
    manifest = service()
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    manifest["spec"]["podTemplate"]["spec"]["volumes"].append(volume)
    manifest["spec"]["runtime"]["volumeMounts"].append({"name": "keys", "mountPath": "/keys"})
    kubectl.apply(manifest)
    assert "secret keys" in told(kubectl, "VolumesOrNetworkNotReady")["message"]
    kubectl("create", "secret", "generic", "keys", "--from-literal=t=x")
    told(kubectl, "Serving", START)  # the kubelet tries again after up to two minutes


def test_image_and_claim_missing_are_named(kubectl: Kubectl) -> None:
    kubectl.apply(service(model={"uri": "pvc://nobody/model"}))
    assert "PersistentVolumeClaim" in told(kubectl, "ClaimNotFound")["message"]
    broken = service(runtime={"image": "octavo.invalid/none:1"})
    kubectl.apply(broken)
    assert "octavo.invalid" in told(kubectl, "ImagePullBackOff")["message"]
    assert story(kubectl).keys() >= {"ClaimNotFound", "ImagePullBackOff"}
