"""The memory of the KV cache: one allocation for all layers."""

from __future__ import annotations

import torch

from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["allocate_kv_cache"]


def allocate_kv_cache(
    spec: DecoderSpec, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[layers, 2, blocks, block size, kv heads, head_dim], keys before values.

    It is not initialised: a slot is read only after it was written. So memory of a CPU is mapped when a request first
    needs it, and an idle engine does not hold it.
    """
    return torch.empty(
        (spec.num_layers, 2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim), dtype=dtype, device=device
    )
