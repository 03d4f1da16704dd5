import copy
from typing import Any

import pytest
import yaml

from octavo_operator.api.names import (
    CHILDREN,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    OWNER_LABEL,
    SERVICE,
    TEMPLATE_LABEL,
    Kind,
    Manifest,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.arguments import plan_arguments, serve_arguments
from octavo_operator.core.desired import desired_children, pod_template, service_url
from octavo_operator.core.plan import kind_of
from octavo_operator.core.rollout import Step
from octavo_operator.testing import inference_service

IMAGE = "registry.example/octavo-runtime:1"


def parsed(**spec: Any) -> InferenceService:
    manifest = inference_service(**spec)
    manifest["metadata"] |= {"uid": "uid-1", "generation": 1}
    return InferenceService.parse(manifest)


def children(**spec: Any) -> tuple[Manifest, ...]:
    object_ = parsed(**spec)
    return desired_children(object_, pod_template(object_, runtime_image=IMAGE), Step())


def child(kind: Kind, **spec: Any) -> Manifest:
    return next(one for one in children(**spec) if kind_of(one) is kind)


def pod(**spec: Any) -> Manifest:
    template: Manifest = child(DEPLOYMENT, **spec)["spec"]["template"]
    return template


def container(**spec: Any) -> Manifest:
    (server,) = pod(**spec)["spec"]["containers"]
    assert isinstance(server, dict)
    return server


def plan(**spec: Any) -> Manifest:
    (container,) = pod(**spec)["spec"]["initContainers"]
    assert isinstance(container, dict)
    return container


EVERYTHING: dict[str, Any] = {
    "model": {"uri": "file:///opt/model/", "servedName": "org/model"},
    "runtime": {
        "image": "registry.example/own:2",
        "device": "cuda",
        "dtype": "bfloat16",
        "quantization": "none",
        "kvCacheDtype": "float16",
        "maxModelLen": 4096,
        "maxNumSeqs": 32,
        "maxNumBatchedTokens": 1024,
        "blockSize": 32,
        "gpuMemoryUtilization": "0.85",
        "swapSpace": "8Gi",
        "schedulingPolicy": "priority",
        "enablePrefixCaching": False,
        "extraArgs": ["--max-connection-age=30"],
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "HOME", "value": "/x"},
        ],
        "volumeMounts": [{"name": "certificates", "mountPath": "/etc/extra", "readOnly": True}],
    },
    "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "32Gi"}, "requests": {"cpu": "4000m"}},
    "replicas": 3,
    "rollout": {"type": "RollingUpdate", "maxSurge": 0, "maxUnavailable": "50%", "drainSeconds": 600},
    "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"example.com/internal": "true"}},
    "podTemplate": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "schedulerName": "other",
            "imagePullSecrets": [{"name": "pull"}],
            "securityContext": {"runAsUser": 1000, "fsGroup": 2000},
            "volumes": [{"name": "certificates", "configMap": {"name": "extra"}}],
        },
    },
}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("minimal", {}),
        ("everything", EVERYTHING),
        ("recreate", {"rollout": {"type": "Recreate"}, "replicas": 0}),
        ("migslice", {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}),
    ],
)
def test_desired_children_golden(name: str, spec: dict[str, Any], golden: Any) -> None:
    golden(name, children(**spec))


def test_desired_children_same_bytes_whatever_the_order_of_keys() -> None:
    def reordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reordered(value[key]) for key in reversed(value)}
        return value

    one, other = children(**EVERYTHING), children(**reordered(copy.deepcopy(EVERYTHING)))
    assert one == other
    labels = [found[-1]["spec"]["template"]["metadata"]["labels"] for found in (one, other)]
    assert labels[0][TEMPLATE_LABEL] == labels[1][TEMPLATE_LABEL]


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ({"replicas": 5}, False),
        ({"service": {"port": 81}}, False),
        ({"rollout": {"maxSurge": 2}}, False),
        ({"runtime": {"maxNumSeqs": 8}}, True),
        ({"podTemplate": {"metadata": {"labels": {"a": "b"}}}}, True),
    ],
)
def test_template_digest_changes_with_the_pod_only(spec: dict[str, Any], changes: bool) -> None:
    digests = [one["metadata"]["labels"][TEMPLATE_LABEL] for one in (pod(), pod(**spec))]
    assert (digests[0] != digests[1]) is changes


