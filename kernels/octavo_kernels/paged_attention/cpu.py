"""Vectorised torch: decodes of similar length go together, each prefill chunk alone, both through torch's SDPA.

The cache is gathered by token, not by block: a place behind a sequence's end is filled from its own first token,
which the mask gives weight zero. So nothing that a stale slot holds, NaN included, can reach a result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from octavo_kernels.paged_attention.batch import PagedBatch

__all__ = ["paged_attention", "prepare"]

# Decodes share a gather while the longest context is at most this multiple of the shortest.
_MAX_PADDING = 1.5


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Sequences with one token each: a padded batch.

    Attributes:
        rows: [B] rows of q.
        slots: [B * L] cache slots of the context, padded to the longest.
        mask: [B, 1, 1, L] added to the scores; None when all are of one length.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A prefill chunk.

    Attributes:
        start: Its first row of q.
        length: Its rows.
        slots: [L] cache slots of the context, its own tokens included.
        mask: [length, L] added to the scores; None when the chunk is the whole context: plain causal.
    """

    start: int
    length: int
    slots: torch.Tensor
    mask: torch.Tensor | None


def prepare(batch: PagedBatch, device: torch.device) -> list[_Decodes | _Chunk]:
    """Cache slots and masks of each piece of the batch."""
    work: list[_Decodes | _Chunk] = []
    decodes: list[tuple[int, int, int]] = []  # (context, row, sequence)
    start = 0
    for number, (query_len, context_len) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        if query_len == 1:
            decodes.append((context_len, start, number))
        else:
            slots = torch.from_numpy(_slots(batch, number)).to(device)
            mask = None
            if query_len < context_len:
                visible = torch.ones(query_len, context_len, dtype=torch.bool).tril_(context_len - query_len)
                mask = torch.zeros(query_len, context_len).masked_fill_(~visible, -torch.inf).to(device)
            work.append(_Chunk(start, query_len, slots, mask))
        start += query_len
    decodes.sort()
    while decodes:
        shortest = decodes[0][0]
        group = [decode for decode in decodes if decode[0] <= shortest * _MAX_PADDING]
        work.append(_decodes(batch, group, device))
        decodes = decodes[len(group) :]
    return work


def _slots(batch: PagedBatch, number: int) -> np.ndarray:
    """[context] slots of a sequence's context."""
    size, context_len = batch.block_size, batch.context_lens[number]
    blocks = np.asarray(batch.block_tables[number][: -(-context_len // size)], dtype=np.int64)
    slots: np.ndarray = (blocks[:, None] * size + np.arange(size)).reshape(-1)[:context_len]
    return slots


def _decodes(batch: PagedBatch, group: list[tuple[int, int, int]], device: torch.device) -> _Decodes:
    longest = group[-1][0]
    slots = np.empty((len(group), longest), dtype=np.int64)
    for row, (context_len, _, number) in enumerate(group):
        slots[row, :context_len] = own = _slots(batch, number)
        slots[row, context_len:] = own[0]
    mask = None
    if group[0][0] != longest:
        hidden = np.arange(longest) >= np.array([context_len for context_len, _, _ in group])[:, None]
        mask = torch.from_numpy(np.where(hidden, -np.inf, 0).astype(np.float32))[:, None, None].to(device)
    rows = torch.tensor([row for _, row, _ in group], device=device)
    return _Decodes(rows, torch.from_numpy(slots.reshape(-1)).to(device), mask)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    prepared: list[_Decodes | _Chunk],
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """See octavo_kernels.paged_attention."""
    if window is not None or soft_cap is not None:
        raise NotImplementedError("paged attention on a CPU has no sliding window and no soft cap")
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    keys, values = k_cache.view(-1, kv_heads * dim), v_cache.view(-1, kv_heads * dim)
    out = q.new_empty(q.shape)
    for piece in prepared:
        k = keys.index_select(0, piece.slots).to(q.dtype)
        v = values.index_select(0, piece.slots).to(q.dtype)
        mask = None if piece.mask is None else piece.mask.to(q.dtype)
        if isinstance(piece, _Chunk):
            rows = slice(piece.start, piece.start + piece.length)
            # [1, heads, tokens, head_dim]
            attended = scaled_dot_product_attention(
                q[rows].transpose(0, 1)[None],
                k.view(1, -1, kv_heads, dim).transpose(1, 2),
                v.view(1, -1, kv_heads, dim).transpose(1, 2),
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=heads != kv_heads,
            )
            out[rows] = attended[0].transpose(0, 1)
        else:
            size = piece.rows.shape[0]
            # The query heads of one kv head are its queries: [B, kv heads, heads per kv head, head_dim]
            attended = scaled_dot_product_attention(
                q.index_select(0, piece.rows).view(size, kv_heads, heads // kv_heads, dim),
                k.view(size, -1, kv_heads, dim).transpose(1, 2),
                v.view(size, -1, kv_heads, dim).transpose(1, 2),
                attn_mask=mask,
                scale=scale,
            )
            out.index_copy_(0, piece.rows, attended.reshape(size, heads, dim))
    return out
