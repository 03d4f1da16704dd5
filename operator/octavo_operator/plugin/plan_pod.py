"""The plan run as a Pod of the person who asks: the init container's own command, claim and mounts, and nothing else."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from octavo_operator.api.names import POD, Manifest
from octavo_operator.cluster.user import UserCluster
from octavo_operator.core.desired import PLAN
from octavo_operator.core.pods import placement_fault
from octavo_operator.errors import ClusterError, Gone, Rejected
from octavo_operator.plugin.plan import Needs, needs_of
from octavo_operator.plugin.pods import state_of

__all__ = ["plan_pod", "run_plan"]

PLAN_SECONDS = 120
"""How long the pod may take, its image's pull included."""

POLL_SECONDS = 0.5
KEPT = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
    "priorityClassName",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "securityContext",
    "volumes",
)
"""What of the pods' spec decides where the plan can run and what it can read."""


def plan_pod(name: str, namespace: str, template: Manifest, more: Sequence[str] = ()) -> Manifest:
    """The Pod. It bears none of the labels by which Services and the operator know pods.

    Args:
        name: of the InferenceService.
        namespace: of the InferenceService.
        template: its pod template.
        more: further arguments of `octavo plan`.
    """
    spec = template["spec"]
    (container,) = (one for one in spec["initContainers"] if one["name"] == PLAN)
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {
            "name": f"{name[:40].rstrip('-')}-plan-{secrets.token_hex(3)}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "octavo-plan", "app.kubernetes.io/managed-by": "kubectl-octavo"},
        },
        "spec": {kept: spec[kept] for kept in KEPT if kept in spec}
        | {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": PLAN_SECONDS,
            "containers": [container | {"args": [*container["args"], *more]}],
        },
    }


async def run_plan(cluster: UserCluster, manifest: Manifest, tell: Callable[[str], None]) -> Needs:
    """Creates the Pod, waits for its end, and deletes it, whatever happens.

    Args:
        cluster: with the user's rights.
        manifest: the Pod.
        tell: is told what it does, whenever that changes.

    Raises:
        ClusterError: the API server did not answer.
    """
    metadata = manifest["metadata"]
    pod: Manifest | None = None
    said = "is being made"
    try:
        async with asyncio.timeout(PLAN_SECONDS):
            pod = await cluster.create(manifest, POD)
            while pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                said = _tell_news(pod, said, tell)
                await asyncio.sleep(POLL_SECONDS)
                found = await cluster.get(POD, metadata["namespace"], metadata["name"])
                if found is None:
                    return Needs(unknown=f"someone deleted the pod {metadata['name']} that planned")
                pod = found
        return needs_of(pod, "planned now, by a pod of its own")
    except Rejected as error:
        return Needs(unknown=f"the API server refuses the pod that would plan: {error}")
    except TimeoutError:
        kept_back = placement_fault([pod], ()) if pod is not None else None
        why = f": {kept_back.message}" if kept_back is not None else ""
        told = f"the pod that plans was not done after {PLAN_SECONDS} s: it {said}{why}"
        return Needs(unknown=f"{told}; --no-pod leaves it out")
    finally:
        # Also when it was interrupted while the pod was being made: the name is nobody else's.
        try:
            await asyncio.shield(cluster.delete(POD, metadata["namespace"], metadata["name"]))
        except Gone:
            pass
        except ClusterError as error:
            tell(f"pod {metadata['name']} is still there: {error}")


def _tell_news(pod: Manifest, said: str, tell: Callable[[str], None]) -> str:
    """Tells what the pod is doing, if that is another thing than was said last."""
    state, _ = state_of(pod, datetime.now(UTC))
    if state != said:
        tell(f"pod {pod['metadata']['name']} {state}")
    return state
