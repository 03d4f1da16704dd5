"""What a model will need, from config.json and the safetensors headers alone: no weight is read, no torch imported.

The engine sizes its KV cache by the same functions when it starts, so that `octavo plan` and the engine agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from octavo_runtime.domain import INT8_WEIGHTS, EngineConfig
from octavo_runtime.errors import BadFlags, NotEnoughMemoryForKV, NotEnoughMemoryForWeights
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.spec import DecoderSpec, read_spec
from octavo_runtime.loading.weight_bytes import ITEM_BYTES, check_packing, held_bytes, most_bytes
from octavo_runtime.loading.weight_map import weight_map

__all__ = [
    "DEFAULT_CPU_KV_MEMORY",
    "KVSize",
    "ModelPlan",
    "activation_bytes",
    "check_batch_invariant",
    "check_growth",
    "gpu_kv_memory",
    "kv_block_bytes",
    "kv_token_bytes",
    "plan_model",
    "resolve_device",
    "resolve_dtype",
    "resolve_kv_dtype",
    "resolve_quantization",
    "size_kv",
    "storage_dtype",
]

DEFAULT_CPU_KV_MEMORY = 1 << 30
_KV_SCALE_BYTES = 4
"""What a token's keys, or values, of one kv head in int8 or fp8 have beside them."""

_CUDA_CONTEXT = 1 << 29
"""What CUDA and its libraries take of a GPU beside everything else: about half a GiB, more on larger GPUs."""


@dataclass(frozen=True, slots=True)
class KVSize:
    """The KV cache that a memory holds.

    Attributes:
        num_blocks: Blocks in the pool.
        block_bytes: Bytes of a block over all layers, keys and values.
        max_model_len: Longest prompt plus output, in tokens.
        max_num_blocks: Blocks up to which the pool may grow.
        num_host_blocks: Blocks in the host tier.
    """

    num_blocks: int
    block_bytes: int
    max_model_len: int
    max_num_blocks: int
    num_host_blocks: int


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
        dtype: Of activations.
        weights_dtype: Of the weights that are not quantised.
        quantization: Of the weights.
        kv_cache_dtype: Of the KV cache.
        block_size: Tokens per KV block.
        weights_bytes: Bytes of the weights once loaded.
        gpu_memory_bytes: Bytes of the GPU that is planned for; None: none was named.
        activations_bytes: Bytes of the largest step beside weights and KV cache, an estimate (`activation_bytes`); None
            likewise.
        kv_bytes_per_token: Bytes that a token keeps in the KV cache.
        kv_cache_bytes: Bytes of the KV cache; None where only the device can tell.
        kv_tokens: Tokens that it holds; None likewise.
        num_blocks: Blocks that it has; None likewise.
        max_model_len: Longest prompt plus output; None likewise, unless it was asked for.
        max_concurrency: Requests of that length that fit at once; None likewise.
        num_host_blocks: Blocks in the host tier, for those that are swapped out.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    device: str
    dtype: str
    weights_dtype: str
    quantization: str
    kv_cache_dtype: str
    block_size: int
    weights_bytes: int
    gpu_memory_bytes: int | None
    activations_bytes: int | None
    kv_bytes_per_token: int
    kv_cache_bytes: int | None
    kv_tokens: int | None
    num_blocks: int | None
    max_model_len: int | None
    max_concurrency: float | None
    num_host_blocks: int


