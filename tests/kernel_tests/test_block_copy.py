from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.block_copy import copy_blocks, native, reference
from octavo_kernels.native.arrays import from_tensor

COPIES = {
    "one": ([3], [6]),
    "none": ([], []),
    "neighbours": ([0, 1, 2], [5, 6, 7]),
    "neighbours downwards": ([2, 1, 0], [7, 6, 5]),
    "neighbours in the source alone": ([1, 2, 3], [8, 6, 4]),
    "neighbours in the target alone": ([8, 2, 5], [0, 1, 3]),
    "one block to many": ([4, 4, 4], [0, 2, 8]),
    "two stretches": ([0, 1, 4, 5, 7], [2, 3, 8, 6, 9]),
}


def pool(blocks: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(3, 2, blocks, 4, 2, 5, generator=generator).to(dtype)


def copy_natively(source: torch.Tensor, target: torch.Tensor, *blocks: list[int]) -> None:
    native.copy_blocks(from_tensor(source), from_tensor(target), *blocks)


@pytest.mark.parametrize("form", [reference.copy_blocks, copy_natively], ids=["reference", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("sources", "targets"), COPIES.values(), ids=COPIES.keys())
def test_copy_blocks(
    form: Callable[..., None], dtype: torch.dtype, sources: list[int], targets: list[int], generator: torch.Generator
) -> None:
    device, host = pool(10, dtype, generator), pool(12, dtype, generator)
    for source, target in ((device, device), (device, host), (host, device)):
        before = source.clone()
        expected = target.clone()
        for read, written in zip(sources, targets, strict=True):
            expected[:, :, written] = before[:, :, read]
        form(source, target, sources, targets)
        assert torch.equal(target, expected)


def test_copy_blocks_of_poisoned_memory(generator: torch.Generator) -> None:
    # A block that is half written is copied as it is: bit for bit, also what is not a number.
    source, target = pool(4, torch.float32, generator), pool(4, torch.float32, generator)
    source[:, :, 1, 2:] = torch.nan
    copy_blocks(source, target, [1], [0])
    assert torch.equal(source[:, :, 1].view(torch.int32), target[:, :, 0].view(torch.int32))
