"""Whether weights and KV cache fit into the memory that there is, and what malloc does with what is freed."""

from __future__ import annotations

import ctypes

from octavo_runtime.errors import NotEnoughMemoryForKV, NotEnoughMemoryForWeights

__all__ = [
    "keep_freed_memory",
    "require_room_for_kv",
    "require_room_for_weights",
    "require_room_on_gpu",
    "return_freed_memory",
]

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def require_room_for_weights(needed: int, available: int, dtype: str, device: str) -> None:
    """Checks before a byte is read.

    Args:
        needed: Bytes that the weights take.
        available: Bytes that can still be taken.
        dtype: What they are in, for the message.
        device: Where they go, for the message.

    Raises:
        NotEnoughMemoryForWeights: With what is needed and what there is.
    """
    if needed > available:
        raise NotEnoughMemoryForWeights(
            f"the weights take {needed} bytes in {dtype}, and {available} are available on {device}",
            hint=("Use a larger GPU" if device == "cuda" else "Give the container more memory")
            + (", or use --dtype bfloat16, which halves them" if dtype == "float32" else "")
            + (", or --quantization w8a16." if device == "cuda" and dtype in {"float16", "bfloat16"} else "."),
            needed=needed,
            available=available,
        )


def require_room_for_kv(memory: int, swap: int, available: int) -> None:
    """Checks before the KV cache is taken, with the weights loaded.

    Args:
        memory: Bytes for the device's blocks.
        swap: Bytes for the host's, where both lie in one memory.
        available: Bytes that can still be taken.

    Raises:
        NotEnoughMemoryForKV: Fewer are left.
    """
    if memory + swap > available:
        raise NotEnoughMemoryForKV(
            f"the KV cache is to take {memory} bytes{f' and the swap space {swap}' if swap else ''}, but with the "
            f"weights loaded {available} are available",
            hint="Give the container more memory, or use "
            f"{'less --swap-space, or ' if swap else ''}--kv-cache-memory {max(0, (available - swap) * 9 // 10)} or less.",
            needed=memory + swap,
            available=available,
        )


def require_room_on_gpu(memory: int, available: int, block: int) -> None:
    """Checks before the KV cache is taken on a GPU, with the weights loaded and the largest step measured.

    Args:
        memory: Bytes for the KV cache.
        available: Bytes that are left beside weights and that step.
        block: Bytes of a KV block.

    Raises:
        NotEnoughMemoryForKV: Fewer are left.
    """
    if memory > available:
        blocks = max(0, available) // block
        raise NotEnoughMemoryForKV(
            f"the KV cache is to take {memory} bytes, but beside the weights and what the largest step needs "
            f"{max(0, available)} are left on the GPU",
            hint=f"Use --kv-cache-memory {blocks * block} or less."
            if blocks
            else "Use a larger GPU, or a smaller --max-num-batched-tokens, by which a step's own memory goes.",
            needed=memory,
            available=max(0, available),
        )


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
