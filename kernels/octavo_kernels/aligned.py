"""Rows that begin where a GPU reads 16 bytes at once, whatever their width is.

[ row 0: width numbers │ - ][ row 1 │ - ] …      up to 15 numbers behind each row are nobody's: a kernel may read
                                                 and write them, and nobody may mind what they are
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["aligned_rows", "in_aligned_rows", "memory_width"]

_UNIT = 16
"""What Triton must know a stride to be a multiple of, in numbers; kernels have it written out."""


def memory_width(width: int) -> int:
    """From one row's first number to the next one's."""
    return -(-width // _UNIT) * _UNIT


def aligned_rows(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Memory of [rows, width], not initialised, of the type of `like` and beside it."""
    return like.new_empty((rows, memory_width(width)))[:, :width]


def in_aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """The same, [rows, width]: itself where its rows begin so, otherwise a copy."""
    rows, width = x.shape
    stride = x.stride(0)
    end = x.storage_offset() + (rows - 1) * stride + memory_width(width)
    if stride % _UNIT == 0 and stride >= width and end * x.element_size() <= x.untyped_storage().nbytes():
        return x
    return aligned_rows(rows, width, x).copy_(x)
