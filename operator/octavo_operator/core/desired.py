"""What should exist for an InferenceService: one child of each kind, and the record of a pod template.

The result depends on the arguments alone, and the same input gives the same bytes: order of
keys and arguments is fixed, so that nothing is rolled out twice. Values are written as the API server would write
them where it is easy; where a user's value may be rewritten (quantities), plan.py copes.
"""

import copy
from typing import Any

from octavo_operator.api.names import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    MANAGED_BY,
    NETWORK_POLICY,
    OPERATOR,
    OWNER_LABEL,
    REVISION,
    SERVICE,
    TEMPLATE_LABEL,
    Kind,
    Manifest,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.arguments import PORT, TERMINATION_LOG, plan_arguments, serve_arguments
from octavo_operator.core.digest import digest
from octavo_operator.core.rollout import Step

__all__ = ["PLAN", "SERVER", "desired_children", "pod_template", "revision", "service_url"]

SERVER = "server"
"""Name of the container that serves."""

PLAN = "plan"
"""Name of the init container that says what the model needs, before a weight is read."""

PRE_STOP_SECONDS = 5
"""How long a pod that is being deleted goes on admitting requests, so that routes can change."""

STOP_MARGIN_SECONDS = 15
"""Grace beyond drainSeconds: the pre-stop sleep, and the exit of both processes."""

LISTEN_SECONDS = 300
"""How long the server may take to listen. How long the model then takes to load is the runtime's to judge (ADR 14)."""

LISTEN_PERIOD_SECONDS = 2

PROGRESS_SECONDS = 2100
"""How long images, volumes, init containers and loading may take before a rollout without a new ready pod is stuck."""

LOADED_BYTES_PER_SECOND = 50_000_000
"""Slow storage. Weights that take longer at this rate have longer."""

MOST_SECONDS = 7 * 86_400
"""Whatever a plan tells: more than enough for any weights, and a number that the API server takes."""

USER = 65532

PLAN_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""What the plan is given of the server's resources, so that a quota and the pod's quality of service are satisfied. It
adds nothing to the pod's request, since it has ended when the server starts."""


def desired_children(
    service: InferenceService, template: Manifest, step: Step, *, weights_bytes: int = 0
) -> tuple[Manifest, ...]:
    """The children of one InferenceService, ready to be applied, in the order of applying.

    Args:
        service: the object.
        template: the pod template: the one that pod_template renders, or an earlier one that is pinned.
        step: what a rollout of type Auto is at.
        weights_bytes: what a pod of the template loads; 0 as long as none has told.
    """
    return (
        _service(service),
        _network_policy(service),
        _disruption_budget(service),
        _deployment(service, template, step, weights_bytes),
    )


def revision(service: InferenceService, data: Manifest, number: int) -> Manifest:
    """The ControllerRevision that keeps a pod template. Its name follows from its data, which never change."""
    manifest = _metadata(service, REVISION) | {"data": data, "revision": number}
    manifest["metadata"]["name"] = f"{service.name}-{digest([service.uid, data])}"
    return manifest


def service_url(service: InferenceService) -> str:
    """The address of the Service inside the cluster, whatever the cluster's domain is."""
    port = service.spec.service.port
    return f"http://{service.name}.{service.namespace}.svc" + ("" if port == 80 else f":{port}")