def plan_model(
    path: Path,
    config: EngineConfig,
    *,
    gpu_memory: int | None = None,
    runs_native: Callable[[DecoderSpec, EngineConfig], bool] = lambda _spec, _config: False,
) -> ModelPlan:
    """Plans a model directory.

    Args:
        path: The directory.
        config: How it would be served. On a GPU the KV cache is known beforehand only with `kv_cache_memory` or
            `gpu_memory`.
        gpu_memory: Bytes of the GPU that it would be served on, which need not be here.
        runs_native: Whether a CPU would run it on native kernels, which hold the weights as they are stored. It may
            raise what the engine would raise.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: As when the engine loads it.
        BadFlags: A setting contradicts the model or another one.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: The weights, or one request of the longest length beside them,
            would not fit.
    """
    spec = read_spec(path)
    checkpoint = open_checkpoint(path)
    weights = weight_map(spec, checkpoint)
    if gpu_memory is not None and config.device == "cpu":
        raise BadFlags("--gpu-memory plans for a GPU, and --device is cpu", hint="Leave one of them out.")
    device = resolve_device(config.device, cuda_available=gpu_memory is not None or Path("/dev/nvidiactl").exists())
    config = replace(config, device=device)
    check_growth(config)
    config = replace(config, quantization=resolve_quantization(config, spec))
    stored = weights.stored_dtypes(checkpoint)
    dtype = resolve_dtype(config.dtype, device, spec, stored)
    kv_dtype = resolve_kv_dtype(config, dtype)
    packed = device == "cuda"
    check_packing(weights, config.quantization, packed=packed)
    # Native kernels alone quantise on a CPU.
    native = device == "cpu" and (runs_native(spec, config) or config.quantization in INT8_WEIGHTS)
    weights_dtype = storage_dtype(dtype, stored) if native else dtype
    held = held_bytes(weights, weights_dtype, config.quantization, packed=packed)
    activations = None if gpu_memory is None else activation_bytes(spec, config, dtype)
    memory, gpu = config.kv_cache_memory, None
    if gpu_memory is not None and activations is not None:
        most = most_bytes(weights, dtype, config.quantization, packed=packed)
        gpu = gpu_memory, _available_on_gpu(config, gpu_memory, held, most, activations)
        memory = gpu_kv_memory(config, *gpu)
    elif memory is None and device == "cpu":
        memory = DEFAULT_CPU_KV_MEMORY
    size = None if memory is None else size_kv(spec, config, kv_dtype, memory, gpu)
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
        weights_dtype=weights_dtype,
        quantization=config.quantization,
        kv_cache_dtype=kv_dtype,
        block_size=config.block_size,
        weights_bytes=held,
        gpu_memory_bytes=gpu_memory,
        activations_bytes=activations,
        kv_bytes_per_token=kv_token_bytes(spec, kv_dtype),
        kv_cache_bytes=None if size is None else size.num_blocks * size.block_bytes,
        kv_tokens=kv_tokens,
        num_blocks=None if size is None else size.num_blocks,
        max_model_len=config.max_model_len if size is None else size.max_model_len,
        max_concurrency=None if size is None or kv_tokens is None else kv_tokens / size.max_model_len,
        num_host_blocks=_num_host_blocks(config, kv_block_bytes(spec, config, kv_dtype)),
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


def storage_dtype(dtype: str, stored: set[str]) -> str:
    """The type that native kernels hold weights in: narrower than float32 where the checkpoint's is and loses nothing.

    Args:
        dtype: Of the computation, resolved.
        stored: The types in the checkpoint, by safetensors' names.
    """
    narrow = {"BF16": "bfloat16", "F16": "float16"}
    if dtype == "float32" and len(stored) == 1:
        return narrow.get(next(iter(stored)), dtype)
    return dtype


def resolve_kv_dtype(config: EngineConfig, dtype: str) -> str:
    """The KV cache's dtype that `auto` means: the weights'; bfloat16 on a CPU where those are rounded to eight bits.

    Args:
        config: With device and quantisation resolved.
        dtype: Of the weights, resolved.

    Raises:
        BadFlags: It is fp8, on a CPU.
    """
    if config.kv_cache_dtype == "fp8" and config.device == "cpu":
        raise BadFlags(
            "--kv-cache-dtype fp8 is for GPUs, and the device is cpu",
            hint="Use --kv-cache-dtype int8, which takes as many bytes.",
        )
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    return "bfloat16" if config.device == "cpu" and config.quantization in INT8_WEIGHTS else dtype


