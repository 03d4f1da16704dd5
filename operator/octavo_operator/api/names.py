"""Names that users, tools and other controllers rely on: kinds, labels, field managers."""

from dataclasses import dataclass
from typing import Any

__all__ = [
    "ALLOWED_LABEL",
    "AUTOSCALER",
    "CHILDREN",
    "CLAIM",
    "DECISIONS_ANNOTATION",
    "DELETION_COST",
    "DEPLOYMENT",
    "DISRUPTION_BUDGET",
    "EVENT",
    "INFERENCE_SERVICE",
    "LEASE",
    "MANAGED_BY",
    "MANAGED_SELECTOR",
    "NETWORK_POLICY",
    "NODE",
    "OPERATOR",
    "OWNER_LABEL",
    "POD",
    "REVISION",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "STATUS_MANAGER",
    "TEMPLATE_LABEL",
    "UPDATE_ANNOTATION",
    "WATCHED",
    "Key",
    "Kind",
    "Manifest",
    "key_of",
    "version_of",
]

Manifest = dict[str, Any]
"""A Kubernetes object as plain JSON."""

Key = tuple[str, str]
"""(namespace, name) of an object."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, and where the API serves it."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """The API group; empty for core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]


INFERENCE_SERVICE = Kind("octavo.dev/v1alpha1", "InferenceService", "inferenceservices")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
SERVICE = Kind("v1", "Service", "services")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD = Kind("v1", "Pod", "pods")
REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")

CHILDREN = (SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, DEPLOYMENT)
"""What an InferenceService has one of each of, under its own name, in the order of applying: pods come last."""

WATCHED = (INFERENCE_SERVICE, *CHILDREN, POD, REVISION)

OPERATOR = "octavo-operator"
"""Field manager of the children, and the value of their managed-by label."""
STATUS_MANAGER = "octavo-status"
"""Field manager of the status."""
AUTOSCALER = "octavo-autoscaler"
"""Field manager of the replicas, where the autoscaler sets them."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' annotation of a pod: of those that may go, the one with the lowest goes first."""

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_SELECTOR = f"{MANAGED_BY}={OPERATOR}"
OWNER_LABEL = "octavo.dev/inferenceservice"
"""On children and pods: the name of their InferenceService. It alone selects the pods."""
TEMPLATE_LABEL = "octavo.dev/template"
"""On pods: a digest of the template that they were made from."""
ALLOWED_LABEL = "octavo.dev/allowed"
"""On a ServiceAccount: "true" where pods of InferenceServices may run under it."""
UPDATE_ANNOTATION = "octavo.dev/update"
"""On an InferenceService: each new value asks for pods as the operator renders them now."""
DECISIONS_ANNOTATION = "octavo.dev/decisions"
"""On a ControllerRevision: the operator's last decisions about the InferenceService."""


def key_of(manifest: Manifest) -> Key:
    """The (namespace, name) of an object."""
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def version_of(manifest: Manifest) -> int:
    """The resourceVersion of an object; the API server orders them."""
    return int(manifest["metadata"]["resourceVersion"])