def _metadata(service: InferenceService, kind: Kind, annotations: dict[str, str] | None = None) -> Manifest:
    metadata: Manifest = {
        "name": service.name,
        "namespace": service.namespace,
        "labels": _labels(service),
        "ownerReferences": [
            {
                "apiVersion": INFERENCE_SERVICE.api_version,
                "kind": INFERENCE_SERVICE.kind,
                "name": service.name,
                "uid": service.uid,
                # blockOwnerDeletion would need a right on inferenceservices/finalizers in some clusters.
                "controller": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def _labels(service: InferenceService) -> dict[str, str]:
    return {"app.kubernetes.io/name": "octavo", MANAGED_BY: OPERATOR, OWNER_LABEL: service.name}


def _selector(service: InferenceService) -> dict[str, str]:
    """The label that all pods of an InferenceService bear, of whatever template, and no others."""
    return {OWNER_LABEL: service.name}


def _service(service: InferenceService) -> Manifest:
    wanted = service.spec.service
    return _metadata(service, SERVICE, wanted.annotations) | {
        "spec": {
            "type": wanted.type,
            "selector": _selector(service),
            "ports": [{"name": "http", "port": wanted.port, "protocol": "TCP", "targetPort": PORT}],
        },
    }


def _network_policy(service: InferenceService) -> Manifest:
    """Lets anyone reach the server's port and nothing else. Policies add up: another one opens what more is needed."""
    return _metadata(service, NETWORK_POLICY) | {
        "spec": {
            "podSelector": {"matchLabels": _selector(service)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": PORT, "protocol": "TCP"}]}],
        },
    }


def _disruption_budget(service: InferenceService) -> Manifest:
    """Lets a drain take one pod at a time: the only one of a single replica too, or its node could never be drained."""
    return _metadata(service, DISRUPTION_BUDGET) | {
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": _selector(service)},
            # A pod that does not serve protects nobody, and would hold up a drain for as long as it crashes.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _deployment(service: InferenceService, template: Manifest, step: Step, weights_bytes: int) -> Manifest:
    return _metadata(service, DEPLOYMENT) | {
        "spec": {
            "replicas": service.wanted,
            "selector": {"matchLabels": _selector(service)},
            "paused": False,
            "strategy": _strategy(service, step),
            "progressDeadlineSeconds": min(
                MOST_SECONDS, max(PROGRESS_SECONDS, LISTEN_SECONDS + weights_bytes // LOADED_BYTES_PER_SECOND)
            ),
            "revisionHistoryLimit": 3,
            "template": template,
        },
    }


def _strategy(service: InferenceService, step: Step) -> dict[str, Any]:
    rollout = service.spec.rollout
    match rollout.type:
        case "Recreate":
            return {"type": "Recreate"}
        case "Auto":
            surge: int | str = step.max_surge
            unavailable: int | str = step.max_unavailable
        case "RollingUpdate":
            surge = 1 if rollout.max_surge is None else rollout.max_surge
            unavailable = 0 if rollout.max_unavailable is None else rollout.max_unavailable
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def pod_template(service: InferenceService, *, runtime_image: str) -> Manifest:
    """The pod template, rendered as this version of the operator does it.

    Args:
        service: the object.
        runtime_image: image of the runtime where the object names none.
    """
    extra = service.spec.pod_template
    metadata: Manifest = {"labels": extra.metadata.labels | _labels(service)}
    if extra.metadata.annotations:
        metadata["annotations"] = dict(extra.metadata.annotations)
    passed_on = extra.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"security_context", "volumes", "init_containers"}
    )
    spec = passed_on | {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
            **(extra.spec.security_context or {}),
        },
        "terminationGracePeriodSeconds": service.spec.rollout.drain_seconds + STOP_MARGIN_SECONDS,
        # The plan reads what the user's containers may have put into a volume, such as the model.
        "initContainers": [*map(_init, extra.spec.init_containers or ()), _plan(service, runtime_image)],
        "containers": [_server(service, runtime_image)],
        "volumes": _volumes(service),
    }
    template = {"metadata": metadata, "spec": spec}
    metadata["labels"][TEMPLATE_LABEL] = digest(template)
    return template


def _volumes(service: InferenceService) -> list[Manifest]:
    volumes: list[Manifest] = []
    if service.claim:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": service.claim, "readOnly": True}})
    volumes.append({"name": "tmp", "emptyDir": {}})
    # Ranks and the data loaders of torch exchange tensors in /dev/shm, which is 64 MiB without this.
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes + [dict(volume) for volume in service.spec.pod_template.spec.volumes or ()]


def _init(container: Manifest) -> Manifest:
    """An init container of the user's: restricted, as far as it does not say otherwise."""
    given = container.get("securityContext", {})
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # The API server takes no privileged container whose escalation is forbidden.
    return copy.deepcopy(container | {"securityContext": given if given.get("privileged") else restricted | given})


def _plan(service: InferenceService, runtime_image: str) -> Manifest:
    container = _container(service, runtime_image, PLAN, plan_arguments(service))
    given = service.spec.resources.model_dump(mode="json", exclude_defaults=True)
    resources = {
        kind: kept
        for kind, amounts in given.items()
        if kind != "claims" and (kept := {name: amount for name, amount in amounts.items() if name in PLAN_RESOURCES})
    }
    return container | ({"resources": resources} if resources else {})


def _server(service: InferenceService, runtime_image: str) -> Manifest:
    container = _container(service, runtime_image, SERVER, serve_arguments(service))
    container |= {
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        # The server listens before the model loads; from then on /livez tells whether loading makes progress. A busy
        # server answers late, so all are patient: overload must not take a pod out of the Service, let alone restart it.
        "startupProbe": _probe("/livez", LISTEN_PERIOD_SECONDS, LISTEN_SECONDS // LISTEN_PERIOD_SECONDS),
        "readinessProbe": _probe("/readyz", 2, 3),
        "livenessProbe": _probe("/livez", 10, 6),
    }
    resources = service.spec.resources.model_dump(mode="json", exclude_defaults=True)
    if resources:
        container["resources"] = resources
    return container


def _container(service: InferenceService, runtime_image: str, name: str, arguments: list[str]) -> Manifest:
    """What both containers of the runtime share: what one of them can read, the other can too."""
    runtime = service.spec.runtime
    mounts: list[Manifest] = []
    if service.claim:
        mounts.append({"name": "model", "mountPath": f"/models/{service.claim}", "readOnly": True})
    mounts += [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 the pod's own emptyDir
    mounts += copy.deepcopy(runtime.volume_mounts)
    env = copy.deepcopy(list(runtime.env))
    if not any(variable["name"] == "HOME" for variable in env):
        # The user has no entry in /etc/passwd and the root file system is read-only: caches need a home.
        env.append({"name": "HOME", "value": "/tmp"})  # noqa: S108 the pod's own emptyDir
    container: Manifest = {
        "name": name,
        "image": runtime.image or runtime_image,
        "command": ["octavo"],
        "args": arguments,
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": runtime.security_context.read_only_root_filesystem,
        },
        "terminationMessagePath": TERMINATION_LOG,
        # Only where the runtime left no message of its own, for an image that has no runtime, say.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if runtime.env_from:
        container["envFrom"] = copy.deepcopy(list(runtime.env_from))
    return container


def _probe(path: str, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