def resolve_quantization(config: EngineConfig, spec: DecoderSpec) -> str:
    """How the weights are to lie in memory: as the configuration says, where `none` takes them as they are stored.

    Args:
        config: What is asked for.
        spec: The model.

    Raises:
        BadFlags: The checkpoint stores them in another way.
    """
    asked, stored = config.quantization, spec.quantization
    if stored is not None and asked not in {"none", stored}:
        raise BadFlags(
            f"--quantization {asked}, but the model directory holds weights in {stored}, which are not rounded again",
            hint="Leave --quantization out, or convert the GGUF file without --quantization keep.",
        )
    if asked == "w4a16" and stored is None:
        raise BadFlags(
            "--quantization w4a16, but the model directory does not hold weights in groups of four bits",
            hint="Make one with `octavo convert --quantization keep FILE.gguf OUT_DIR`, or leave --quantization out.",
        )
    return stored or asked


def check_batch_invariant(config: EngineConfig) -> None:
    """Checks that the device has kernels which compute each sequence alike in any batch, if that is asked for.

    Args:
        config: With device and quantisation resolved.

    Raises:
        BadFlags: Weights in w8a16 or w4a16 on a GPU.
    """
    if config.batch_invariant and config.device == "cuda" and config.quantization not in {"none", "w8a8"}:
        raise BadFlags(
            f"--batch-invariant with weights in {config.quantization} on a GPU: its kernels for them are chosen by the "
            "number of rows, and round differently",
            hint="Use weights as they are stored, or leave --batch-invariant out.",
        )


def check_growth(config: EngineConfig) -> None:
    """Checks that the KV cache can grow where it is to.

    Args:
        config: With the device resolved.

    Raises:
        BadFlags: It lies on a GPU.
    """
    if config.device == "cuda" and config.kv_cache_memory_max not in {None, config.kv_cache_memory}:
        raise BadFlags(
            f"--kv-cache-memory-max {config.kv_cache_memory_max} on a GPU: there the KV cache keeps the size that it "
            "has at first, since it is one allocation, whose address the kernels hold",
            hint="Leave --kv-cache-memory-max out, and give --kv-cache-memory what the KV cache may take.",
        )


def kv_token_bytes(spec: DecoderSpec, kv_dtype: str) -> int:
    """Bytes that a token keeps in the KV cache over all layers, keys and values, scales included."""
    scales = 2 * spec.num_layers * spec.num_kv_heads * _KV_SCALE_BYTES if ITEM_BYTES[kv_dtype] == 1 else 0
    return spec.kv_elements_per_token * ITEM_BYTES[kv_dtype] + scales


def kv_block_bytes(spec: DecoderSpec, config: EngineConfig, kv_dtype: str) -> int:
    """Bytes of a KV block over all layers, keys and values."""
    return kv_token_bytes(spec, kv_dtype) * config.block_size


def activation_bytes(spec: DecoderSpec, config: EngineConfig, dtype: str) -> int:
    """About how many bytes a GPU's largest step takes beside weights and KV cache: one prompt that fills it.

    An engine measures this when it starts. The estimate counts what lives at once in the widest part of a layer: the
    residual stream and its norm, beside either the MLP (gate and up, the gate's activation, their product) or the
    attention (queries, keys, values and their rotated copies, and the scores of all heads in float32, three times:
    as they are, masked, and as weights).
    """
    tokens = min(config.scheduler.max_num_batched_tokens, spec.max_position)
    item = ITEM_BYTES[dtype]
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    mlp = tokens * 4 * spec.intermediate_size * item
    attention = tokens * 2 * heads * item + 3 * spec.num_heads * tokens**2 * 4
    return tokens * 2 * spec.hidden_size * item + max(mlp, attention)


def gpu_kv_memory(config: EngineConfig, total: int, available: int) -> int:
    """Bytes for the KV cache on a GPU: as many as are asked for, or its share.

    Args:
        config: What is asked for.
        total: Bytes of the GPU.
        available: Of them, what is left beside weights and the largest step.
    """
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory
    return max(0, available - int(total * (1 - config.gpu_memory_utilization)))


