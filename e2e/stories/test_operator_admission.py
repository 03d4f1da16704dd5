"""What the API server says to a manifest: refused with a sentence, or taken."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from cluster.layout import REPOSITORY
from operator_harness import BEYOND_THE_POD, Kubectl, World, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kubectl(world: World) -> Kubectl:
    return world.namespace()


def manifest(changes: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    spec = {"model": {"uri": "pvc://models/m"}} | copy.deepcopy(changes)
    return {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}


def model(uri: str, **fields: Any) -> dict[str, Any]:
    return {"model": {"uri": uri, **fields}}


def runtime(**fields: Any) -> dict[str, Any]:
    return {"runtime": fields}


def pod(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": fields}}


def init(**fields: Any) -> dict[str, Any]:
    return pod(initContainers=[{"name": "mine", "image": "image", **fields}])


def volume(**fields: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "extra", **fields}])


REFUSED: list[tuple[dict[str, Any], str]] = [
    (model("hf://org/model"), "hf:// is not built yet; convert the model into a PersistentVolumeClaim and use pvc://CLAIM/path"),
    (model("modelscope://org/model"), "modelscope:// is not built yet"),
    (model("https://example.com/m.tar"), "https:// is not built yet"),
    (model("s3://bucket/m"), "model.uri must be pvc://CLAIM/path or file:///path"),
    (model("models/m"), "model.uri must be pvc://CLAIM/path or file:///path"),
    (model(""), "at least 1 chars long"),
    (model("pvc://Models/m"), "CLAIM is the name of a PersistentVolumeClaim"),
    (model("pvc:///m"), "CLAIM is the name of a PersistentVolumeClaim"),
    (model("pvc://models/$(HOME)"), "CLAIM is the name of a PersistentVolumeClaim"),
    (model("pvc://models/../m"), "may not contain the path elements . and .."),
    (model("pvc://models/m/.."), "may not contain the path elements . and .."),
    (model("file://m"), "write file:///path"),
    (model("file:///m/./n"), "may not contain the path elements . and .."),
    (model("pvc://models/m", servedName="two words"), "servedName is letters, digits"),
    (model("pvc://models/m", revision="main"), "model.revision is not built yet"),
    (model("pvc://models/m", secretRef={"name": "token"}), "model.secretRef is not built yet"),
    (model("pvc://models/m", cache={"claimName": "models"}), "model.cache is not built yet"),
    (runtime(device="tpu"), 'supported values: "auto", "cpu", "cuda"'),
    (runtime(dtype="int8"), 'supported values: "auto", "float32", "float16", "bfloat16"'),
    (runtime(quantization="w4a8"), "quantization 'w4a8' is not built yet; use none, w8a16, w8a8 or w4a16"),
    (runtime(kvCacheDtype="int4"), "kvCacheDtype 'int4' is not built yet; use auto, float32, float16, bfloat16, int8,"),
    (runtime(schedulingPolicy="lifo"), 'supported values: "fcfs", "shortest-first", "priority", "slo"'),
    (runtime(swapSpace="lots"), "swapSpace must be a number of bytes, 0 for none, or a quantity"),
    (runtime(swapSpace=-1), "swapSpace must be a number of bytes, 0 for none, or a quantity"),
    (runtime(maxModelLen=0), "maxModelLen must be a number of tokens, at least 1, or auto"),
    (runtime(maxModelLen="long"), "maxModelLen must be a number of tokens, at least 1, or auto"),
    (runtime(maxNumSeqs=0), "greater than or equal to 1"),
    (runtime(maxNumBatchedTokens=0), "greater than or equal to 1"),
    (runtime(blockSize=12), 'supported values: "8", "16", "32"'),
    (runtime(gpuMemoryUtilization="1.5"), 'must be a fraction above 0 and at most 1, such as "0.9"'),
    (runtime(gpuMemoryUtilization="0.0"), 'must be a fraction above 0 and at most 1, such as "0.9"'),
    (runtime(gpuMemoryUtilization="0.9", kvCacheMemory="1Gi"), "both size the KV cache; set one of them"),
    (runtime(gpuMemoryUtilization="0.9", device="cpu"), "means nothing with device: cpu; set kvCacheMemory instead"),
    (runtime(kvCacheMemory="4 GB"), "kvCacheMemory must be a number of bytes above 0, or a quantity"),
    (runtime(kvCacheMemory=0), "kvCacheMemory must be a number of bytes above 0, or a quantity"),
    (runtime(extraArgs=["--port=9000"]), "--port=9000 has a field of its own, or belongs to the operator"),
    (runtime(extraArgs=["-v", "--max_model_len", "9"]), "--max_model_len has a field of its own"),
    (runtime(extraArgs=["--no-enable-prefix-caching"]), "--no-enable-prefix-caching has a field of its own"),
    (runtime(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "Duplicate value"),
    (runtime(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]), "must be a volume of podTemplate.spec.volumes"),
    (runtime(securityContext={"privileged": True}), 'unknown field "spec.runtime.securityContext.privileged"'),
    (runtime(turbo=True), 'unknown field "spec.runtime.turbo"'),
    (
        {**runtime(volumeMounts=[{"name": "extra", "mountPath": "/models"}]), **volume(emptyDir={})},
        "/models, /tmp and /dev/shm belong to the operator",
    ),
    ({"parallelism": {"tensor": 2}}, "tensor parallelism is not built yet; use tensor: 1"),
    ({"parallelism": {"nodes": 2}}, "replicas over several nodes are not built yet; use nodes: 1"),
    ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, "asks for more GPUs per pod than parallelism.tensor uses"),
    ({"resources": {"limits": {"nvidia.com/gpu.shared": 2}}}, "asks for more GPUs per pod than parallelism.tensor uses"),
    ({"resources": {"limits": {"nvidia.com/gpu": 1}}, **runtime(device="cpu")}, "would stand idle; remove one of the two"),
    ({"resources": {"limits": {"memory": "3 GB"}}}, "must be a quantity from 0 up, such as 500m, 2 or 3Gi"),
    ({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": "1500m"}}}, "a request is larger than the limit"),
    ({"replicas": -1}, "greater than or equal to 0"),
    ({"autoscaling": {"minReplicas": 1}}, "maxReplicas: Required value"),
    ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas must not be above autoscaling.maxReplicas"),
    ({"autoscaling": {"minReplicas": 0, "maxReplicas": 2}}, "autoscaling.minReplicas must be at least 1"),
    ({"autoscaling": {"maxReplicas": -1}}, "greater than or equal to 1"),
    ({"autoscaling": {"maxReplicas": 2, "targetCacheUsage": 0}}, "greater than or equal to 1"),
    ({"autoscaling": {"maxReplicas": 2, "targetQueueLength": -3}}, "greater than or equal to 1"),
    ({"autoscaling": {"maxReplicas": 2, "scaleDownAfterLateSeconds": 21601}}, "less than or equal to 21600"),
    ({"autoscaling": {"maxReplicas": 2, "mode": "Off"}}, 'supported values: "Auto", "Observe"'),
    ({"rollout": {"type": "Canary"}}, 'supported values: "Auto", "RollingUpdate", "Recreate"'),
    ({"rollout": {"maxSurge": 2}}, "belong to type: RollingUpdate"),
    ({"rollout": {"type": "Auto", "maxUnavailable": 1}}, "belong to type: RollingUpdate"),
    ({"rollout": {"type": "Recreate", "maxSurge": 1}}, "belong to type: RollingUpdate"),
    ({"rollout": {"type": "RollingUpdate", "maxSurge": 0, "maxUnavailable": "0%"}}, "cannot both be 0"),
    ({"rollout": {"type": "RollingUpdate", "maxSurge": 0}}, "maxSurge: 0 needs maxUnavailable: 1 or more"),
    ({"rollout": {"type": "RollingUpdate", "maxUnavailable": "150%"}}, "a percentage up to 100%"),
    ({"rollout": {"drainSeconds": -1}}, "greater than or equal to 0"),
    ({"service": {"port": 0}}, "greater than or equal to 1"),
    ({"service": {"type": "ExternalName"}}, 'supported values: "ClusterIP", "NodePort", "LoadBalancer"'),
    (pod(containers=[{"name": "mine"}]), "containers are refused: runtime and resources describe the server container"),
    (pod(initContainers=[{"name": "mine"}]), "spec.podTemplate.spec.initContainers[0].image: Required value"),
    (init(name="plan"), "server and plan belong to the operator"),
    (init(name="Mine"), "a container's name is lower-case letters"),
    (init(restartPolicy="Never"), 'supported values: "Always"'),
    (init(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]), "must be a volume of podTemplate.spec.volumes, or model, tmp or shm"),
    (init(securityContext={"procMount": "Unmasked"}), "unknown field"),
    (init(ports=[{"hostPort": 80}]), "unknown field"),
    (init(envFrom=[{"prefix": "X_"}]), "envFrom needs exactly one of configMapRef and secretRef"),
    (runtime(envFrom=[{}]), "envFrom needs exactly one of configMapRef and secretRef"),
    (pod(dnsPolicy="Mine"), 'supported values: "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"'),
    (pod(resourceClaims=[{"name": "gpu"}]), "a resource claim needs exactly one of resourceClaimName and resourceClaimTemplateName"),
    ({"resources": {"claims": [{"name": "gpu"}]}}, "each name in resources.claims must be one of podTemplate.spec.resourceClaims"),
    (pod(nodeName="node"), 'unknown field "spec.podTemplate.spec.nodeName"'),
    (pod(automountServiceAccountToken=True), 'unknown field "spec.podTemplate.spec.automountServiceAccountToken"'),
    (pod(securityContext={"runAsUser": 0}), "runAsUser must be above 0: the pods never run as root"),
    (pod(securityContext={"privileged": True}), 'unknown field "spec.podTemplate.spec.securityContext.privileged"'),
    (pod(tolerations=[{"operator": "exists"}]), 'supported values: "Exists", "Equal"'),
    (volume(), "a volume needs exactly one of configMap, secret, persistentVolumeClaim, emptyDir"),
    (volume(emptyDir={}, secret={"secretName": "s"}), "a volume needs exactly one of configMap, secret, persistentVolumeClaim, emptyDir"),
    (volume(hostPath={"path": "/"}, emptyDir={}), "a volume needs exactly one of"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}), "serviceAccountToken is refused"),
    (volume(projected={"sources": [{}]}), "a source needs exactly one of configMap, secret and downwardAPI"),
    (volume(nfs={"server": "s", "path": "/"}), 'unknown field "spec.podTemplate.spec.volumes[0].nfs"'),
    (pod(volumes=[{"name": "model", "emptyDir": {}}]), "model, tmp and shm belong to the operator"),
    ({"podTemplate": {"metadata": {"labels": {"octavo.dev/inferenceservice": "x"}}}}, "belong to the operator"),
    ({"model": {}}, "spec.model.uri: Required value"),
]  # fmt: skip

TAKEN: list[dict[str, Any]] = [
    {},
    {"suspend": True, "replicas": 3},
    {"autoscaling": {"maxReplicas": 8}},
    {"autoscaling": {"minReplicas": 2, "maxReplicas": 2, "targetCacheUsage": 70, "mode": "Observe"}, "suspend": True},
    model("pvc://models"),
    model("pvc://a.b-c/x/Y_z-1.2@3/"),
    model("file:///opt/model", servedName="org/Model-1.5B:latest"),
    runtime(maxModelLen="auto", gpuMemoryUtilization="1", quantization="w8a16", kvCacheDtype="auto"),
    {"resources": {"limits": {"nvidia.com/gpu": 1}}, **runtime(quantization="w4a16")},
    runtime(quantization="w8a16", device="cuda"),
    runtime(quantization="w8a8"),
    runtime(maxModelLen=4096, kvCacheMemory=1073741824, schedulingPolicy="fcfs", extraArgs=["--max-connection-age=30"]),
    runtime(swapSpace=0, schedulingPolicy="slo"),
    runtime(swapSpace="4Gi", schedulingPolicy="shortest-first"),
    runtime(kvCacheMemory="1.5Gi", env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    {"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2000m"}, "requests": {"cpu": 2}}},
    {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}},
    {"resources": {"limits": {"gpu.intel.com/i915": 1, "gpu.intel.com/memory.max": "8G"}}},
    runtime(securityContext={"readOnlyRootFilesystem": False}),
    {"rollout": {"type": "Recreate", "drainSeconds": 0}, "replicas": 0},
    {"rollout": {"type": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 1}},
    {
        **runtime(volumeMounts=[{"name": "extra", "mountPath": "/etc/x", "readOnly": True}]),
        **volume(configMap={"name": "c"}),
    },
    pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]),
    pod(hostPID=False, serviceAccountName="reader", dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.1"]}),
    pod(hostAliases=[{"ip": "192.0.2.1", "hostnames": ["a"]}], priorityClassName="p", runtimeClassName="r"),
    init(volumeMounts=[{"name": "model", "mountPath": "/m"}], restartPolicy="Always", imagePullPolicy="Never"),
    init(
        securityContext={
            "runAsUser": 1,
            "runAsNonRoot": True,
            "privileged": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        }
    ),
    init(envFrom=[{"secretRef": {"name": "s"}}], env=[{"name": "A"}], resources={"limits": {"cpu": "1"}}, args=["-v"]),
    {**runtime(envFrom=[{"prefix": "X_", "configMapRef": {"name": "c", "optional": True}}])},
    {
        "resources": {"claims": [{"name": "gpu", "request": "one"}]},
        **pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}]),
    },
    volume(
        projected={
            "sources": [
                {"secret": {"name": "s"}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ]
        }
    ),
    volume(csi={"driver": "example.com", "volumeAttributes": {"a": "b"}, "nodePublishSecretRef": {"name": "s"}}),
    volume(
        ephemeral={
            "volumeClaimTemplate": {
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            }
        }
    ),
    volume(
        downwardAPI={
            "items": [{"path": "cpus", "resourceFieldRef": {"containerName": "server", "resource": "limits.cpu"}}]
        }
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_apply_refused_with_a_sentence(kubectl: Kubectl, changes: dict[str, Any], sentence: str) -> None:
    done = kubectl.run("apply", "--dry-run=server", "-f", "-", given=manifest(changes))
    assert done.returncode == 1
    assert sentence in done.stderr


@pytest.mark.parametrize("what", BEYOND_THE_POD)
def test_apply_of_what_reaches_beyond_the_pod_is_refused_at_the_door(kubectl: Kubectl, what: str) -> None:
    privilege, fields = BEYOND_THE_POD[what]
    done = kubectl.run("apply", "--dry-run=server", "-f", "-", given=manifest(pod(**fields)))
    assert done.returncode == 1
    assert "is not allowed: it reaches beyond the pod" in done.stderr
    assert f"to add {privilege} to the chart's value allow" in done.stderr


@pytest.mark.parametrize("name", ["a" * 64, "1st", "a.b", "a-"])
def test_apply_refused_name(kubectl: Kubectl, name: str) -> None:
    done = kubectl.run("apply", "--dry-run=server", "-f", "-", given=manifest({}, name))
    assert done.returncode == 1
    assert "becomes the name of a Service: at most 63 lower-case letters" in done.stderr or "RFC 1123" in done.stderr


@pytest.mark.parametrize("changes", TAKEN, ids=[f"{number}" for number in range(len(TAKEN))])
def test_apply_taken(kubectl: Kubectl, changes: dict[str, Any]) -> None:
    kubectl("apply", "--dry-run=server", "-f", "-", given=manifest(changes, "a" * 63))


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_apply_example_dry_run(kubectl: Kubectl, path: Any) -> None:
    kubectl("apply", "--dry-run=server", "-f", str(path))
    assert yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    "field",
    [
        "spec.model.uri",
        "spec.runtime.kvCacheMemory",
        "spec.rollout.type",
        "spec.podTemplate.spec.affinity",
        "status.conditions",
    ],
)
def test_explain_teaches(kubectl: Kubectl, field: str) -> None:
    text = kubectl("explain", f"inferenceservices.octavo.dev.{field}")
    assert "DESCRIPTION:\n    " in text
    assert "<empty>" not in text


def test_defaults_are_shown_and_names_are_short(kubectl: Kubectl) -> None:
    kubectl.apply(manifest({}))
    found = kubectl.get("isvc", "chat")
    assert found["spec"]["replicas"] == 1
    assert found["spec"]["rollout"] == {"type": "Auto", "drainSeconds": 120}
    assert found["spec"]["service"] == {"type": "ClusterIP", "port": 80}
    assert kubectl("get", "octavo", "-o", "name") == "inferenceservice.octavo.dev/chat"
    kubectl("delete", "isvc", "chat")


def test_scale_is_bounded_too(kubectl: Kubectl) -> None:
    kubectl.apply(manifest({}))
    done = kubectl.run("scale", "isvc/chat", "--replicas=20000")
    assert done.returncode == 1
    assert "less than or equal to 10000" in done.stderr
    kubectl("delete", "isvc", "chat")


AUTHOR_RULES = [
    {
        "apiGroups": ["octavo.dev"],
        "resources": ["inferenceservices", "inferenceservices/scale"],
        "verbs": ["get", "create", "update", "patch", "delete"],
    }
]


@pytest.fixture
def author(world: World) -> tuple[Kubectl, str]:
    """An account that may do everything with InferenceServices, and nothing else."""
    kubectl = world.namespace()
    kubectl("create", "serviceaccount", "author")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "author"}}
    kubectl.apply(role | {"rules": AUTHOR_RULES})
    kubectl("create", "rolebinding", "author", "--role=author", f"--serviceaccount={kubectl.namespace}:author")
    flag = f"--as=system:serviceaccount:{kubectl.namespace}:author"
    eventually(lambda: kubectl.run("auth", "can-i", "create", "inferenceservices.octavo.dev", flag).returncode == 0)
    return kubectl, flag


def test_author_needs_the_right_to_create_deployments(author: tuple[Kubectl, str]) -> None:
    kubectl, flag = author
    done = kubectl.run("apply", flag, "-f", "-", given=manifest({}))
    assert done.returncode == 1
    assert "must be allowed to create deployments and services there, as by the role edit" in done.stderr
    kubectl("create", "rolebinding", "edit", "--clusterrole=edit", f"--serviceaccount={kubectl.namespace}:author")
    eventually(lambda: kubectl.run("apply", flag, "-f", "-", given=manifest({})).returncode == 0)
    kubectl("delete", "isvc", "chat")


def test_author_without_that_right_scales_annotates_and_deletes_and_changes_no_spec(
    author: tuple[Kubectl, str],
) -> None:
    kubectl, flag = author
    kubectl.apply(manifest({}))
    kubectl("scale", "isvc/chat", "--replicas=3", flag)
    kubectl("annotate", "isvc/chat", "note=x", flag)
    done = kubectl.run("patch", "isvc", "chat", "--type=merge", '--patch={"spec":{"replicas":4}}', flag)
    assert done.returncode == 1
    assert "must be allowed to create deployments" in done.stderr
    assert kubectl.get("isvc", "chat")["spec"]["replicas"] == 3
    kubectl.patch("isvc/chat", {"metadata": {"finalizers": ["example.com/hold"]}})
    kubectl("delete", "isvc", "chat", "--wait=false", flag)
    # Whatever is still written to an object that is going must not keep it.
    patch = '{"metadata":{"finalizers":null},"spec":{"replicas":0}}'
    kubectl("patch", "isvc", "chat", "--type=merge", f"--patch={patch}", flag)
    eventually(lambda: kubectl.run("get", "isvc", "chat").returncode)
