"""Memory in pages of 2 MiB, where the kernel has them: who reads much of it looks up fewer pages."""

from __future__ import annotations

import contextlib
import math
import mmap
from threading import Lock
from typing import Any

import numpy as np

from octavo_kernels.native.arrays import Array

__all__ = ["HugeZeros", "prefer_huge_pages"]

_PAGE = 2 << 20
_LINE = 128  # where an array begins: two lines of a cache, which some processors fetch together


def prefer_huge_pages(memory: mmap.mmap, first: int, end: int) -> None:
    """Asks for pages of 2 MiB for a stretch of a mapping, in bytes: a kernel without them has small ones.

    No huge page is taken that would reach beyond the stretch.
    """
    first = first // mmap.PAGESIZE * mmap.PAGESIZE
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, first, end - first)


class HugeZeros:
    """Arrays of zeros side by side in huge pages: most of a model's weights are smaller than one.

        [ array │ array │ array │ not used yet: takes no memory ]      a chunk, from one huge page's beginning on

    A chunk is given back when nobody has an array of it.
    """

    def __init__(self, chunk: int = 64 << 20) -> None:
        """Takes no memory yet.

        Args:
            chunk: Bytes.
        """
        self._chunk = chunk
        self._lock = Lock()
        self._left = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Zeros of this shape and type."""
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // _LINE) * _LINE
        with self._lock:
            if taken > len(self._left):
                self._left = _zeros(max(taken, self._chunk))
            array, self._left = self._left[:size], self._left[taken:]
        return array.view(dtype).reshape(shape)


def _zeros(size: int) -> Array:
    memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    prefer_huge_pages(memory, 0, len(memory))
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % _PAGE
    return whole[first : first + size]
