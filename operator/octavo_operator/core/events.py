"""Kubernetes Events: one for each change of Ready's reason, and of the replicas by autoscaling.

So `kubectl describe` tells the story.

Invariants:
- An event follows from the status that is stored and the one that replaces it, and from nothing else. An operator that
  starts anew finds both equal, and says nothing again. The one exception tells of a status that cannot be kept.
- An object has at most one Event per reason of the closed list; a reason that comes back is counted up. The API server
  drops an Event an hour after its last count.
- A new object that only starts is no news: a thousand of them make no events.
"""

from datetime import UTC, datetime

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import EVENT, INFERENCE_SERVICE, OPERATOR, Manifest
from octavo_operator.core.digest import digest

__all__ = ["contest_event", "ready_event", "scale_event"]

NORMAL = frozenset(
    {
        Reason.SERVING,
        Reason.STOPPED,
        Reason.SUSPENDED,
        Reason.STARTING,
        Reason.ROLLING_OUT,
        Reason.SCALING_DOWN,
        Reason.CLAIM_PENDING,
    }
)
"""Reasons of Ready that ask nobody to do anything; all others are warnings."""

MESSAGE_LIMIT = 1024
"""Characters of an Event's message that the API server takes."""


def ready_event(manifest: Manifest, status: Manifest, now: datetime) -> Manifest | None:
    """The Event that a new status is worth; None when Ready has the reason that it had.

    Args:
        manifest: the InferenceService with the status that is stored.
        status: the status that replaces it.
        now: the time.
    """
    before, after = _ready(manifest.get("status", {})), _ready(status)
    if after is None or (before is not None and before["reason"] == after["reason"]):
        return None
    kind = "Normal" if after["reason"] in NORMAL else "Warning"
    if before is None and kind == "Normal":
        return None
    return _event(manifest, kind, after["reason"], after["message"], now)


def scale_event(manifest: Manifest, status: Manifest, now: datetime) -> Manifest | None:
    """The Event of a change of replicas that a new status tells first; None when it tells none.

    Args:
        manifest: the InferenceService with the status that is stored.
        status: the status that replaces it.
        now: the time.
    """
    scaled = status.get("lastScale")
    if scaled is None or scaled == manifest.get("status", {}).get("lastScale"):
        return None
    reason = "ScaledUp" if scaled["to"] > scaled["from"] else "ScaledDown"
    return _event(manifest, "Normal", reason, f"from {scaled['from']} to {scaled['to']}: {scaled['reason']}", now)


def contest_event(manifest: Manifest, now: datetime) -> Manifest:
    """The Event of a status that something else keeps writing back.

    Args:
        manifest: the InferenceService.
        now: the time.
    """
    resource = f"{INFERENCE_SERVICE.plural}.{INFERENCE_SERVICE.group}/{manifest['metadata']['name']}"
    message = (
        "something else keeps writing the status back, which is not to be relied on meanwhile: perhaps a second operator "
        f"serves this namespace, `kubectl get pods -A -l app.kubernetes.io/name={OPERATOR}` shows them; "
        f"`kubectl get {resource} --show-managed-fields -o yaml` shows who writes"
    )
    return _event(manifest, "Warning", Reason.CONTESTED, message, now)


def _event(manifest: Manifest, kind: str, reason: str, message: str, now: datetime) -> Manifest:
    metadata, moment = manifest["metadata"], now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}.{digest([metadata['uid'], reason])}",
        },
        "involvedObject": {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message[:MESSAGE_LIMIT],
        "source": {"component": OPERATOR},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def _ready(status: Manifest) -> Manifest | None:
    return next((one for one in status.get("conditions", ()) if one["type"] == ConditionType.READY), None)
