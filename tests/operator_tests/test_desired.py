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
from octavo_operator.core.desired import desired_children, pod_template, service_url
from octavo_operator.core.plan import kind_of
from octavo_operator.core.rollout import Step
from octavo_operator.errors import SpecInvalid
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
    container = pod(**spec)["spec"]["initContainers"][-1]
    assert isinstance(container, dict)
    assert container["name"] == "plan"
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
        "envFrom": [{"prefix": "X_", "configMapRef": {"name": "settings"}}],
        "volumeMounts": [{"name": "certificates", "mountPath": "/etc/extra", "readOnly": True}],
    },
    "resources": {
        "limits": {"nvidia.com/gpu": 1, "memory": "32Gi"},
        "requests": {"cpu": "4000m"},
        "claims": [{"name": "nic"}],
    },
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
            "initContainers": [
                {
                    "name": "fetch",
                    "image": "registry.example/fetch:1",
                    "command": ["fetch"],
                    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                    "volumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/extra"}],
                    "resources": {"limits": {"memory": "1Gi"}},
                },
                {"name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always"},
            ],
            "serviceAccountName": "model-reader",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.1"]},
            "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["models.example"]}],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
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
        assert not {"hostNetwork", "hostPID", "hostIPC"} & template.keys()
        for one in (*template["initContainers"], *template["containers"]):
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        for one in (template["initContainers"][-1], *template["containers"]):
            assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert all(
            {"configMap", "persistentVolumeClaim", "emptyDir", "secret"} & one.keys() for one in template["volumes"]
        )


def test_server_may_write_its_root_file_system_where_a_hook_of_the_node_must() -> None:
    """Of all that restricts the server this alone can be chosen, and it decides the plan's container too."""
    context = {"readOnlyRootFilesystem": False}
    for one in (container(runtime={"securityContext": context}), plan(runtime={"securityContext": context})):
        assert one["securityContext"] == container()["securityContext"] | context
    with pytest.raises(SpecInvalid, match=r"spec\.runtime\.securityContext\.privileged"):
        parsed(runtime={"securityContext": {"privileged": True}})


def test_probes_leave_loading_to_the_runtime() -> None:
    """/livez answers while the model loads: only the process must listen in time, however large the model is."""
    server = container(**EVERYTHING)
    assert {name: server[name]["httpGet"]["path"] for name in server if name.endswith("Probe")} == {
        "startupProbe": "/livez", "readinessProbe": "/readyz", "livenessProbe": "/livez",
    }  # fmt: skip
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 300


@pytest.mark.parametrize(
    ("weights", "seconds"), [(0, 2100), (90_000_000_000, 2100), (700_000_000_000, 14_300), (2**63, 604_800)]
)
def test_progress_deadline_grows_with_the_weights_and_rolls_nothing(weights: int, seconds: int) -> None:
    object_ = parsed()
    template = pod_template(object_, runtime_image=IMAGE)
    deployment = desired_children(object_, template, Step(), weights_bytes=weights)[-1]
    assert deployment["spec"]["progressDeadlineSeconds"] == seconds
    assert deployment["spec"]["template"] == template


@pytest.mark.parametrize(("port", "url"), [(80, "http://chat.default.svc"), (8080, "http://chat.default.svc:8080")])
def test_service_url(port: int, url: str) -> None:
    assert service_url(parsed(service={"port": port})) == url


GPUS = (
    *("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.20gb.me", "nvidia.com/gpu.shared"),
    *("amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"),
)
NO_GPUS = ("cpu", "memory", "hugepages-2Mi", "rdma/hca", "nvidia.com/hostdev", "intel.com/sriov", "example.com/gpu")


@pytest.mark.parametrize("limit", [*GPUS, *NO_GPUS])
def test_resources_are_passed_on_unchanged(limit: str) -> None:
    resources = {"limits": {limit: 1, "ephemeral-storage": "1000m"}, "requests": {"memory": "1024Mi"}}
    assert container(resources=resources)["resources"] == resources


def test_pod_has_what_the_template_asks_for_under_the_same_names() -> None:
    asked = EVERYTHING["podTemplate"]["spec"]
    rendered = pod(**EVERYTHING)["spec"]
    ours = {"securityContext", "volumes", "initContainers"}
    assert {name: rendered[name] for name in asked if name not in ours} == {
        name: value for name, value in asked.items() if name not in ours
    }
    assert rendered["securityContext"].items() >= asked["securityContext"].items()
    assert [one for one in rendered["volumes"] if one in asked["volumes"]] == asked["volumes"]


def test_init_containers_run_before_the_plan_and_are_restricted() -> None:
    fetch, proxy, last = pod(**EVERYTHING)["spec"]["initContainers"]
    assert (fetch["name"], proxy["name"], last["name"]) == ("fetch", "proxy", "plan")
    for one, asked in zip((fetch, proxy), EVERYTHING["podTemplate"]["spec"]["initContainers"], strict=True):
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert one == asked | {"securityContext": restricted}


@pytest.mark.parametrize(
    ("asked", "rendered"),
    [
        (
            {"runAsUser": 1000, "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}},
            {
                "allowPrivilegeEscalation": False,
                "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
                "runAsUser": 1000,
            },
        ),
        ({"privileged": True}, {"privileged": True}),
    ],
)
def test_init_container_keeps_what_it_says_of_itself(asked: dict[str, Any], rendered: dict[str, Any]) -> None:
    own = {"name": "own", "image": "own", "securityContext": asked}
    first, _ = pod(podTemplate={"spec": {"initContainers": [own]}})["spec"]["initContainers"]
    assert first["securityContext"] == rendered


def test_token_of_the_api_server_is_mounted_under_no_service_account() -> None:
    for name in (None, "model-reader"):
        spec = pod(podTemplate={"spec": {"serviceAccountName": name}})["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec.get("serviceAccountName") == name


def test_desired_children_survive_yaml() -> None:
    for one in children(**EVERYTHING):
        assert yaml.safe_load(yaml.safe_dump(one)) == one


@pytest.mark.parametrize(
    ("resources", "given"),
    [
        ({}, None),
        ({"limits": {"nvidia.com/gpu": 1}}, None),
        ({"claims": [{"name": "gpu"}]}, None),
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
    for name in ("image", "env", "envFrom", "volumeMounts", "securityContext"):
        assert one[name] == other[name]
