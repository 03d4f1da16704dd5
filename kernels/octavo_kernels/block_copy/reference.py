"""The truth: one piece of contiguous memory after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["copy_blocks"]


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """See octavo_kernels.block_copy."""
    for read, written in zip(source_blocks, target_blocks, strict=True):
        for layer in range(source.shape[0]):
            for keys_or_values in range(2):
                target[layer, keys_or_values, written].copy_(source[layer, keys_or_values, read], non_blocking=True)
