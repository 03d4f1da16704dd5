"""A pod in a few words: where it is on its way, or what holds it up."""

from datetime import datetime

from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.containers import container_fault
from octavo_operator.core.desired import PLAN, SERVER
from octavo_operator.plugin.screen import moment, seconds

__all__ = ["generation_of", "restarts", "state_of"]

LEAVING, CURRENT, OLD, UNKNOWN = "going", "current", "old", "-"


def state_of(pod: Manifest, now: datetime) -> tuple[str, str]:
    """What a pod is doing, and the colour of that: green, yellow, red, or dim for one that is leaving."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        left = (moment(pod["metadata"]["deletionTimestamp"]) - now).total_seconds()
        return f"leaving, for {seconds(left)} at most" if left > 0 else "should be gone: is its node lost?", "dim"
    if status.get("phase") == "Failed":
        return str(status.get("reason", "Failed")), "red"
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    if conditions.get("Ready", {}).get("status") == "True":
        return "ready", "green"
    if conditions.get("PodScheduled", {}).get("status") != "True":
        return "waits for a node", "red" if conditions.get("PodScheduled") else "yellow"
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, ()):
            fault = container_fault(container, init=kind == "initContainerStatuses")
            if fault is not None:
                return str(fault[1].reason), "red"
    return _step(status, conditions), "yellow"


def _step(status: Manifest, conditions: dict[str, Manifest]) -> str:
    """How far a pod is that nothing holds up."""
    if conditions.get("PodReadyToStartContainers", {}).get("status") == "False":
        return "waits for volumes and network"
    for container in status.get("initContainerStatuses", ()):
        if "running" in container.get("state", {}):
            return "plans" if container["name"] == PLAN else f"runs {container['name']}"
    for container in status.get("containerStatuses", ()):
        if "running" not in container.get("state", {}):
            continue
        if container["name"] == PLAN:
            return "plans"
        if container["name"] == SERVER:
            return "answers no more" if container.get("started") else "loads the model"
    return "is being started"


def restarts(pod: Manifest) -> int:
    """How often its containers were started again."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return sum(container.get("restartCount", 0) for container in containers)


def generation_of(pod: Manifest, template: str | None) -> str:
    """Whether a pod is of the template that is wanted: current, old, going, or - when nobody knows."""
    if "deletionTimestamp" in pod["metadata"]:
        return LEAVING
    if template is None:
        return UNKNOWN
    return CURRENT if pod["metadata"].get("labels", {}).get(TEMPLATE_LABEL) == template else OLD
