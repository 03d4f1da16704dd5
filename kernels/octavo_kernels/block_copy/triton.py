"""All copies of a call in one launch, a program for each block, layer, and keys or values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu import Configuration, Shipped, launch

__all__ = ["copy_blocks", "copy_pairs", "shipped"]


@triton.jit
def copy_pairs_kernel(
    source_ptr, target_ptr, pairs_ptr, source_blocks, target_blocks, PIECE: tl.constexpr, BLOCK: tl.constexpr
):
    # Both pools are [planes, blocks, PIECE]: a plane is one layer's keys or values, a piece one block of it.
    pair = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64)
    read = tl.load(pairs_ptr + 2 * pair)
    written = tl.load(pairs_ptr + 2 * pair + 1)
    if read < 0:
        return
    source_ptr += (plane * source_blocks + read) * PIECE
    target_ptr += (plane * target_blocks + written) * PIECE
    for start in range(0, PIECE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(target_ptr + at, tl.load(source_ptr + at, mask=at < PIECE), mask=at < PIECE)


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """See octavo_kernels.block_copy."""
    if len(source_blocks) != len(target_blocks):
        raise ValueError(f"{len(source_blocks)} blocks to read, {len(target_blocks)} to write")
    device = source.device if source.is_cuda else target.device
    pairs = torch.tensor(
        list(zip(source_blocks, target_blocks, strict=True)), dtype=torch.int64, pin_memory=device.type == "cuda"
    )
    copy_pairs(source, target, pairs.view(-1, 2).to(device, non_blocking=True))


def copy_pairs(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """As copy_blocks, the blocks' numbers on the device: nothing waits for the host, and a CUDA graph can hold it.

    Args:
        source: As in copy_blocks, contiguous; the pool of the host must be pinned.
        target: Likewise.
        pairs: [pairs, 2], int64, contiguous, on the GPU: block to read, block to write; a pair of -1 does nothing.
    """
    assert all(tensor.is_contiguous() for tensor in (source, target, pairs))
    planes = source.shape[0] * 2
    source_words, target_words = (_words(pool) for pool in (source, target))
    launch(
        copy_pairs_kernel,
        (len(pairs), planes),
        configuration(source_words.shape[-1]),
        source_words,
        target_words,
        pairs,
        source.shape[2],
        target.shape[2],
    )


def configuration(piece: int) -> Configuration:
    """For pieces of so many words: a thread has four loads of 16 bytes under way."""
    block = min(triton.next_power_of_2(piece), 2048)
    return Configuration({"PIECE": piece, "BLOCK": block}, num_warps=min(max(block // 128, 1), 4))


def shipped() -> list[Shipped]:
    """Blocks of 16 tokens of SmolLM2-135M and of a model with eight kv heads of 128."""
    return [
        Shipped(
            name=f"{piece * 4 // 1024} KiB",
            kernel=copy_pairs_kernel,
            signature={
                "source_ptr": "*i32",
                "target_ptr": "*i32",
                "pairs_ptr": "*i64",
                "source_blocks": "i32",
                "target_blocks": "i32",
            },
            configuration=configuration(piece),
            programs=8,
        )
        for piece in (1536, 8192)
    ]


def _words(pool: torch.Tensor) -> torch.Tensor:
    """[layers * 2, blocks, words of 4 bytes (smaller where a block is no multiple of 4 bytes)]."""
    pieces = pool.view(-1, pool.shape[2], pool.shape[3:].numel())
    size = pieces.shape[-1] * pieces.element_size()
    return pieces.view(torch.int32 if size % 4 == 0 else torch.int16 if size % 2 == 0 else torch.int8)
