"""What to do about each reason of Ready: the column of that name in docs/api.md (tests/contract_tests hold them equal)."""

from octavo_operator.api.conditions import Reason

__all__ = ["ADVICE"]

CANNOT_START = (
    "mostly an image without octavo, or podTemplate.spec.securityContext; where a hook of the GPU's toolkit says that the "
    "file system is read-only, runtime.securityContext"
)

ADVICE = {
    Reason.STARTING: "wait",
    Reason.ROLLING_OUT: "wait",
    Reason.SCALING_DOWN: "wait",
    Reason.STOPPED: "kubectl scale starts it",
    Reason.SUSPENDED: """kubectl patch isvc NAME --type=merge -p '{"spec":{"suspend":false}}' starts it""",
    Reason.STUCK: "kubectl describe pod",
    Reason.WAITING_FOR_GPU: "free some or add a node; heals by itself",
    Reason.UNSCHEDULABLE: "as the scheduler says",
    Reason.CLAIM_NOT_FOUND: "create it, or change model.uri; heals by itself",
    Reason.CLAIM_PENDING: "create it, or change model.uri; heals by itself",
    Reason.CLAIM_LOST: "create it, or change model.uri; heals by itself",
    Reason.SECRET_NOT_FOUND: "create it; heals by itself",
    Reason.CONFIG_MAP_NOT_FOUND: "create it; heals by itself",
    Reason.VOLUMES_OR_NETWORK_NOT_READY: "create the Secret, ConfigMap or claim; else kubectl describe pod. Heals by itself",
    Reason.IMAGE_PULL_BACK_OFF: "runtime.image, podTemplate.spec.imagePullSecrets, or the registry",
    Reason.INVALID_IMAGE_NAME: "runtime.image, podTemplate.spec.imagePullSecrets, or the registry",
    Reason.CREATE_CONTAINER_CONFIG_ERROR: CANNOT_START,
    Reason.CREATE_CONTAINER_ERROR: CANNOT_START,
    Reason.RUN_CONTAINER_ERROR: CANNOT_START,
    Reason.INIT_CONTAINER_FAILED: "its logs",
    Reason.NOT_ENOUGH_MEMORY_FOR_WEIGHTS: "a larger one; runtime.dtype",
    Reason.NOT_ENOUGH_MEMORY_FOR_KV: (
        "runtime.kvCacheMemory, runtime.maxModelLen, runtime.gpuMemoryUtilization, as the message says"
    ),
    Reason.OOM_KILLED: "raise resources.limits.memory, or lower runtime.kvCacheMemory",
    Reason.EVICTED: "requests that cover what it needs",
    Reason.POD_FAILED: "as it says",
    Reason.MODEL_NOT_FOUND: "model.uri",
    Reason.BAD_WEIGHTS: "copy the model again",
    Reason.UNSUPPORTED_MODEL: "another model (models.md)",
    Reason.BAD_FLAGS: "the field named, or runtime.extraArgs",
    Reason.DEVICE_UNAVAILABLE: "the node's driver and podTemplate.spec.runtimeClassName",
    Reason.DEVICE_LOST: "its node's log; the pod is started again",
    Reason.ENGINE_DIED: "the pod's log; please report it",
    Reason.INTERNAL_ERROR: "the pod's log; please report it",
    Reason.CANNOT_LISTEN: "the pod's log; please report it",
    Reason.CRASHED: "the pod's log",
    Reason.PODS_REFUSED: "as it says",
    Reason.APPLY_REJECTED: "as it says",
    Reason.NAME_TAKEN: "delete it, or rename the InferenceService",
    Reason.CONTESTED: "the message says how to find it",
    Reason.NOT_ALLOWED: "remove the field, or have it allowed; a label heals by itself",
    Reason.SERVICE_ACCOUNT_NOT_FOUND: "create it; heals by itself",
    Reason.SPEC_INVALID: "upgrade the operator",
}
