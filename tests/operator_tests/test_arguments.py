from typing import Any

import pytest

from octavo_operator.core.arguments import is_gpu, plan_arguments, serve_arguments
from tests.operator_tests.test_desired import EVERYTHING, GPUS, NO_GPUS, container, parsed


@pytest.mark.parametrize(
    ("runtime", "resources", "device"),
    [
        ({}, {}, None),
        ({"device": "auto"}, {}, "--device=auto"),
        ({"device": "cpu"}, {}, "--device=cpu"),
        ({}, {"limits": {"nvidia.com/gpu": 1}}, "--device=cuda"),
        ({"device": "auto"}, {"limits": {"amd.com/gpu": "1"}}, "--device=cuda"),
        ({}, {"limits": {"nvidia.com/gpu": 0}}, None),
        ({}, {"limits": {"nvidia.com/gpu.memory": 1}}, "--device=cuda"),
        ({}, {"limits": {"memory": "1Gi"}}, None),
    ],
)
def test_serve_arguments_device_of_a_gpu_limit_is_never_left_to_chance(
    runtime: dict[str, Any], resources: dict[str, Any], device: str | None
) -> None:
    arguments = serve_arguments(parsed(runtime=runtime, resources=resources))
    assert [one for one in arguments if one.startswith("--device")] == ([device] if device else [])


@pytest.mark.parametrize(
    ("uri", "path", "claim"),
    [
        ("pvc://models/SmolLM2-135M-Instruct", "/models/models/SmolLM2-135M-Instruct", "models"),
        ("pvc://models", "/models/models", "models"),
        ("pvc://models/", "/models/models", "models"),
        ("pvc://a.b-c/x/y/", "/models/a.b-c/x/y", "a.b-c"),
        ("file:///opt/model", "/opt/model", None),
        ("file:///opt/model/", "/opt/model", None),
    ],
)
def test_serve_arguments_model_path(uri: str, path: str, claim: str | None) -> None:
    service = parsed(model={"uri": uri})
    assert serve_arguments(service)[:2] == ["serve", path]
    assert service.claim == claim
    mounts = [mount for mount in container(model={"uri": uri})["volumeMounts"] if mount["name"] == "model"]
    assert mounts == ([{"name": "model", "mountPath": f"/models/{claim}", "readOnly": True}] if claim else [])


@pytest.mark.parametrize(
    ("enabled", "flag"), [(True, "--enable-prefix-caching"), (False, "--no-enable-prefix-caching")]
)
def test_serve_arguments_prefix_caching(enabled: bool, flag: str) -> None:
    assert serve_arguments(parsed(runtime={"enablePrefixCaching": enabled}))[-1] == flag


def test_serve_arguments_scheduling_and_swap() -> None:
    arguments = serve_arguments(parsed(runtime={"schedulingPolicy": "shortest-first", "swapSpace": "1.5Gi"}))
    assert {"--scheduling-policy=shortest-first", "--swap-space=1.5Gi"} <= set(arguments)
    assert "--swap-space=0" in serve_arguments(parsed(runtime={"swapSpace": 0}))
    assert not any("swap" in one or "policy" in one for one in serve_arguments(parsed(runtime={})))


@pytest.mark.parametrize(("names", "expected"), [(GPUS, True), (NO_GPUS, False)])
def test_is_gpu(names: tuple[str, ...], expected: bool) -> None:
    assert [is_gpu(name) for name in names] == [expected] * len(names)


def test_plan_has_the_servers_flags_that_decide_what_fits() -> None:
    service = parsed(**EVERYTHING)
    program, path, *flags = plan_arguments(service)
    serving = serve_arguments(service)
    assert (program, path) == ("plan", serving[1])
    assert set(flags) - set(serving) == {"--json", "--termination-log=/dev/termination-log"}
    assert "--device=cuda" in plan_arguments(parsed(resources={"limits": {"nvidia.com/gpu": 1}}))
