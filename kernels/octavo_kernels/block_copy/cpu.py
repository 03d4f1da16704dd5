"""Neighbours that move to neighbours go as one copy, all layers at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

__all__ = ["copy_blocks"]


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """See octavo_kernels.block_copy."""
    for read, written, count in _stretches(source_blocks, target_blocks):
        target[:, :, written : written + count].copy_(source[:, :, read : read + count])


def _stretches(source_blocks: Sequence[int], target_blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First block read, first block written, and how many follow one another in both."""
    start = 0
    for end in range(1, len(source_blocks) + 1):
        if end < len(source_blocks) and (
            source_blocks[end] == source_blocks[end - 1] + 1 and target_blocks[end] == target_blocks[end - 1] + 1
        ):
            continue
        yield source_blocks[start], target_blocks[start], end - start
        start = end
