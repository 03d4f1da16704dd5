"""The memory of the KV cache for a GPU's kernels: blocks on the GPU, and pinned ones on the host."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from octavo_kernels.block_copy import copy_blocks
from octavo_kernels.paged_attention.rows import row_width
from octavo_runtime.domain import BlockCopy
from octavo_runtime.engine.kv_cache import make_copies, pool_shape
from octavo_runtime.errors import NotEnoughMemoryForKV
from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["GpuKVPool"]


class GpuKVPool:
    """Both tiers. It keeps its size.

    Args:
        spec: The model.
        num_blocks: Blocks on the GPU.
        num_host_blocks: Blocks on the host.
        block_size: Tokens per block.
        dtype: Of keys and values.
        device: The GPU; or the CPU, where Triton interprets its kernels.

    Raises:
        NotEnoughMemoryForKV: The host does not give the memory for its blocks.

    Attributes:
        device: The GPU's blocks.
        host: The host's.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        row = row_width(spec.head_dim, dtype)
        self.device = torch.empty(pool_shape(spec, num_blocks, block_size, row), dtype=dtype, device=device)
        self.host = torch.empty(pool_shape(spec, num_host_blocks, block_size, row), dtype=dtype)
        if device.type == "cuda" and num_host_blocks > 0:
            lock_pages(self.host)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Queues copies as if one after the other."""
        make_copies(copies, self.device, self.host, copy_blocks)


def lock_pages(memory: torch.Tensor) -> None:
    """Lets the GPU reach memory of the host, until the tensor goes.

    Of `pin_memory=True` torch makes the next power of two: of 33 GiB, 64.

    Raises:
        NotEnoughMemoryForKV: The host does not let so much be locked.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if status:
        raise NotEnoughMemoryForKV(
            f"the host's {memory.nbytes} bytes for KV blocks cannot be locked in its memory: CUDA error {status}",
            hint="Give the container more memory, or use less --swap-space.",
            needed=memory.nbytes,
        )
    weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr()).atexit = False
