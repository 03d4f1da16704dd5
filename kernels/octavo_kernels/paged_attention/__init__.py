"""Attention of a mixed batch of prefill chunks and decodes over a paged KV cache. README.md has maths and layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo_kernels.dispatch import form
from octavo_kernels.paged_attention.batch import PagedBatch

if TYPE_CHECKING:
    import torch

__all__ = ["PagedBatch", "paged_attention", "prepare", "prepare_rows"]


def prepare(batch: PagedBatch, device: torch.device) -> Any:
    """What the attention of one step needs and all its layers share; its type is the form's own."""
    return form("paged_attention", device.type).prepare(batch, device)


def prepare_rows(block_tables: torch.Tensor, context_lens: torch.Tensor, block_size: int) -> Any:
    """As `prepare`, of a batch that the device alone knows: each sequence has one token.

    The forms that run a decoder's operations one by one on a GPU have it. Nothing of it waits for the device there, so
    that it can be part of a graph.

    Args:
        block_tables: [sequences, longest], int32. What lies behind a sequence's own blocks may be anything.
        context_lens: [sequences], int32: tokens with KV, this step's included; 0: a row of nobody, whose result is 0.
        block_size: Tokens per block.
    """
    return form("paged_attention", context_lens.device.type).prepare_rows(block_tables, context_lens, block_size)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    prepared: Any,
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """Causal grouped-query attention: each token sees its sequence's tokens up to itself.

    The keys and values of the step's own tokens are in the cache already.

    Args:
        q: [tokens, q heads, head_dim], sequence after sequence in the batch's order.
        k_cache: [blocks, block size, kv heads, row] (rows.py). Slots that no sequence's context covers may hold anything,
            NaN included.
        v_cache: The same for values.
        prepared: From `prepare`, of the batch.
        scale: Multiplies the scores, usually head_dim ** -0.5.
        window: Tokens that each sees, itself included; None: all up to itself. Blocks before it are not read.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap); None: they stay as they are.
        batch_invariant: Whether a token's result must have the same bits in any batch and chunk. In Triton alone, whose
            faster way has not.

    Returns:
        [tokens, q heads, head_dim].

    Raises:
        NotImplementedError: The form has neither windows nor soft caps: a CPU's.
    """
    option = {"batch_invariant": True} if batch_invariant else {}
    result: torch.Tensor = form("paged_attention", q.device.type).paged_attention(
        q, k_cache, v_cache, prepared, scale, window, soft_cap, **option
    )
    return result
