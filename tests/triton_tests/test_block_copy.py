from __future__ import annotations

import pytest
import torch

from octavo_kernels.block_copy import reference, triton
from octavo_kernels.paged_attention.rows import stored
from octavo_kernels.testing import Guards, scales_behind_blocks


def pool(blocks: int, dtype: torch.dtype, shape: tuple[int, ...] = (4, 2, 5)) -> torch.Tensor:
    numbers = torch.arange(3 * 2 * blocks * torch.Size(shape).numel())
    return numbers.to(dtype).view(3, 2, blocks, *shape)


COPIES = {
    "one": ([3], [6]),
    "none": ([], []),
    "neighbours": ([0, 1, 2], [5, 6, 7]),
    "one block to many": ([4, 4, 4], [0, 2, 8]),
    "any order": ([9, 1, 4, 5, 7], [2, 3, 8, 6, 0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("sources", "targets"), COPIES.values(), ids=COPIES.keys())
def test_copy_blocks(dtype: torch.dtype, sources: list[int], targets: list[int], guards: Guards) -> None:
    """Copy-on-write within the pool, then to the host's pool and back: one kernel does all three."""
    device, host = guards.place(pool(10, dtype)), guards.place(-pool(12, dtype))
    for source, target in ((device, device), (device, host), (host, device)):
        expected = target.clone()
        reference.copy_blocks(source.clone(), expected, sources, targets)
        triton.copy_blocks(source, target, sources, targets)
        assert torch.equal(target, expected)


@pytest.mark.parametrize("shape", [(16, 3, 64), (8, 1, 20), (8, 1, 1), (1, 1, 3)], ids=str)
def test_copy_blocks_sizes(shape: tuple[int, int, int], guards: Guards) -> None:
    for dtype in (torch.float16, torch.int8):
        source, target = guards.place(pool(3, dtype, shape)), guards.place(-pool(2, dtype, shape))
        expected = target.clone()
        reference.copy_blocks(source, expected, [2], [0])
        triton.copy_blocks(source, target, [2], [0])
        assert torch.equal(target, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_copy_blocks_takes_scales_along(dtype: torch.dtype, generator: torch.Generator) -> None:
    rows = stored(torch.randn(3, 2, 4, 8, 2, 64, generator=generator), dtype)
    source = torch.stack([scales_behind_blocks(plane) for plane in rows.flatten(0, 1)]).view(rows.shape)
    target = torch.zeros_like(source)
    triton.copy_blocks(source, target, [2, 0], [1, 3])
    copied = target.view(torch.int8)[:, :, [1, 3]]
    assert torch.equal(copied, source.view(torch.int8)[:, :, [2, 0]])
    assert copied.any(dim=(0, 1, 3, 4, 5)).all()


def test_copy_blocks_of_poisoned_memory() -> None:
    # A block that is half written is copied as it is: bit for bit, also what is not a number.
    source, target = pool(4, torch.float32), pool(4, torch.float32)
    source[:, :, 1, 2:] = torch.nan
    triton.copy_blocks(source, target, [1], [0])
    assert torch.equal(source[:, :, 1].view(torch.int32), target[:, :, 0].view(torch.int32))


def test_copy_pairs_padding_does_nothing(guards: Guards) -> None:
    # A captured graph copies as many pairs every time.
    source, target = guards.place(pool(4, torch.float32)), guards.place(-pool(4, torch.float32))
    expected = target.clone()
    reference.copy_blocks(source, expected, [2], [1])
    triton.copy_pairs(source, target, guards.place(torch.tensor([[-1, -1], [2, 1], [-1, -1]])))
    assert torch.equal(target, expected)


def test_copy_pairs_gathers_into_a_buffer_and_scatters_from_it(guards: Guards) -> None:
    # A swap in two halves: scattered blocks to one stretch that a single copy moves to the host, and back.
    device, stretch = guards.place(pool(10, torch.float16)), guards.place(pool(3, torch.float16))
    before = device.clone()
    triton.copy_pairs(device, stretch, torch.tensor([[7, 0], [2, 1], [5, 2]]))
    assert torch.equal(stretch, before[:, :, [7, 2, 5]])
    triton.copy_pairs(stretch, device, torch.tensor([[0, 1], [1, 3], [2, 9]]))
    assert torch.equal(device[:, :, [1, 3, 9]], stretch)


def test_copy_blocks_behind_two_to_the_31() -> None:
    # Offsets into a large pool need 64 bits. Memory of `empty` that nobody touches takes no room.
    blocks = 2**31 // 4096 + 3
    source, target = (torch.empty(1, 2, count, 16, 4, 64, dtype=torch.int8) for count in (blocks, 2))
    source[:, :, -1] = 7
    triton.copy_blocks(source, target, [blocks - 1], [1])
    assert (target[:, :, 1] == 7).all()


def test_copy_blocks_of_different_numbers() -> None:
    with pytest.raises(ValueError, match="2 blocks to read, 1 to write"):
        triton.copy_blocks(pool(3, torch.float32), pool(3, torch.float32), [0, 1], [2])