def test_selector_matches_this_objects_pods_and_no_others() -> None:
    deployment, policy = child(DEPLOYMENT)["spec"], child(NETWORK_POLICY)["spec"]
    selectors = [policy["podSelector"], child(DISRUPTION_BUDGET)["spec"]["selector"], deployment["selector"]]
    assert selectors == [{"matchLabels": {OWNER_LABEL: "chat"}}] * 3
    assert child(SERVICE)["spec"]["selector"] == {OWNER_LABEL: "chat"}
    assert deployment["template"]["metadata"]["labels"][OWNER_LABEL] == "chat"


def test_children_are_one_of_each_kind_with_the_objects_name_and_the_pods_last() -> None:
    found = children(**EVERYTHING)
    assert tuple(kind_of(one) for one in found) == CHILDREN
    assert CHILDREN[-1] is DEPLOYMENT
    assert {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found} == {("default", "chat")}


def test_network_policy_admits_where_the_service_sends() -> None:
    (rule,) = child(NETWORK_POLICY, **EVERYTHING)["spec"]["ingress"]
    (opened,), (sent,) = rule["ports"], child(SERVICE, **EVERYTHING)["spec"]["ports"]
    (listening,) = container(**EVERYTHING)["ports"]
    assert opened["port"] == sent["targetPort"] == listening["containerPort"]
    assert "from" not in rule


@pytest.mark.parametrize("replicas", [0, 1, 5])
def test_disruption_budget_never_blocks_a_drain_for_good(replicas: int) -> None:
    """A whole number from 1: with one replica a share would be rounded to it too, and 0 would block every eviction."""
    spec = child(DISRUPTION_BUDGET, replicas=replicas)["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


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


@pytest.mark.parametrize(("drain", "grace"), [(0, 15), (45, 60), (120, 135), (3600, 3615)])
def test_pod_grace_covers_pre_stop_and_drain(drain: int, grace: int) -> None:
    spec = {"rollout": {"drainSeconds": drain}}
    assert pod(**spec)["spec"]["terminationGracePeriodSeconds"] == grace
    assert f"--shutdown-timeout={drain}" in container(**spec)["args"]
    assert container(**spec)["lifecycle"]["preStop"]["sleep"]["seconds"] + drain < grace


def test_pod_meets_the_restricted_pod_security_standard() -> None:
    for spec in ({}, EVERYTHING):
        template = pod(**spec)["spec"]
        assert template["securityContext"]["runAsNonRoot"] is True
        assert template["securityContext"]["runAsUser"] > 0
        assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert template["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & template.keys()
        (server,) = template["containers"]
        assert server["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert all(
            {"configMap", "persistentVolumeClaim", "emptyDir", "secret"} & one.keys() for one in template["volumes"]
        )


@pytest.mark.parametrize(("port", "url"), [(80, "http://chat.default.svc"), (8080, "http://chat.default.svc:8080")])
def test_service_url(port: int, url: str) -> None:
    assert service_url(parsed(service={"port": port})) == url


@pytest.mark.parametrize("limit", ["nvidia.com/mig-1g.10gb", "amd.com/gpu"])
def test_resources_are_passed_on_unchanged(limit: str) -> None:
    resources = {"limits": {limit: 1, "cpu": "1000m"}, "requests": {"memory": "1024Mi"}}
    assert container(resources=resources)["resources"] == resources


def test_desired_children_survive_yaml() -> None:
    for one in children(**EVERYTHING):
        assert yaml.safe_load(yaml.safe_dump(one)) == one


def test_plan_has_the_servers_flags_that_decide_what_fits() -> None:
    service = parsed(**EVERYTHING)
    program, path, *flags = plan_arguments(service)
    serving = serve_arguments(service)
    assert (program, path) == ("plan", serving[1])
    assert set(flags) - set(serving) == {"--json", "--termination-log=/dev/termination-log"}
    assert "--device=cuda" in plan_arguments(parsed(resources={"limits": {"nvidia.com/gpu": 1}}))


@pytest.mark.parametrize(
    ("resources", "given"),
    [
        ({}, None),
        ({"limits": {"nvidia.com/gpu": 1}}, None),
        (
            {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}, "requests": {"cpu": 2}},
            {"limits": {"memory": "8Gi"}, "requests": {"cpu": 2}},
        ),
    ],
)
def test_plan_asks_for_no_more_than_the_server_and_for_no_gpu(
    resources: dict[str, Any], given: dict[str, Any] | None
) -> None:
    assert plan(resources=resources).get("resources") == given


def test_plan_reads_what_the_server_reads() -> None:
    one, other = plan(**EVERYTHING), container(**EVERYTHING)
    for name in ("image", "env", "volumeMounts", "securityContext"):
        assert one[name] == other[name]
