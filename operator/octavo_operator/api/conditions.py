"""Types and reasons of the conditions in an InferenceService's status: closed lists.

Whatever the scheduler, the kubelet and the runtime say becomes one of these reasons, with their words in the message.
docs/api.md tells what to do about each; tests/contract_tests hold the two together.
"""

from enum import StrEnum

__all__ = ["ConditionType", "Reason"]


class ConditionType(StrEnum):
    """What a condition answers."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    MODEL_RESOLVED = "ModelResolved"
    SCHEDULED = "Scheduled"
    UPDATE_PENDING = "UpdatePending"
    METRICS_AVAILABLE = "MetricsAvailable"
    SCALING_ACTIVE = "ScalingActive"


class Reason(StrEnum):
    """Why a condition has its status."""

    # Ready: the operator's own findings
    SERVING = "Serving"
    STOPPED = "Stopped"
    SUSPENDED = "Suspended"
    SPEC_INVALID = "SpecInvalid"
    NOT_ALLOWED = "NotAllowed"
    SERVICE_ACCOUNT_NOT_FOUND = "ServiceAccountNotFound"
    NAME_TAKEN = "NameTaken"
    APPLY_REJECTED = "ApplyRejected"
    CONTESTED = "Contested"
    PODS_REFUSED = "PodsRefused"

    # Ready: what the kubelet says of a pod
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    INVALID_IMAGE_NAME = "InvalidImageName"
    SECRET_NOT_FOUND = "SecretNotFound"  # noqa: S105 not a password
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound"
    CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    CREATE_CONTAINER_ERROR = "CreateContainerError"
    RUN_CONTAINER_ERROR = "RunContainerError"
    VOLUMES_OR_NETWORK_NOT_READY = "VolumesOrNetworkNotReady"
    INIT_CONTAINER_FAILED = "InitContainerFailed"
    OOM_KILLED = "OOMKilled"
    CRASHED = "Crashed"
    EVICTED = "Evicted"
    POD_FAILED = "PodFailed"

    # Ready: codes of the runtime's termination message
    INTERNAL_ERROR = "InternalError"
    BAD_FLAGS = "BadFlags"
    MODEL_NOT_FOUND = "ModelNotFound"
    BAD_WEIGHTS = "BadWeights"
    UNSUPPORTED_MODEL = "UnsupportedModel"
    NOT_ENOUGH_MEMORY_FOR_WEIGHTS = "NotEnoughMemoryForWeights"
    NOT_ENOUGH_MEMORY_FOR_KV = "NotEnoughMemoryForKV"
    DEVICE_UNAVAILABLE = "DeviceUnavailable"
    DEVICE_LOST = "DeviceLost"
    ENGINE_DIED = "EngineDied"
    CANNOT_LISTEN = "CannotListen"

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

    # UpdatePending
    UP_TO_DATE = "UpToDate"
    OPERATOR_CHANGED = "OperatorChanged"

    # MetricsAvailable
    METRICS_READ = "MetricsRead"
    SOME_METRICS_MISSING = "SomeMetricsMissing"
    METRICS_MISSING = "MetricsMissing"

    # ScalingActive
    FOLLOWING = "Following"
    OBSERVING = "Observing"