def size_kv(
    spec: DecoderSpec, config: EngineConfig, kv_dtype: str, memory: int, gpu: tuple[int, int] | None = None
) -> KVSize:
    """How many blocks fit into `memory` bytes, and how long a request can be.

    Args:
        spec: The model.
        config: With the device resolved.
        kv_dtype: Of the KV cache.
        memory: Bytes for it.
        gpu: Of a GPU, whose share it is, all bytes and those that are left beside weights and the largest step.

    Raises:
        BadFlags: --max-model-len is more than the model knows; --kv-cache-memory-max is less than `memory`; the swap
            space is less than a block.
        NotEnoughMemoryForKV: One request of --max-model-len, or a single block, does not fit.
    """
    size = config.block_size
    block_bytes = kv_block_bytes(spec, config, kv_dtype)
    num_host_blocks = _num_host_blocks(config, block_bytes)
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
        share = None if gpu is None or config.kv_cache_memory is not None else _least_share(config, needed, *gpu)
        flags = [f"--gpu-memory-utilization {share}"] if share else []
        if config.kv_cache_memory is not None or config.device == "cpu":
            flags.append(f"--kv-cache-memory {needed}")
        if fits:
            flags.append(f"--max-model-len {fits} or less")
        tokens = config.scheduler.max_num_batched_tokens
        wanted = f"one request of --max-model-len {asked}" if asked else f"one block of {size} tokens"
        raise NotEnoughMemoryForKV(
            f"the KV cache of {wanted} takes {needed} bytes, and there are {memory}",
            hint=f"Give {', or '.join(flags)}."
            if flags
            else f"Use a larger GPU, or less than --max-num-batched-tokens {tokens}, by which a step's own memory goes.",
            needed=needed,
            available=memory,
        )
    return KVSize(
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        max_model_len=asked or min(spec.max_position, fits),
        max_num_blocks=_largest_memory(config, memory) // block_bytes,
        num_host_blocks=num_host_blocks,
    )


def _least_share(config: EngineConfig, needed: int, total: int, available: int) -> float | None:
    """The least --gpu-memory-utilization, in thousandths, with which `needed` bytes are there; None where none is."""
    thousandths = range(1, 1001)
    least = bisect_left(
        thousandths,
        needed,
        key=lambda share: gpu_kv_memory(replace(config, gpu_memory_utilization=share / 1000), total, available),
    )
    return thousandths[least] / 1000 if least < len(thousandths) else None


def _largest_memory(config: EngineConfig, memory: int) -> int:
    """Bytes up to which the KV cache may grow from `memory`."""
    largest = memory if config.kv_cache_memory_max is None else config.kv_cache_memory_max
    if largest < memory:
        raise BadFlags(
            f"--kv-cache-memory-max {largest} is less than the {memory} bytes that the KV cache has at first",
            hint=f"Use --kv-cache-memory-max {memory} or more, or lower --kv-cache-memory.",
        )
    return largest


def _num_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    if 0 < config.swap_space < block_bytes:
        raise BadFlags(
            f"--swap-space {config.swap_space} is less than one KV block of {block_bytes} bytes",
            hint="Give it the size of many blocks, such as 4Gi, or 0 for none.",
        )
    return config.swap_space // block_bytes


def _available_on_gpu(config: EngineConfig, gpu_memory: int, held: int, most: int, activations: int) -> int:
    """Bytes that a GPU has beside weights and the largest step, as an engine finds them on one that is there.

    Args:
        config: How it would be served.
        gpu_memory: Bytes of the GPU.
        held: Bytes of the weights once loaded.
        most: Bytes of them while they are loaded.
        activations: Bytes of the largest step beside weights and KV cache.

    Raises:
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: See `plan_model`.
    """
    available = gpu_memory - _CUDA_CONTEXT
    if most > available:
        available = max(0, available)
        raise NotEnoughMemoryForWeights(
            f"the weights take {most} bytes while they are loaded, and a GPU of {gpu_memory} has {available} for them",
            hint="Plan for a larger GPU"
            + (", or use --dtype bfloat16" if config.dtype == "float32" else "")
            + (", or --quantization w8a16." if config.quantization == "none" else "."),
            needed=most,
            available=available,
        )
    available -= held + activations
    if config.kv_cache_memory is not None and config.kv_cache_memory > available:
        raise NotEnoughMemoryForKV(
            f"the KV cache is to take {config.kv_cache_memory} bytes, but beside weights and activations a GPU of "
            f"{gpu_memory} has {max(0, available)}",
            hint="Plan for a larger GPU, or leave --kv-cache-memory out to use what there is.",
            needed=config.kv_cache_memory,
            available=max(0, available),
        )
    return available
