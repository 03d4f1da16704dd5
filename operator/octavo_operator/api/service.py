"""InferenceService as the operator sees it: the fields of the CRD that have a behaviour.

The API server has validated and defaulted an object before the operator reads it. An unknown field here means
that the CRD is newer than the operator: it is an error, so that nothing is accepted and ignored. Fields that the
CRD declares only to refuse them do not appear.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from octavo_operator.api.names import Key, Manifest
from octavo_operator.errors import SpecInvalid

__all__ = [
    "Autoscaling",
    "InferenceService",
    "Model",
    "Parallelism",
    "PodMetadata",
    "PodSpec",
    "PodTemplate",
    "Resources",
    "Rollout",
    "Runtime",
    "ServerContext",
    "Service",
    "Spec",
]


class _Fields(BaseModel):
    """Defaults that can be changed are made anew: pydantic would copy them at each look, which takes three times as long."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, protected_namespaces=())


class Model(_Fields):
    """Where the model lies, and the name clients know it by."""

    uri: str
    served_name: str | None = None


class ServerContext(_Fields):
    """What of the server container's security context can be chosen: nothing that reaches beyond it."""

    read_only_root_filesystem: bool = True


class Runtime(_Fields):
    """The flags of `octavo serve`; None leaves a flag to the runtime's default."""

    image: str = ""
    device: Literal["auto", "cpu", "cuda"] | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    quantization: Literal["none", "w8a16", "w8a8", "w4a16"] | None = None
    kv_cache_dtype: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"] | None = None
    max_model_len: int | Literal["auto"] | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    gpu_memory_utilization: str | None = None
    kv_cache_memory: int | str | None = None
    swap_space: int | str | None = None
    scheduling_policy: Literal["fcfs", "shortest-first", "priority", "slo"] | None = None
    enable_prefix_caching: bool | None = None
    extra_args: tuple[str, ...] = ()
    env: tuple[dict[str, Any], ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    volume_mounts: tuple[dict[str, Any], ...] = ()
    security_context: ServerContext = Field(default_factory=ServerContext)


class Parallelism(_Fields):
    """Ranks and nodes of one replica."""

    tensor: Literal[1] = 1
    nodes: Literal[1] = 1


class Resources(_Fields):
    """Requests and limits of the server container."""

    limits: dict[str, int | str] = Field(default_factory=dict)
    requests: dict[str, int | str] = Field(default_factory=dict)
    claims: tuple[dict[str, Any], ...] = ()


class Autoscaling(_Fields):
    """Within which bounds replicas follow the load, and how full a pod shall be."""

    min_replicas: int = 1
    max_replicas: int
    target_cache_usage: int = 80
    target_queue_length: int = 5
    scale_down_stabilization_seconds: int = 300
    scale_down_after_late_seconds: int = 3600
    mode: Literal["Auto", "Observe"] = "Auto"


class Rollout(_Fields):
    """How pods are replaced, and how they stop."""

    type: Literal["Auto", "RollingUpdate", "Recreate"] = "Auto"
    max_surge: int | str | None = None
    max_unavailable: int | str | None = None
    drain_seconds: int = 120


class Service(_Fields):
    """The Service in front of the pods."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    port: int = 80
    annotations: dict[str, str] = Field(default_factory=dict)


class PodMetadata(_Fields):
    """Labels and annotations of the pods."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodSpec(_Fields):
    """Fields of core/v1 PodSpec that are passed on, those that reach into the node only where that is allowed."""

    node_selector: dict[str, str] | None = None
    tolerations: tuple[dict[str, Any], ...] | None = None
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: tuple[dict[str, Any], ...] | None = None
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    image_pull_secrets: tuple[dict[str, Any], ...] | None = None
    security_context: dict[str, Any] | None = None
    volumes: tuple[dict[str, Any], ...] | None = None
    init_containers: tuple[dict[str, Any], ...] | None = None
    service_account_name: str | None = None
    host_network: bool | None = None
    host_pid: bool | None = Field(default=None, alias="hostPID")
    host_ipc: bool | None = Field(default=None, alias="hostIPC")
    dns_policy: Literal["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"] | None = None
    dns_config: dict[str, Any] | None = None
    host_aliases: tuple[dict[str, Any], ...] | None = None
    resource_claims: tuple[dict[str, Any], ...] | None = None


class PodTemplate(_Fields):
    """What the pods need beyond the server."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec = Field(default_factory=PodSpec)


class Spec(_Fields):
    """What to serve and how."""

    model: Model
    runtime: Runtime = Field(default_factory=Runtime)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    resources: Resources = Field(default_factory=Resources)
    replicas: int = 1
    autoscaling: Autoscaling | None = None
    rollout: Rollout = Field(default_factory=Rollout)
    service: Service = Field(default_factory=Service)
    pod_template: PodTemplate = Field(default_factory=PodTemplate)
    suspend: bool = False


class InferenceService(BaseModel):
    """One InferenceService: identity and spec."""

    model_config = ConfigDict(frozen=True)

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return self.namespace, self.name

    @property
    def served_name(self) -> str:
        """The name that clients send."""
        return self.spec.model.served_name or self.name

    @property
    def wanted(self) -> int:
        """How many pods shall run now."""
        return 0 if self.spec.suspend else self.spec.replicas

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim that holds the model, or None for a path inside the container."""
        uri = self.spec.model.uri
        return uri.removeprefix("pvc://").partition("/")[0] if uri.startswith("pvc://") else None

    @property
    def model_path(self) -> str:
        """The model's directory inside the server container."""
        uri = self.spec.model.uri.rstrip("/")
        return f"/models/{uri.removeprefix('pvc://')}" if self.claim else uri.removeprefix("file://")

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """Reads an object as the API server returns it.

        Raises:
            SpecInvalid: a field or a value is unknown; the message names each.
        """
        metadata = manifest["metadata"]
        try:
            return cls(
                namespace=metadata["namespace"],
                name=metadata["name"],
                uid=metadata["uid"],
                generation=metadata["generation"],
                spec=Spec.model_validate(manifest["spec"]),
            )
        except ValidationError as error:
            faults = "; ".join(
                f"spec.{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
                for fault in error.errors(include_url=False, include_context=False, include_input=False)
            )
            raise SpecInvalid(f"this version of the operator does not know {faults}; upgrade the operator") from error
