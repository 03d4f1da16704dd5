"""Neighbours that move to neighbours go as one copy, all layers at once: arrays on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from octavo_kernels.native.arrays import Array

__all__ = ["copy_blocks", "stretches"]


def copy_blocks(source: Array, target: Array, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
    """See octavo_kernels.block_copy."""
    read_bytes, written_bytes = source.view(np.uint8), target.view(np.uint8)
    for read, written, count in stretches(source_blocks, target_blocks):
        written_bytes[:, :, written : written + count] = read_bytes[:, :, read : read + count]


def stretches(source_blocks: Sequence[int], target_blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First block read, first block written, and how many follow one another in both."""
    start = 0
    for end in range(1, len(source_blocks) + 1):
        if end < len(source_blocks) and (
            source_blocks[end] == source_blocks[end - 1] + 1 and target_blocks[end] == target_blocks[end - 1] + 1
        ):
            continue
        yield source_blocks[start], target_blocks[start], end - start
        start = end
