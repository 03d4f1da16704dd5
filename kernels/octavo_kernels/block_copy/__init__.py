"""Copies whole blocks within a KV pool, or between two pools of one layout. README.md has the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo_kernels.dispatch import form

if TYPE_CHECKING:
    import torch

__all__ = ["copy_blocks"]


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_blocks: Sequence[int], target_blocks: Sequence[int]
) -> None:
    """Copies blocks, all layers, keys and values. Between a GPU and pinned memory it only queues the copies.

    Args:
        source: [layers, 2, blocks, block size, kv heads, head_dim].
        target: The same but for the number of blocks; may be `source` itself, or lie on another device.
        source_blocks: Numbers of the blocks to read.
        target_blocks: Where each goes: no number twice and, within one pool, none that is also read.
    """
    device_type = "cpu" if source.device.type == target.device.type == "cpu" else "cuda"
    form("block_copy", device_type).copy_blocks(source, target, source_blocks, target_blocks)
