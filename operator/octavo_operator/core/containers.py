"""Why a container does not run: the runtime's own words where there are some, else the kubelet's.

Every state of every container gives a reason of the closed list or none (tests/operator_tests/test_pods.py). Whatever
is not known becomes the nearest reason, with the original words in the message.
"""

import json
import re
from dataclasses import dataclass

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import Manifest
from octavo_operator.core.arguments import FIELDS
from octavo_operator.core.desired import PLAN, SERVER

__all__ = ["Cause", "container_fault"]

CANNOT_START = {
    "CreateContainerConfigError": Reason.CREATE_CONTAINER_CONFIG_ERROR,
    "CreateContainerError": Reason.CREATE_CONTAINER_ERROR,
    "ErrImageNeverPull": Reason.IMAGE_PULL_BACK_OFF,
    "ErrImagePull": Reason.IMAGE_PULL_BACK_OFF,
    "ImageInspectError": Reason.IMAGE_PULL_BACK_OFF,
    "ImagePullBackOff": Reason.IMAGE_PULL_BACK_OFF,
    "InvalidImageName": Reason.INVALID_IMAGE_NAME,
    "PostStartHookError": Reason.RUN_CONTAINER_ERROR,
    "RegistryUnavailable": Reason.IMAGE_PULL_BACK_OFF,
    "RunContainerError": Reason.RUN_CONTAINER_ERROR,
    "SignatureValidationFailed": Reason.IMAGE_PULL_BACK_OFF,
}
"""The kubelet's reasons for a container that waits and will not start by itself."""

NOT_FOUND = {"secret": Reason.SECRET_NOT_FOUND, "configmap": Reason.CONFIG_MAP_NOT_FOUND}

CODES = frozenset(
    {
        Reason.INTERNAL_ERROR,
        Reason.BAD_FLAGS,
        Reason.MODEL_NOT_FOUND,
        Reason.BAD_WEIGHTS,
        Reason.UNSUPPORTED_MODEL,
        Reason.NOT_ENOUGH_MEMORY_FOR_WEIGHTS,
        Reason.NOT_ENOUGH_MEMORY_FOR_KV,
        Reason.DEVICE_UNAVAILABLE,
        Reason.DEVICE_LOST,
        Reason.ENGINE_DIED,
        Reason.CANNOT_LISTEN,
    }
)
"""The codes of the runtime's termination message (docs/contract.md)."""

NAMES = {SERVER: "the server", PLAN: "the plan"}
KILLED = 137
"""Exit code of a process that SIGKILL ended."""

LOG_TAIL = 600
"""How many characters of a crashed container's log go into a message."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A condition's reason and message."""

    reason: Reason
    message: str


def container_fault(container: Manifest, *, init: bool) -> tuple[int, Cause] | None:
    """What is wrong with a container, with a rank: the smaller, the more it explains. None when nothing is known to be.

    Args:
        container: its status, as the kubelet writes it.
        init: whether it is an init container.
    """
    if container.get("ready"):
        return None
    name = container.get("name", "")
    waiting = container.get("state", {}).get("waiting", {})
    kept_back = CANNOT_START.get(waiting.get("reason"))
    if kept_back is not None:
        return 1, _standstill(kept_back, waiting.get("message", "the container cannot start"))
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    if not ended:
        return None
    if name in NAMES and ended.get("reason") != "OOMKilled":
        said = _termination_message(ended.get("message", "")) if ended.get("exitCode") != 0 else None
        if said is not None:
            return 0, said
    return _ending(
        ended,
        NAMES.get(name, f"container {name}"),
        Reason.INIT_CONTAINER_FAILED if init and name != PLAN else Reason.CRASHED,
        again_and_again=waiting.get("reason") == "CrashLoopBackOff",
    )


def _standstill(reason: Reason, message: str) -> Cause:
    """Why a container waits. The kubelet changes between two names for one failed pull, which is no news."""
    if reason is Reason.IMAGE_PULL_BACK_OFF:
        return Cause(reason, message.rpartition("ErrImagePull: ")[2])
    missing = re.match(r'(secret|configmap) "[^"]+" not found', message, re.IGNORECASE) or re.match(
        r"couldn't find key \S+ in (Secret|ConfigMap) ", message
    )
    if missing is not None:
        message += "; the pod starts by itself once it is there, or change spec.runtime.env"
        return Cause(NOT_FOUND[missing[1].lower()], message)
    return Cause(reason, message)


def _ending(ended: Manifest, who: str, crashed: Reason, *, again_and_again: bool) -> tuple[int, Cause] | None:
    """What is known of a container that ended and left no message of the runtime."""
    code, text = ended.get("exitCode"), ended.get("message", "")[-LOG_TAIL:].strip()
    if ended.get("reason") == "OOMKilled":
        return 1, Cause(
            Reason.OOM_KILLED,
            f"{who} exceeded its memory limit and was killed; raise resources.limits.memory, or lower "
            "runtime.kvCacheMemory",
        )
    if code == 0:
        if not again_and_again:
            return None  # stopped as asked, and started again
        message = f"{who} is stopped again and again, perhaps by its liveness probe: kubectl describe tells"
        return 1, Cause(crashed, message)
    if code == KILLED:
        message = f"{who} was killed (SIGKILL), perhaps because its node ran out of memory: kubectl describe node tells"
        return 1, Cause(crashed, f"{message}: {text}" if text else message)
    return 1, Cause(crashed, f"{who} ended with exit code {code}: {text or 'kubectl logs may tell more'}")


def _termination_message(text: str) -> Cause | None:
    """Reads the runtime's JSON (docs/contract.md); None for anything else, such as the tail of a log."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("code"), str) or not isinstance(said.get("message"), str):
        return None
    code, hint = said["code"], said.get("hint")
    message = _with_fields(f"{said['message']}; {hint}" if hint else said["message"])
    if code in CODES:
        return Cause(Reason(code), message)
    return Cause(Reason.CRASHED, f"{code}: {message}")  # an image of another version


def _with_fields(text: str) -> str:
    """The runtime names its flags; whoever reads a condition can change fields."""
    return re.sub(r"--(?:no-)?([a-z]+(?:-[a-z]+)*)", lambda flag: FIELDS.get(flag[1], flag[0]), text)
