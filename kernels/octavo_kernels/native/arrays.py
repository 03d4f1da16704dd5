"""Numpy arrays, which the native forms take, and torch's tensors on the same memory, for whoever has torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["BFLOAT16", "Array", "cast", "dtype_name", "dtype_of", "from_tensor", "to_tensor"]

Array = np.ndarray[Any, Any]

BFLOAT16: np.dtype[Any] = np.dtype([("bfloat16", np.uint16)])
"""numpy knows no bfloat16: a record of 16 bits, which can be moved and compared, but not calculated with."""


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of this name: `bfloat16`, or one of numpy's."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The way back from `dtype_of`."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The same numbers in another floating type, rounded to the nearest; the array itself where it has that type."""
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes an infinity
        if dtype != BFLOAT16:
            return array.astype(dtype, copy=False)
        wide = array.astype(np.float32)
    bits = wide.view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)  # of two equally near the even one
    return np.where(np.isnan(wide), bits >> 16 | 0x40, rounded >> 16).astype(np.uint16).view(BFLOAT16)


def from_tensor(tensor: torch.Tensor) -> Array:
    """The tensor's own memory as an array; the tensor is on the CPU."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    """The array's own memory as a tensor."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
