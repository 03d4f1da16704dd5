"""Attention of a mixed batch of prefill chunks and decodes over a paged KV cache. README.md has maths and layout."""

from __future__ import annotations

from typing import Any

import torch

from octavo_kernels.dispatch import form
from octavo_kernels.paged_attention.batch import PagedBatch

__all__ = ["PagedBatch", "paged_attention", "prepare"]


def prepare(batch: PagedBatch, device: torch.device) -> Any:
    """What the attention of one step needs and all its layers share; its type is the form's own."""
    return form("paged_attention", device.type).prepare(batch, device)


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, prepared: Any, scale: float
) -> torch.Tensor:
    """Causal grouped-query attention: each token sees its sequence's tokens up to itself.

    The keys and values of the step's own tokens are in the cache already.

    Args:
        q: [tokens, q heads, head_dim], sequence after sequence in the batch's order.
        k_cache: [blocks, block size, kv heads, head_dim]. Slots that no sequence's context covers may hold anything,
            NaN included.
        v_cache: The same for values.
        prepared: From `prepare`, of the batch.
        scale: Multiplies the scores, usually head_dim ** -0.5.

    Returns:
        [tokens, q heads, head_dim].
    """
    result: torch.Tensor = form("paged_attention", q.device.type).paged_attention(q, k_cache, v_cache, prepared, scale)
    return result
