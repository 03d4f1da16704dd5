"""What the commands read about one InferenceService, with whatever rights the person has."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from octavo_operator.api.names import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    OWNER_LABEL,
    POD,
    REVISION,
    TEMPLATE_LABEL,
    Manifest,
)
from octavo_operator.cluster.user import UserCluster
from octavo_operator.core.plan import is_ours
from octavo_operator.errors import Gone, Rejected

__all__ = ["Facts", "find_service", "gather", "if_allowed"]

PODS_WITH_EVENTS = 4
"""Of how many pods that do not serve the Events are read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """An InferenceService and what belongs to it.

    Attributes:
        service: the object.
        deployment: its Deployment; None when there is none, or it may not be read.
        pods: its pods, by name.
        revisions: its ControllerRevisions.
        events: Events of the object and of pods that do not serve, the oldest first.
        missing: what could not be read, and why, a sentence each.
    """

    service: Manifest
    deployment: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    revisions: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def template(self) -> str | None:
        """The label of the pods that the Deployment makes now."""
        if self.deployment is None:
            return None
        label: str | None = self.deployment["spec"]["template"]["metadata"].get("labels", {}).get(TEMPLATE_LABEL)
        return label


async def find_service(cluster: UserCluster, namespace: str, name: str) -> Manifest:
    """The object.

    Raises:
        ClusterError: it cannot be read; Gone, with a hint, when it does not exist.
    """
    found = await cluster.get(INFERENCE_SERVICE, namespace, name)
    if found is not None:
        return found
    try:
        others = [one["metadata"]["name"] for one in await cluster.list(INFERENCE_SERVICE, namespace)]
    except Gone as error:
        raise Gone("this cluster has no InferenceServices of Octavo: its CRD is not installed") from error
    there = f"there are {', '.join(sorted(others)[:8])}" if others else "there is none; -n names another namespace"
    raise Gone(f"no InferenceService {name} in namespace {namespace}: {there}")


async def gather(cluster: UserCluster, namespace: str, name: str) -> Facts:
    """Reads everything; what may not be read is left out and told.

    Raises:
        ClusterError: the object itself cannot be read.
    """
    service = await find_service(cluster, namespace, name)
    missing: list[str] = []
    labels = f"{OWNER_LABEL}={name}"
    told = f"involvedObject.kind={INFERENCE_SERVICE.kind},involvedObject.name={name}"
    deployment, pods, revisions, events = await asyncio.gather(
        if_allowed(cluster.get(DEPLOYMENT, namespace, name), None, missing),
        if_allowed(cluster.list(POD, namespace, labels=labels), (), missing),
        if_allowed(cluster.list(REVISION, namespace, labels=labels), (), missing),
        if_allowed(cluster.list(EVENT, namespace, fields=told), (), missing),
    )
    silent = [pod["metadata"]["name"] for pod in pods if not _is_ready(pod)][:PODS_WITH_EVENTS]
    of_pods = await asyncio.gather(
        *(
            if_allowed(
                cluster.list(EVENT, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={pod}"), (), []
            )
            for pod in silent
        )
    )
    return Facts(
        service,
        deployment if deployment is not None and is_ours(deployment, service) else None,
        tuple(sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))),
        revisions,
        tuple(sorted([*events, *(one for some in of_pods for one in some)], key=_time)),
        tuple(missing),
    )


async def if_allowed(call: Awaitable[T], otherwise: T, missing: list[str]) -> T:
    """The result of a call; `otherwise` when the API server refuses it, which is then told in `missing`.

    Raises:
        ClusterError: it failed for another reason than missing rights.
    """
    try:
        return await call
    except Rejected as error:
        if error.status != 403:
            raise
        missing.append(str(error))
        return otherwise
    except Gone:
        return otherwise


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _time(event: Manifest) -> str:
    series = event.get("series") or {}
    found = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event["metadata"].get("creationTimestamp", ""))
