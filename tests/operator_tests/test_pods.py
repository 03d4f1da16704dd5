import json
from typing import Any

import pytest

from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.pods import current_pods, placement_fault, serving_fault, told_plan

SHORT_OF_MEMORY = {
    "code": "NotEnoughMemoryForKV",
    "message": "one request of 4096 tokens needs 2.0 GiB of KV, 1.0 GiB is available",
    "hint": "raise runtime.kvCacheMemory or lower runtime.maxModelLen",
    "needed": 2147483648,
    "available": 1073741824,
}


def pod(name: str = "chat-1", template: str = "new", *, conditions: list[Any] | None = None, **status: Any) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {TEMPLATE_LABEL: template}},
        "status": {"conditions": conditions or [], **status},
    }


def with_server(name: str = "chat-1", *, ready: bool = False, template: str = "new", **states: Any) -> Manifest:
    return pod(name, template, containerStatuses=[{"name": "server", "ready": ready, **states}])


def with_init(name: str, *, ready: bool = False, **states: Any) -> Manifest:
    server = {"name": "server", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    return pod(initContainerStatuses=[{"name": name, "ready": ready, **states}], containerStatuses=[server])


def ended(message: str, code: int = 14, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("server", "reason", "message"),
    [
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended(json.dumps(SHORT_OF_MEMORY))},
            "NotEnoughMemoryForKV",
            (
                "one request of 4096 tokens needs 2.0 GiB of KV, 1.0 GiB is available; raise runtime.kvCacheMemory or lower "
                "runtime.maxModelLen [pod chat-1]"
            ),
        ),
        (
            {"state": ended(json.dumps({"code": "BadFlags", "message": "no such flag"}), 2)},
            "BadFlags",
            "no such flag [pod chat-1]",
        ),
        (
            {"state": {"running": {}}, "lastState": ended(json.dumps(SHORT_OF_MEMORY))},
            "NotEnoughMemoryForKV",
            None,
        ),
        (
            {"lastState": ended("Traceback\nValueError: no\n", 1)},
            "Crashed",
            "the server ended with exit code 1: Traceback\nValueError: no [pod chat-1]",
        ),
        ({"lastState": ended("[1, 2]", 1)}, "Crashed", None),
        ({"lastState": ended('{"code": 5, "message": "x"}', 1)}, "Crashed", None),
        # The runtime of another version, with a code that this operator does not know.
        (
            {"lastState": ended('{"code": "NewCause", "message": "x"}', 30)},
            "Crashed",
            "NewCause: x [pod chat-1]",
        ),
        (
            {"lastState": {"terminated": {"exitCode": 137, "reason": "Error"}}},
            "Crashed",
            (
                "the server was killed (SIGKILL), perhaps because its node ran out of memory: kubectl describe node "
                "tells [pod chat-1]"
            ),
        ),
        (
            {"lastState": ended("", 3)},
            "Crashed",
            "the server ended with exit code 3: kubectl logs may tell more [pod chat-1]",
        ),
        # Flags of the runtime become the fields that a user can change.
        (
            {
                "lastState": ended(
                    json.dumps(
                        {
                            "code": "NotEnoughMemoryForKV",
                            "message": "too little",
                            "hint": "Give --kv-cache-memory 9, --no-enable-prefix-caching or --kv-cache-memory-max=1.",
                        }
                    )
                )
            },
            "NotEnoughMemoryForKV",
            "too little; Give runtime.kvCacheMemory 9, runtime.enablePrefixCaching or --kv-cache-memory-max=1. [pod chat-1]",
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended("", 0, "Completed")},
            "Crashed",
            "the server is stopped again and again, perhaps by its liveness probe: kubectl describe tells [pod chat-1]",
        ),
        # A child that is OOM-killed ends its parent with another code than 137: the reason counts.
        ({"lastState": ended("", 3, "OOMKilled")}, "OOMKilled", None),
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            "ImagePullBackOff",
            "no such image [pod chat-1]",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "m"}}},
            "CreateContainerConfigError",
            None,
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}},
            "SecretNotFound",
            'secret "hf" not found; the pod starts by itself once it is there, or change spec.runtime.env [pod chat-1]',
        ),
        (
            {
                "state": {
                    "waiting": {
                        "reason": "CreateContainerConfigError",
                        "message": "couldn't find key token in Secret team/hf",
                    }
                }
            },
            "SecretNotFound",
            None,
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'configmap "c" not found'}}},
            "ConfigMapNotFound",
            None,
        ),
        ({"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "m"}}}, "ImagePullBackOff", None),
        ({"state": {"waiting": {"reason": "RunContainerError", "message": "m"}}}, "RunContainerError", None),
    ],
)
def test_serving_fault(server: dict[str, Any], reason: str, message: str | None) -> None:
    fault = serving_fault([with_server(**server)])
    assert fault is not None
    assert fault.reason == reason
    assert message is None or fault.message == message


