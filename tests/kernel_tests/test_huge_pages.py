from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from octavo_kernels.native.huge_pages import HugeZeros

BYTE = np.dtype(np.uint8)
PAGE = 2 << 20


def test_array_of_zeros_side_by_side() -> None:
    zeros = HugeZeros(chunk=PAGE)
    first = zeros.array((3, 5), np.dtype(np.float32))
    second = zeros.array((2, 7, 2), BYTE)
    assert first.shape == (3, 5)
    assert first.dtype == np.float32
    assert second.shape == (2, 7, 2)
    assert first.ctypes.data % PAGE == 0
    assert second.ctypes.data == first.ctypes.data + 128
    assert not first.any()
    first[:] = 1
    assert not second.any()


@pytest.mark.parametrize("size", [PAGE - 128, PAGE, 3 * PAGE])
def test_array_that_does_not_fit(size: int) -> None:
    zeros = HugeZeros(chunk=PAGE)
    small, large = zeros.array((129,), BYTE), zeros.array((size,), BYTE)
    large[:] = 1
    assert large.ctypes.data % PAGE == 0
    assert not small.any()


def test_array_outlives_those_beside_it() -> None:
    zeros = HugeZeros(chunk=PAGE)
    first, second = zeros.array((PAGE // 2,), BYTE), zeros.array((PAGE // 2,), BYTE)
    chunk = first
    while isinstance(chunk.base, np.ndarray):
        chunk = chunk.base
    gone = weakref.ref(chunk)
    del chunk, first
    zeros.array((PAGE,), BYTE)
    gc.collect()
    assert gone() is not None
    assert not second.any()
    del second
    gc.collect()
    assert gone() is None
