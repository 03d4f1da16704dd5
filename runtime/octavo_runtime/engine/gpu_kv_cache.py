"""The memory of the KV cache for a GPU's kernels: blocks on the GPU, and pinned ones on the host."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from octavo_kernels.block_copy import copy_blocks
from octavo_kernels.paged_attention.rows import row_width
from octavo_runtime.domain import BlockCopy
from octavo_runtime.engine.kv_cache import make_copies, pool_shape
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
        host_shape = pool_shape(spec, num_host_blocks, block_size, row)
        self.host = torch.empty(host_shape, dtype=dtype, pin_memory=device.type == "cuda" and num_host_blocks > 0)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Queues copies as if one after the other."""
        make_copies(copies, self.device, self.host, copy_blocks)
