"""Why pods do not serve: the runtime's own words where there are some, else the kubelet's and the scheduler's."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.desired import is_gpu

__all__ = ["Cause", "current_pods", "placement_fault", "serving_fault"]

CANNOT_START = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of the kubelet for a container that waits and will not start by itself."""

LOG_TAIL = 600
"""How many characters of a crashed container's log go into a message."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A condition's reason and message."""

    reason: str
    message: str


def current_pods(pods: Iterable[Manifest], template: str) -> tuple[Manifest, ...]:
    """The pods that count for the present spec: those of this template, or all where none is yet. None that is going.

    Args:
        pods: the pods of one InferenceService.
        template: the digest in the label of the desired pods.
    """
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    current = [pod for pod in staying if pod["metadata"].get("labels", {}).get(TEMPLATE_LABEL) == template]
    return tuple(current or staying)


def serving_fault(pods: Sequence[Manifest]) -> Cause | None:
    """What keeps a pod that is not ready from serving, the runtime's own message first; None when nothing is wrong."""
    faults = []
    # Evicted pods stay behind when others have taken their place.
    for pod in [pod for pod in pods if pod["status"].get("phase") != "Failed"] or pods:
        fault = _fault(pod)
        if fault is not None:
            faults.append((fault[0], pod["metadata"]["name"], fault[1]))
    if not faults:
        return None
    _, pod_name, cause = min(faults, key=lambda fault: fault[:2])
    return Cause(cause.reason, f"{cause.message} [pod {pod_name}]")


def placement_fault(pods: Sequence[Manifest], limits: Iterable[str]) -> Cause | None:
    """What keeps a pod from finding a node, in the scheduler's words.

    Args:
        pods: the pods.
        limits: names of the resources that the server container is limited to.
    """
    for pod in pods:
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                message = condition.get("message", "the scheduler gives no reason")
                lacks_gpu = any(is_gpu(name) and f"Insufficient {name}" in message for name in limits)
                return Cause(Reason.WAITING_FOR_GPU if lacks_gpu else Reason.UNSCHEDULABLE, message)
    return None


def _fault(pod: Manifest) -> tuple[int, Cause] | None:
    """A pod's fault with its rank: the smaller, the more it explains."""
    status = pod["status"]
    if status.get("phase") == "Failed" and status.get("reason"):
        reason = Reason.EVICTED if status["reason"] == "Evicted" else status["reason"]
        return 2, Cause(reason, status.get("message", "the pod failed"))
    server = next((one for one in status.get("containerStatuses", ()) if one["name"] == "server"), None)
    if server is None or server.get("ready"):
        return None
    waiting = server.get("state", {}).get("waiting", {})
    if waiting.get("reason") in CANNOT_START:
        return 1, _standstill(waiting["reason"], waiting.get("message", "the container cannot start"))
    ended = server.get("state", {}).get("terminated") or server.get("lastState", {}).get("terminated")
    return _ending(ended, again_and_again=waiting.get("reason") == "CrashLoopBackOff") if ended else None


def _standstill(reason: str, message: str) -> Cause:
    """Why a container waits. The kubelet changes between two names for one failed pull, which is no news."""
    if reason in {"ErrImagePull", "ImagePullBackOff"}:
        return Cause("ImagePullBackOff", message.rpartition("ErrImagePull: ")[2])
    return Cause(reason, message)


def _ending(ended: Manifest, *, again_and_again: bool) -> tuple[int, Cause] | None:
    """What a container's last words say."""
    text = ended.get("message", "")
    if ended.get("reason") == "OOMKilled":
        return 1, Cause(
            Reason.OOM_KILLED,
            "the server exceeded its memory limit and was killed; raise resources.limits.memory, or lower "
            "runtime.kvCacheMemory",
        )
    said = _termination_message(text)
    if said is not None:
        return 0, said
    if ended.get("exitCode") == 0:
        if not again_and_again:
            return None  # stopped as asked, and started again
        message = "the server is stopped again and again, perhaps by its liveness probe: kubectl describe tells"
        return 1, Cause(Reason.CRASHED, message)
    return 1, Cause(
        Reason.CRASHED, f"the server ended with exit code {ended.get('exitCode')}: {text[-LOG_TAIL:].strip()}"
    )


def _termination_message(text: str) -> Cause | None:
    """Reads the runtime's JSON (docs/contract.md); None for anything else, such as the tail of a log."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("code"), str) or not isinstance(said.get("message"), str):
        return None
    # A reason is an identifier for the API server; whatever else it is belongs to the message.
    if not said["code"].isalnum() or not said["code"][0].isalpha():
        return None
    hint = said.get("hint")
    return Cause(said["code"], f"{said['message']}; {hint}" if hint else said["message"])
