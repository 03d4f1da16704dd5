"""A row of the KV cache: a token's keys or values of one kv head.

In int8 and float8_e4m3fn a row is as many numbers of eight bits and, in the four bytes behind them, the float32 that they
are multiplied by. So whoever copies, swaps or shares blocks takes the scales along and need not know of them.
"""

from __future__ import annotations

import torch

__all__ = ["LARGEST", "SCALE_BYTES", "head_dim_of", "restored", "row_width", "stored"]

SCALE_BYTES = 4

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The types that have a scale, and to which number the largest of a row is brought."""


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Numbers in a row of the cache."""
    return head_dim + SCALE_BYTES if dtype in LARGEST else head_dim


def head_dim_of(cache: torch.Tensor) -> int:
    """Width of the heads in a cache of [..., row]."""
    return cache.shape[-1] - SCALE_BYTES if cache.dtype in LARGEST else cache.shape[-1]


def stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows as the cache holds them.

    Args:
        x: [..., head_dim]. In eight bits the scale of a row that holds a number which is not finite is NaN.
        dtype: Of the cache.

    Returns:
        [..., row_width].
    """
    if dtype not in LARGEST:
        return x.to(dtype)
    most = LARGEST[dtype]
    largest = x.float().abs().amax(-1, keepdim=True)
    scales = torch.where(largest.isfinite(), largest / most, torch.nan)
    steps = torch.where(scales > 0, x / scales, 0).clamp(-most, most)
    if dtype == torch.int8:
        steps = steps.round()
    return torch.cat((steps.to(dtype), scales.view(dtype)), dim=-1)


def restored(rows: torch.Tensor) -> torch.Tensor:
    """The way back from `stored`, in float32."""
    if rows.dtype not in LARGEST:
        return rows.float()
    dim = head_dim_of(rows)
    return rows[..., :dim].float() * rows[..., dim:].contiguous().view(torch.float32)
