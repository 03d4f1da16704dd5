"""What the program `octavo` is told in a pod: the flags of docs/contract.md, from the fields of the spec."""

from octavo_operator.api.service import InferenceService

__all__ = ["FIELDS", "PLAN_FLAGS", "PORT", "TERMINATION_LOG", "is_gpu", "plan_arguments", "serve_arguments"]

PORT = 8000
"""The port that the server listens on inside its pod."""

TERMINATION_LOG = "/dev/termination-log"

FIELDS = {
    "served-model-name": "model.servedName",
    "device": "runtime.device",
    "dtype": "runtime.dtype",
    "quantization": "runtime.quantization",
    "kv-cache-dtype": "runtime.kvCacheDtype",
    "max-model-len": "runtime.maxModelLen",
    "max-num-seqs": "runtime.maxNumSeqs",
    "max-num-batched-tokens": "runtime.maxNumBatchedTokens",
    "block-size": "runtime.blockSize",
    "gpu-memory-utilization": "runtime.gpuMemoryUtilization",
    "kv-cache-memory": "runtime.kvCacheMemory",
    "swap-space": "runtime.swapSpace",
    "scheduling-policy": "runtime.schedulingPolicy",
    "enable-prefix-caching": "runtime.enablePrefixCaching",
    "shutdown-timeout": "rollout.drainSeconds",
}
"""The field of the spec behind each flag of the runtime."""

PLAN_FLAGS = (
    "device",
    "dtype",
    "quantization",
    "kv-cache-dtype",
    "max-model-len",
    "max-num-batched-tokens",
    "block-size",
    "gpu-memory-utilization",
    "kv-cache-memory",
    "swap-space",
)
"""The flags of `octavo serve` that decide what fits: those that `octavo plan` has too."""

GPU_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")


def is_gpu(resource: str) -> bool:
    """Whether a resource name is a GPU or a slice of one."""
    return resource.startswith(GPU_PREFIXES)


def serve_arguments(service: InferenceService) -> list[str]:
    """The arguments of `octavo` in the server: docs/contract.md has the table that they follow."""
    runtime = service.spec.runtime
    arguments = ["serve", service.model_path]
    arguments += [f"--{flag}={value}" for flag, value in _flags(service).items()]
    if runtime.enable_prefix_caching is not None:
        arguments.append("--enable-prefix-caching" if runtime.enable_prefix_caching else "--no-enable-prefix-caching")
    return arguments + list(runtime.extra_args)


def plan_arguments(service: InferenceService) -> list[str]:
    """The arguments of `octavo` in the init container that plans."""
    flags = [f"--{flag}={value}" for flag, value in _flags(service).items() if flag in PLAN_FLAGS]
    return ["plan", service.model_path, "--json", f"--termination-log={TERMINATION_LOG}", *flags]


def _flags(service: InferenceService) -> dict[str, object]:
    runtime = service.spec.runtime
    device = runtime.device
    if device in {None, "auto"} and _has_gpu(service):
        # Whoever asks for a GPU shall learn that it is unusable, not wait for a CPU.
        device = "cuda"
    flags: dict[str, object] = {
        "served-model-name": service.served_name,
        "device": device,
        "dtype": runtime.dtype,
        "quantization": runtime.quantization,
        "kv-cache-dtype": runtime.kv_cache_dtype,
        "max-model-len": runtime.max_model_len,
        "max-num-seqs": runtime.max_num_seqs,
        "max-num-batched-tokens": runtime.max_num_batched_tokens,
        "block-size": runtime.block_size,
        "gpu-memory-utilization": runtime.gpu_memory_utilization,
        "kv-cache-memory": runtime.kv_cache_memory,
        "swap-space": runtime.swap_space,
        "scheduling-policy": runtime.scheduling_policy,
        "port": PORT,
        "shutdown-timeout": service.spec.rollout.drain_seconds,
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def _has_gpu(service: InferenceService) -> bool:
    return any(is_gpu(name) and str(count) != "0" for name, count in service.spec.resources.limits.items())
