from __future__ import annotations

import pytest
import torch

from octavo_kernels.aligned import aligned_rows, in_aligned_rows, memory_width


@pytest.mark.parametrize(("width", "memory"), [(1, 16), (16, 16), (17, 32), (151_669, 151_680), (151_936, 151_936)])
def test_memory_width(width: int, memory: int) -> None:
    assert memory_width(width) == memory


def test_aligned_rows() -> None:
    rows = aligned_rows(3, 21, torch.zeros(0, dtype=torch.float16))
    assert (rows.shape, rows.stride(), rows.dtype) == ((3, 21), (32, 1), torch.float16)
    assert rows.untyped_storage().nbytes() == 3 * 32 * 2, "the last row's memory is there, too"


def test_in_aligned_rows_that_are() -> None:
    for rows in (
        aligned_rows(3, 21, torch.zeros(0)),
        torch.zeros(4, 32),
        torch.zeros(0, 21),
        torch.zeros(5, 48)[1:, :32],
    ):
        assert in_aligned_rows(rows) is rows or not len(rows)


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(63.0).view(3, 21),
        torch.arange(21.0).view(1, 21),
        torch.arange(85.0).as_strided((3, 21), (32, 1)),  # the last row ends where the memory does
        torch.arange(21.0).expand(3, 21),
        torch.arange(200.0).view(5, 40)[:, :21],
    ],
    ids=["packed", "one", "cut off", "one for all", "of another width"],
)
def test_in_aligned_rows_that_are_not(rows: torch.Tensor) -> None:
    got = in_aligned_rows(rows)
    assert got.stride() == (32, 1)
    assert torch.equal(got, rows)
