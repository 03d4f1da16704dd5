"""Why pods do not serve, and what their plan says; the scheduler's words where they find no node."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.arguments import is_gpu
from octavo_operator.core.containers import Cause, container_fault
from octavo_operator.core.desired import PLAN

__all__ = ["current_pods", "placement_fault", "serving_fault", "told_plan"]

PLAN_FIELDS = ("weightsBytes", "kvBytesPerToken", "kvTokens", "maxConcurrency")
"""What of the plan goes into the status."""


def current_pods(pods: Iterable[Manifest], template: str) -> tuple[Manifest, ...]:
    """The pods that count for the present spec: those of this template, or all where none is yet. None that is going.

    Args:
        pods: the pods of one InferenceService.
        template: the digest in the label of the desired pods.
    """
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return tuple([pod for pod in staying if is_of(pod, template)] or staying)


def is_of(pod: Manifest, template: str) -> bool:
    """Whether a pod was made from this template."""
    return bool(pod["metadata"].get("labels", {}).get(TEMPLATE_LABEL) == template)


def serving_fault(pods: Sequence[Manifest]) -> Cause | None:
    """What keeps a pod that is not ready from serving, the runtime's own message first; None when nothing is wrong."""
    faults = []
    # Evicted pods stay behind when others have taken their place.
    for pod in [pod for pod in pods if pod["status"].get("phase") != "Failed"] or pods:
        faults += [(rank, pod["metadata"]["name"], cause) for rank, cause in _faults(pod)]
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
    gpus = [name for name in limits if is_gpu(name)]
    for pod in pods:
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                message = condition.get("message", "the scheduler gives no reason")
                lacks_gpu = any(f"Insufficient {name}" in message for name in gpus)
                return Cause(Reason.WAITING_FOR_GPU if lacks_gpu else Reason.UNSCHEDULABLE, message)
    return None


def told_plan(pods: Iterable[Manifest], template: str) -> dict[str, int] | None:
    """What the plan of a pod of this template says that the model needs; None as long as none has run."""
    for pod in pods:
        for container in pod["status"].get("initContainerStatuses", ()):
            ended = container.get("state", {}).get("terminated") or {}
            if is_of(pod, template) and container.get("name") == PLAN and ended.get("exitCode") == 0:
                said = _plan(ended.get("message", ""))
                if said:
                    return said
    return None


def _plan(text: str) -> dict[str, int]:
    """Reads the JSON of `octavo plan`. What only a device can tell is null there, and left out here."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    numbers = {name: said.get(name) for name in PLAN_FIELDS}
    return {
        name: math.floor(number)
        for name, number in numbers.items()
        if isinstance(number, int | float) and 0 <= number < 2**63
    }


def _faults(pod: Manifest) -> Iterator[tuple[int, Cause]]:
    """A pod's faults with their ranks: the smaller, the more it explains."""
    status = pod["status"]
    if status.get("phase") == "Failed" and status.get("reason"):
        told = status.get("message", "the pod failed")
        if status["reason"] == "Evicted":
            yield 2, Cause(Reason.EVICTED, told)
        else:
            yield 2, Cause(Reason.POD_FAILED, f"{status['reason']}: {told}")
        return
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, ()):
            fault = container_fault(container, init=kind == "initContainerStatuses")
            if fault is not None:
                yield fault