@pytest.mark.parametrize(
    "one",
    [
        with_server(state={"waiting": {"reason": "ContainerCreating"}}),
        with_server(state={"running": {}}),
        with_server(ready=True, state={"running": {}}, lastState=ended("x")),
        with_server(state={"running": {}}, lastState=ended("", 0, "Completed")),
        pod(phase="Pending"),
    ],
    ids=["creating", "loading", "healed", "stopped as asked", "no container yet"],
)
def test_serving_fault_of_a_healthy_pod_is_none(one: Manifest) -> None:
    assert serving_fault([one]) is None


@pytest.mark.parametrize(
    ("one", "reason", "message"),
    [
        (
            with_init("plan", state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended(json.dumps(SHORT_OF_MEMORY))),
            "NotEnoughMemoryForKV",
            None,
        ),
        (with_init("plan", state=ended("", 137, "OOMKilled")), "OOMKilled", None),
        (with_init("plan", state=ended("no such command", 1)), "Crashed", "the plan ended with exit code 1: no such command"),
        (with_init("plan", state={"waiting": {"reason": "InvalidImageName", "message": "m"}}), "InvalidImageName", "m"),
        (with_init("fetch", state=ended("no route", 1)), "InitContainerFailed", "container fetch ended with exit code 1: no route"),
        # What others write is a text, whatever it looks like.
        (with_init("fetch", state=ended(json.dumps(SHORT_OF_MEMORY))), "InitContainerFailed", None),
        (pod(containerStatuses=[{"name": "proxy", "ready": False, "state": ended("x", 1)}]), "Crashed", None),
    ],
    ids=["cannot fit", "OOM", "no runtime", "image", "foreign", "foreign JSON", "sidecar"],
)  # fmt: skip
def test_serving_fault_of_other_containers(one: Manifest, reason: str, message: str | None) -> None:
    fault = serving_fault([one])
    assert fault is not None
    assert fault.reason == reason
    assert message is None or fault.message == f"{message} [pod chat-1]"


def test_serving_fault_of_init_containers_that_do_their_work_is_none() -> None:
    assert serving_fault([with_init("plan", state={"running": {}})]) is None
    assert serving_fault([with_init("plan", ready=True, state=ended("{}", 0, "Completed"))]) is None


PLAN = {
    "weightsBytes": 538060032,
    "kvBytesPerToken": 46080,
    "kvTokens": 23296,
    "maxConcurrency": 2.84375,
    "numBlocks": 1,
}


def planned(message: str, *, code: int = 0, name: str = "plan") -> Manifest:
    return with_init(name, ready=True, state=ended(message, code, "Completed"))


@pytest.mark.parametrize(
    ("one", "plan"),
    [
        (
            planned(json.dumps(PLAN)),
            {"weightsBytes": 538060032, "kvBytesPerToken": 46080, "kvTokens": 23296, "maxConcurrency": 2},
        ),
        # Only the GPU can tell how much it has left.
        (
            planned(json.dumps(PLAN | {"kvTokens": None, "maxConcurrency": None})),
            {"weightsBytes": 538060032, "kvBytesPerToken": 46080},
        ),
        (planned(json.dumps(PLAN), code=14), None),
        (planned(json.dumps(PLAN), name="other"), None),
        (planned("not JSON"), None),
        (planned("[]"), None),
        (planned('{"weightsBytes": "many", "kvTokens": -1, "maxConcurrency": NaN, "kvBytesPerToken": 1e999}'), None),
        (with_init("plan", state={"running": {}}), None),
        (pod(), None),
    ],
    ids=["whole", "GPU", "failed", "another's", "text", "list", "nonsense", "running", "nothing"],
)
def test_told_plan(one: Manifest, plan: dict[str, int] | None) -> None:
    assert told_plan([pod("a"), one], "new") == plan


