"""Pods that have a node and do not come to start a container: their volumes or their network are not ready.

The kubelet tells why in Events of the pod alone, a Secret that is missing from a volume for one. What its status shows
is that it has not got there (the condition PodReadyToStartContainers), so that a pod which takes too long is told, with
what its volumes need.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import Manifest
from octavo_operator.core.containers import Cause

__all__ = ["seconds_until_overdue", "setup_fault"]

SETUP_SECONDS = 30.0
"""How long volumes and network may take. A disk that is attached from elsewhere can take longer, and heals by itself."""

NAMED_BY = {"secret": "secretName", "configMap": "name", "persistentVolumeClaim": "claimName"}
"""The kinds of volumes that need another object, and the field that names it."""


def setup_fault(pods: Iterable[Manifest], volumes: Sequence[dict[str, Any]], now: datetime) -> Cause | None:
    """The first pod whose volumes or network take too long; None when there is none.

    Args:
        pods: the pods.
        volumes: those of the pods.
        now: the time.
    """
    needs = ", ".join(
        f"{kind} {volume[kind].get(field)}" for volume in volumes for kind, field in NAMED_BY.items() if kind in volume
    )
    for pod in pods:
        if any((now - since).total_seconds() >= SETUP_SECONDS for since in _waits_since(pod)):
            name = pod["metadata"]["name"]
            told = f"`kubectl describe pod {name}` tells what is missing [pod {name}]"
            return Cause(Reason.VOLUMES_OR_NETWORK_NOT_READY, f"its volumes need {needs}: {told}" if needs else told)
    return None


def seconds_until_overdue(pods: Iterable[Manifest], now: datetime) -> float | None:
    """When to look again, since nothing happens when time has passed; None when no pod waits that is not told yet."""
    ages = [(now - since).total_seconds() for pod in pods for since in _waits_since(pod)]
    return min((SETUP_SECONDS - age for age in ages if age < SETUP_SECONDS), default=None)


def _waits_since(pod: Manifest) -> Iterator[datetime]:
    if pod["status"].get("phase") != "Pending" or "deletionTimestamp" in pod["metadata"]:
        return  # a pod that has ended or is going needs none of both
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodReadyToStartContainers" and condition["status"] == "False":
            yield datetime.fromisoformat(condition["lastTransitionTime"])
