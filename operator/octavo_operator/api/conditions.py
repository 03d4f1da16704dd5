"""Types and reasons of the conditions in an InferenceService's status.

Beside these, Ready takes the `code` of the runtime's termination message as its reason (docs/contract.md), and the
kubelet's own reasons for a container that cannot start (ImagePullBackOff, CreateContainerConfigError, …).
"""

from enum import StrEnum

__all__ = ["ConditionType", "Reason"]


class ConditionType(StrEnum):
    """What a condition answers."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    MODEL_RESOLVED = "ModelResolved"
    SCHEDULED = "Scheduled"


class Reason(StrEnum):
    """Why a condition has its status."""

    # Ready
    SERVING = "Serving"
    STOPPED = "Stopped"
    SPEC_INVALID = "SpecInvalid"
    NAME_TAKEN = "NameTaken"
    APPLY_REJECTED = "ApplyRejected"
    CONTESTED = "Contested"
    PODS_REFUSED = "PodsRefused"
    OOM_KILLED = "OOMKilled"
    CRASHED = "Crashed"
    EVICTED = "Evicted"

    # Progressing
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    SCALING_DOWN = "ScalingDown"
    COMPLETE = "Complete"
    STUCK = "Stuck"

    # ModelResolved
    CLAIM_BOUND = "ClaimBound"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_PENDING = "ClaimPending"
    CLAIM_LOST = "ClaimLost"
    PATH_IN_CONTAINER = "PathInContainer"
    UNKNOWN = "Unknown"

    # Scheduled
    PLACED = "Placed"
    NO_PODS = "NoPods"
    WAITING_FOR_GPU = "WaitingForGPU"
    UNSCHEDULABLE = "Unschedulable"
