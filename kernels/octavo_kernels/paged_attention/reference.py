"""The truth: one sequence after the other, softmax written out in float32."""

from __future__ import annotations

import torch

from octavo_kernels.paged_attention.batch import PagedBatch
from octavo_kernels.paged_attention.rows import restored

__all__ = ["paged_attention", "prepare", "prepare_rows"]


def prepare(batch: PagedBatch, device: torch.device) -> PagedBatch:
    """Nothing to prepare."""
    del device
    return batch


def prepare_rows(block_tables: torch.Tensor, context_lens: torch.Tensor, block_size: int) -> PagedBatch:
    """See octavo_kernels.paged_attention. It reads what is on the device."""
    return PagedBatch(block_size, (1,) * len(context_lens), tuple(context_lens.tolist()), tuple(block_tables.tolist()))


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    prepared: PagedBatch,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """See octavo_kernels.paged_attention."""
    out = q.new_zeros(q.shape)
    group = q.shape[1] // k_cache.shape[2]  # query heads per kv head
    start = 0
    for query_len, context_len, table in zip(
        prepared.query_lens, prepared.context_lens, prepared.block_tables, strict=True
    ):
        if context_len == 0:
            start += query_len
            continue
        blocks = torch.tensor(table[: -(-context_len // prepared.block_size)], device=q.device)
        # [context, kv heads, head_dim] -> [context, q heads, head_dim]
        k = restored(k_cache[blocks].flatten(0, 1)[:context_len]).repeat_interleave(group, dim=1)
        v = restored(v_cache[blocks].flatten(0, 1)[:context_len]).repeat_interleave(group, dim=1)
        rows = q[start : start + query_len].float()
        scores = torch.einsum("qhd,khd->hqk", rows, k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        position = torch.arange(context_len - query_len, context_len, device=q.device)
        distance = position[:, None] - torch.arange(context_len, device=q.device)[None, :]  # [query, context]
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        if window is not None:  # what no row sees may be anything
            v[hidden.all(dim=0)] = 0
        out[start : start + query_len] = torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)
        start += query_len
    return out