def test_told_plan_of_an_old_template_is_past() -> None:
    assert told_plan([planned(json.dumps(PLAN))], "newer") is None


def test_serving_fault_prefers_the_runtimes_words_and_is_stable() -> None:
    pods = [
        with_server("b", lastState=ended("a log", 1)),
        with_server("d", lastState=ended(json.dumps(SHORT_OF_MEMORY))),
        with_server("c", lastState=ended(json.dumps(SHORT_OF_MEMORY))),
    ]
    forward, backward = serving_fault(pods), serving_fault(pods[::-1])
    assert forward == backward
    assert forward is not None
    assert forward.message.endswith("[pod c]")


def test_serving_fault_of_a_failed_pull_stands_still() -> None:
    """Each retry of a pull changes the kubelet's reason and message back and forth; the status must not follow."""
    error = "failed to resolve reference: no such host"
    states = [
        {"reason": "ErrImagePull", "message": error},
        {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "x": ErrImagePull: {error}'},
    ]
    one, other = (serving_fault([with_server(state={"waiting": state})]) for state in states)
    assert one == other
    assert one is not None
    assert one.message == f"{error} [pod chat-1]"


def test_serving_fault_long_log_keeps_its_end() -> None:
    fault = serving_fault([with_server(lastState=ended("x" * 5000 + " the end", 1))])
    assert fault is not None
    assert len(fault.message) < 1000
    assert "the end" in fault.message


def test_serving_fault_evicted() -> None:
    fault = serving_fault([pod(phase="Failed", reason="Evicted", message="low on ephemeral-storage")])
    assert fault is not None
    assert (fault.reason, fault.message) == ("Evicted", "low on ephemeral-storage [pod chat-1]")


def test_serving_fault_of_a_pod_that_the_kubelet_refused() -> None:
    fault = serving_fault([pod(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices")])
    assert fault is not None
    assert (fault.reason, fault.message) == (
        "PodFailed",
        "UnexpectedAdmissionError: no healthy devices [pod chat-1]",
    )


def test_serving_fault_evicted_pod_that_was_replaced_is_past() -> None:
    evicted = pod("a", phase="Failed", reason="Evicted", message="low on memory")
    assert serving_fault([evicted, with_server("b", state={"running": {}})]) is None


@pytest.mark.parametrize(
    ("message", "limits", "reason"),
    [
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", ["nvidia.com/gpu", "memory"], "WaitingForGPU"),
        ("0/1 nodes are available: 1 Insufficient amd.com/gpu.", ["amd.com/gpu"], "WaitingForGPU"),
        (
            "0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.10gb.",
            ["nvidia.com/mig-1g.10gb"],
            "WaitingForGPU",
        ),
        ("0/1 nodes are available: 1 Insufficient memory.", ["nvidia.com/gpu", "memory"], "Unschedulable"),
        ('persistentvolumeclaim "models" not found', [], "Unschedulable"),
    ],
)
def test_placement_fault(message: str, limits: list[str], reason: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    fault = placement_fault([pod(conditions=[condition])], limits)
    assert fault is not None
    assert (fault.reason, fault.message) == (reason, message)


def test_placement_fault_of_placed_pods_is_none() -> None:
    assert placement_fault([pod(conditions=[{"type": "PodScheduled", "status": "True"}]), pod()], []) is None


def test_current_pods_leave_out_old_templates_and_those_that_go() -> None:
    old, new, going = pod("a", "old"), pod("b"), pod("c")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert current_pods([old, new, going], "new") == (new,)
    assert current_pods([old, going], "new") == (old,)
