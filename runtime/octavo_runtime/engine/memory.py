"""Memory of the device: whether weights and KV cache fit, and how much the KV cache gets."""

from __future__ import annotations

import ctypes

import torch

from octavo_runtime.domain import EngineConfig
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.errors import NotEnoughMemoryForKV, NotEnoughMemoryForWeights
from octavo_runtime.loading.plan import DEFAULT_CPU_KV_MEMORY

__all__ = [
    "free_memory",
    "keep_freed_memory",
    "kv_memory",
    "require_room_for_weights",
    "return_freed_memory",
]

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def require_room_for_weights(needed: int, dtype: str, device: torch.device) -> None:
    """Checks before a byte is read.

    Raises:
        NotEnoughMemoryForWeights: With what is needed and what there is.
    """
    available = free_memory(device)
    if needed > available:
        raise NotEnoughMemoryForWeights(
            f"the weights take {needed} bytes in {dtype}, and {available} are available on {device.type}",
            hint=("Use a larger GPU" if device.type == "cuda" else "Give the container more memory")
            + (", or use --dtype bfloat16, which halves them" if dtype == "float32" else "")
            + (", or --quantization w8a16." if device.type == "cuda" and dtype in {"float16", "bfloat16"} else "."),
            needed=needed,
            available=available,
        )


def kv_memory(config: EngineConfig, device: torch.device, activations: int) -> int:
    """Bytes for the KV cache, with the weights loaded.

    Args:
        config: `kv_cache_memory`, or on a GPU the share of `gpu_memory_utilization`.
        device: Where it will lie.
        activations: Bytes that the largest step needs beside weights and KV cache.

    Raises:
        NotEnoughMemoryForKV: Fewer are left than were asked for.
    """
    available = free_memory(device) - activations
    if device.type == "cuda" and config.kv_cache_memory is None:
        total = torch.cuda.mem_get_info(device)[1]
        return max(0, available - int(total * (1 - config.gpu_memory_utilization)))
    memory = config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY
    swap = config.swap_space if device.type == "cpu" else 0  # both tiers lie in one memory
    if memory + swap > available:
        raise NotEnoughMemoryForKV(
            f"the KV cache is to take {memory} bytes{f' and the swap space {swap}' if swap else ''}, but with the "
            f"weights loaded {available} are available",
            hint="Give the container more memory, or use "
            f"{'less --swap-space, or ' if swap else ''}--kv-cache-memory {max(0, (available - swap) * 9 // 10)} or less.",
            needed=memory + swap,
            available=available,
        )
    return memory


def return_freed_memory() -> None:
    """Makes malloc give what is freed back to the machine at once, if it is large.

    By itself it keeps pieces of up to 32 MiB once such a piece has been freed: loading would leave behind as much memory
    as it frees, tensor by tensor, while it packs weights.
    """
    _mallopt(mmap_threshold=1 << 17, trim_threshold=1 << 17)


def keep_freed_memory() -> None:
    """Makes malloc keep what is freed: each step takes the same again, and fresh pages cost more than the step's own."""
    _mallopt(mmap_threshold=1 << 25, trim_threshold=1 << 26)


def _mallopt(*, mmap_threshold: int, trim_threshold: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another libc decides for itself
        mallopt(_M_MMAP_THRESHOLD, mmap_threshold)
        mallopt(_M_TRIM_THRESHOLD, trim_threshold)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for itself is free
        return torch.cuda.mem_get_info(device)[0]
    return available_memory()
