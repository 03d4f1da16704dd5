"""What a model will need, from config.json and the safetensors headers alone: no weight is read, no torch imported.

The engine sizes its KV cache by the same functions when it starts, so that `octavo plan` and the engine agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from octavo_runtime.domain import EngineConfig
from octavo_runtime.errors import BadFlags, NotEnoughMemoryForKV
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.spec import DecoderSpec, read_spec
from octavo_runtime.loading.weight_map import WeightMap, weight_map

__all__ = [
    "DEFAULT_CPU_KV_MEMORY",
    "KVSize",
    "ModelPlan",
    "plan_model",
    "resolve_device",
    "resolve_dtype",
    "resolve_kv_dtype",
    "size_kv",
    "weight_bytes",
]

DEFAULT_CPU_KV_MEMORY = 1 << 30
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KVSize:
    """The KV cache that a memory holds.

    Attributes:
        num_blocks: Blocks in the pool.
        block_bytes: Bytes of a block over all layers, keys and values.
        max_model_len: Longest prompt plus output, in tokens.
    """

    num_blocks: int
    block_bytes: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What `octavo plan` tells.

    Attributes:
        architecture: The Hugging Face class.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        max_position: Longest sequence the model knows, in tokens.
        device: cpu or cuda.
        dtype: Of weights and activations.
        kv_cache_dtype: Of the KV cache.
        block_size: Tokens per KV block.
        weights_bytes: Bytes of the weights once loaded.
        kv_bytes_per_token: Bytes that a token keeps in the KV cache.
        kv_cache_bytes: Bytes of the KV cache; None where only the device can tell.
        kv_tokens: Tokens that it holds; None likewise.
        num_blocks: Blocks that it has; None likewise.
        max_model_len: Longest prompt plus output; None likewise, unless it was asked for.
        max_concurrency: Requests of that length that fit at once; None likewise.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    device: str
    dtype: str
    kv_cache_dtype: str
    block_size: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int | None
    kv_tokens: int | None
    num_blocks: int | None
    max_model_len: int | None
    max_concurrency: float | None


def plan_model(path: Path, config: EngineConfig) -> ModelPlan:
    """Plans a model directory.

    Args:
        path: The directory.
        config: How it would be served. On a GPU the KV cache is known beforehand only with `kv_cache_memory`.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: As when the engine loads it.
        BadFlags: A setting contradicts the model.
        NotEnoughMemoryForKV: One request of the longest length would not fit.
    """
    spec = read_spec(path)
    checkpoint = open_checkpoint(path)
    weights = weight_map(spec, checkpoint)
    device = resolve_device(config.device, cuda_available=Path("/dev/nvidiactl").exists())
    config = replace(config, device=device)
    stored = {checkpoint[slot.source].dtype for slot in weights.slots}
    dtype = resolve_dtype(config.dtype, device, spec, stored)
    kv_dtype = resolve_kv_dtype(config, dtype)
    memory = config.kv_cache_memory
    if memory is None and device == "cpu":
        memory = DEFAULT_CPU_KV_MEMORY
    size = None if memory is None else size_kv(spec, config, kv_dtype, memory)
    kv_tokens = None if size is None else size.num_blocks * config.block_size
    return ModelPlan(
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position=spec.max_position,
        device=device,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        block_size=config.block_size,
        weights_bytes=weight_bytes(weights, dtype),
        kv_bytes_per_token=spec.kv_elements_per_token * _ITEM_BYTES[kv_dtype],
        kv_cache_bytes=None if size is None else size.num_blocks * size.block_bytes,
        kv_tokens=kv_tokens,
        num_blocks=None if size is None else size.num_blocks,
        max_model_len=config.max_model_len if size is None else size.max_model_len,
        max_concurrency=None if size is None or kv_tokens is None else kv_tokens / size.max_model_len,
    )


def resolve_device(device: str, *, cuda_available: bool) -> str:
    """The device that `auto` means here."""
    return ("cuda" if cuda_available else "cpu") if device == "auto" else device


def resolve_dtype(dtype: str, device: str, spec: DecoderSpec, stored: set[str]) -> str:
    """The dtype that `auto` means: float32 on a CPU; on a GPU as stored, where 32 bits become bfloat16.

    Args:
        dtype: auto, or the answer.
        device: cpu or cuda.
        spec: Its `dtype` decides for a checkpoint of mixed types.
        stored: The types in the checkpoint, by safetensors' names.
    """
    if dtype != "auto":
        return dtype
    if device == "cpu":
        return "float32"
    if stored == {"F16"} or (len(stored) > 1 and spec.dtype == "float16"):
        return "float16"
    return "bfloat16"


def resolve_kv_dtype(config: EngineConfig, dtype: str) -> str:
    """The KV cache's dtype that `auto` means: the weights'."""
    return dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def weight_bytes(weights: WeightMap, dtype: str) -> int:
    """Bytes of the parameters in this dtype."""
    return weights.num_elements * _ITEM_BYTES[dtype]


def size_kv(spec: DecoderSpec, config: EngineConfig, kv_dtype: str, memory: int) -> KVSize:
    """How many blocks fit into `memory` bytes, and how long a request can be.

    Args:
        spec: The model.
        config: With the device resolved.
        kv_dtype: Of the KV cache.
        memory: Bytes for it.

    Raises:
        BadFlags: --max-model-len is more than the model knows.
        NotEnoughMemoryForKV: One request of --max-model-len, or a single block, does not fit.
    """
    size = config.block_size
    block_bytes = spec.kv_elements_per_token * _ITEM_BYTES[kv_dtype] * size
    num_blocks = memory // block_bytes
    fits = num_blocks * size
    asked = config.max_model_len
    if asked is not None and asked > spec.max_position:
        raise BadFlags(
            f"--max-model-len {asked} is more than the {spec.max_position} that the model knows "
            f"({spec.max_position_field} in config.json)",
            hint=f"Use --max-model-len {spec.max_position} or less, or auto.",
        )
    needed = -(-(asked or 1) // size) * block_bytes
    if needed > memory:
        flag = (
            f"--kv-cache-memory {needed}"
            if config.kv_cache_memory is not None or config.device == "cpu"
            else f"a larger --gpu-memory-utilization (it is {config.gpu_memory_utilization}), "
            f"such that {needed / _GIB:.2f} GiB remain"
        )
        wanted = f"one request of --max-model-len {asked}" if asked else f"one block of {size} tokens"
        raise NotEnoughMemoryForKV(
            f"the KV cache of {wanted} takes {needed} bytes, and there are {memory}",
            hint=f"Give {flag}" + (f", or --max-model-len {fits} or less." if fits else "."),
            needed=needed,
            available=memory,
        )
    return KVSize(num_blocks, block_bytes, asked or min(spec.max_position, fits))
