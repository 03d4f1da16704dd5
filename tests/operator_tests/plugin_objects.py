"""Objects as an API server returned them while services were rolled out, were broken and served."""

from datetime import UTC, datetime
from typing import Any

from octavo_operator.api.names import Manifest
from octavo_operator.plugin.facts import Facts
from octavo_operator.testing import inference_service

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
UID = "8e5b6f5e-5d3c-4c8e-9f0a-1f7f0f6d4a11"


def service(*conditions: Manifest, generation: int = 2, **changes: Any) -> Manifest:
    status = {
        "observedGeneration": 2,
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "selector": "octavo.dev/inferenceservice=chat",
        "url": "http://chat.team-a.svc",
        "plan": {"weightsBytes": 538060032, "kvBytesPerToken": 46080, "kvTokens": 23296, "maxConcurrency": 2},
        "conditions": list(conditions),
        **changes.pop("status", {}),
    }
    manifest = inference_service("chat", "team-a", replicas=2, **changes)
    manifest["metadata"] |= {"uid": UID, "generation": generation, "creationTimestamp": "2026-11-28T09:00:00Z"}
    return manifest | {"status": status}


def condition(kind: str, status: str, reason: str, message: str, since: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            "observedGeneration": 2}  # fmt: skip


def pod(name: str, template: str, since: str, *, node: str | None = "node-1", **status: Any) -> Manifest:
    conditions = {"PodScheduled": "True", "PodReadyToStartContainers": "True", **status.pop("conditions", {})}
    metadata: Manifest = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "labels": {"octavo.dev/inferenceservice": "chat", "octavo.dev/template": template},
        "creationTimestamp": since,
    } | status.pop("metadata", {})
    told = [{"type": kind, "status": value, "lastTransitionTime": since} for kind, value in conditions.items()]
    spec = {"nodeName": node} if node else {}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", **status, "conditions": told}}


def ready_pod(name: str, template: str, since: str, *, restarts: int = 0, **metadata: Any) -> Manifest:
    server = {"name": "server", "ready": True, "started": True, "restartCount": restarts,
              "state": {"running": {"startedAt": since}}}  # fmt: skip
    return pod(name, template, since, conditions={"Ready": "True"}, containerStatuses=[server], metadata=metadata)


def deployment(template: str, surge: int = 1, unavailable: int = 0) -> Manifest:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    labels = {"octavo.dev/template": template}
    return {
        "metadata": {"name": "chat", "ownerReferences": [{"uid": UID, "controller": True}]},
        "spec": {"strategy": {"rollingUpdate": rolling}, "template": {"metadata": {"labels": labels}}},
    }


def event(reason: str, message: str, last: str, *, count: int = 1, about: str = "InferenceService") -> Manifest:
    who = {"kind": about, "name": "chat" if about == "InferenceService" else "chat-7d9f4-x2x4z"}
    return {
        "metadata": {"creationTimestamp": last},
        "involvedObject": who | ({"uid": UID} if about == "InferenceService" else {}),
        "reason": reason,
        "message": message,
        "lastTimestamp": last,
        "count": count,
    }


SERVING = Facts(
    service(
        condition("Ready", "True", "Serving", "2 of 2 pods are ready", "2026-11-28T09:01:10Z"),
        condition("Progressing", "False", "Complete", "2 of 2 pods run the current spec", "2026-11-28T09:01:10Z"),
        condition("ModelResolved", "True", "ClaimBound", "PersistentVolumeClaim team-a/models is bound",
                  "2026-11-28T09:00:00Z"),
        condition("Scheduled", "True", "Placed", "every pod has a node", "2026-11-28T09:00:03Z"),
        condition("UpdatePending", "True", "OperatorChanged",
                  "the pods run as an earlier operator, or earlier settings of it, made them. An update changes "
                  "spec.containers[server].image: octavo-runtime:1 to octavo-runtime:2. It comes with the next change of "
                  "the spec that concerns the pods, or with `kubectl annotate --overwrite "
                  "inferenceservices.octavo.dev/chat octavo.dev/update=0123456789abcdef --namespace team-a`",
                  "2026-12-01T11:30:00Z"),
    ),
    deployment("a1"),
    (
        ready_pod("chat-5c8d7-4wq8n", "a1", "2026-11-28T09:00:00Z"),
        ready_pod("chat-5c8d7-9kzl2", "a1", "2026-11-30T21:14:00Z", restarts=3),
    ),
    events=(event("Serving", "2 of 2 pods are ready", "2026-12-01T11:58:20Z", count=4),),
)  # fmt: skip

NO_NODE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption victims found."

ROLLING = Facts(
    service(
        condition("Ready", "False", "WaitingForGPU", NO_NODE, "2026-12-01T11:48:00Z"),
        condition("Progressing", "True", "RollingOut", "1 of 2 pods run the current spec", "2026-12-01T11:48:00Z"),
        condition("ModelResolved", "True", "ClaimBound", "PersistentVolumeClaim team-a/models is bound",
                  "2026-11-28T09:00:00Z"),
        condition("Scheduled", "False", "WaitingForGPU", NO_NODE, "2026-12-01T11:48:00Z"),
        condition("UpdatePending", "False", "UpToDate", "the pods are what this operator would make of the spec now",
                  "2026-11-28T09:00:00Z"),
        status={"replicas": 3, "readyReplicas": 1, "updatedReplicas": 1, "plan": None},
    ),
    deployment("b2", 0, 1),
    (
        ready_pod("chat-5c8d7-4wq8n", "a1", "2026-11-28T09:00:00Z"),
        ready_pod("chat-5c8d7-9kzl2", "a1", "2026-11-30T21:14:00Z", deletionTimestamp="2026-12-01T12:01:25Z"),
        pod("chat-7d9f4-x2x4z", "b2", "2026-12-01T11:59:15Z", node=None, phase="Pending",
            conditions={"PodScheduled": "False", "PodReadyToStartContainers": "False"}),
    ),
    events=(
        event("WaitingForGPU", NO_NODE, "2026-12-01T11:59:18Z"),
        event("FailedScheduling", NO_NODE, "2026-12-01T11:59:15Z", about="Pod", count=3),
    ),
)  # fmt: skip

BROKEN = Facts(
    service(
        condition("Ready", "False", "NotEnoughMemoryForKV",
                  "the KV cache holds 5,824 tokens and a request of the longest length needs 8,192; Give "
                  "runtime.kvCacheMemory 377487360, or runtime.maxModelLen 5824 [pod chat-7d9f4-x2x4z]",
                  "2026-12-01T11:00:00Z"),
        condition("Progressing", "True", "Starting", "0 of 2 pods are ready", "2026-12-01T11:00:00Z"),
        generation=3,
        status={"replicas": 2, "readyReplicas": 0, "plan": None, "url": "http://chat.team-a.svc"},
    ),
    pods=(
        pod("chat-7d9f4-x2x4z", "b2", "2026-12-01T11:00:00Z", phase="Pending", initContainerStatuses=[
            {"name": "plan", "ready": False, "restartCount": 7,
             "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 14, "message": '{"code": "NotEnoughMemoryForKV", "message": "no"}'}}}]),
    ),
    missing=('deployments.apps "chat" is forbidden: User "ann" cannot get resource "deployments" in API group "apps" in the namespace "team-a"',),
)  # fmt: skip
