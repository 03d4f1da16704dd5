"""A row of the KV cache: a token's keys or values of one kv head.

In int8 and float8_e4m3fn a row is as many numbers of eight bits and, in the four bytes behind them, the float32 that they
are multiplied by. So whoever copies, swaps or shares blocks takes the scales along and need not know of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from octavo_kernels.native.arrays import Array

__all__ = ["SCALE_BYTES", "has_scales", "head_dim_of", "restored", "row_width", "stored"]

SCALE_BYTES = 4

_LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""The types that have a scale, and to which number the largest of a row is brought."""


def _name(dtype: torch.dtype | np.dtype[Any]) -> str:
    return str(dtype).removeprefix("torch.")


def has_scales(dtype: torch.dtype | np.dtype[Any]) -> bool:
    """Whether a row of this type has a scale."""
    return _name(dtype) in _LARGEST


def row_width(head_dim: int, dtype: torch.dtype | np.dtype[Any]) -> int:
    """Numbers in a row of the cache."""
    return head_dim + SCALE_BYTES if has_scales(dtype) else head_dim


def head_dim_of(cache: torch.Tensor | Array) -> int:
    """Width of the heads in a cache of [..., row]."""
    width: int = cache.shape[-1]
    return width - SCALE_BYTES if has_scales(cache.dtype) else width


def stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows as the cache holds them.

    Args:
        x: [..., head_dim]. In eight bits the scale of a row that holds a number which is not finite is NaN.
        dtype: Of the cache.

    Returns:
        [..., row_width].
    """
    import torch

    if not has_scales(dtype):
        return x.to(dtype)
    most = _LARGEST[_name(dtype)]
    largest = x.float().abs().amax(-1, keepdim=True)
    scales = torch.where(largest.isfinite(), largest / most, torch.nan)
    steps = torch.where(scales > 0, x / scales, 0).clamp(-most, most)
    if dtype == torch.int8:
        steps = steps.round()
    return torch.cat((steps.to(dtype), scales.view(dtype)), dim=-1)


def restored(rows: torch.Tensor) -> torch.Tensor:
    """The way back from `stored`, in float32."""
    import torch

    if not has_scales(rows.dtype):
        return rows.float()
    dim = head_dim_of(rows)
    return rows[..., :dim].float() * rows[..., dim:].contiguous().view(torch.float32)
