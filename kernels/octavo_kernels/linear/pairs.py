"""A weight of four bits as the Triton form reads it: two groups of 32 inputs at a time.

weight   [in / 64, out, 32], uint8     byte i of 64 inputs: input i in the lower four bits, input 32 + i in the upper
groups   [in / 32, out], int32         a group's scale in the lower half of a word, its minimum in the upper, float16
"""

from __future__ import annotations

import torch

__all__ = ["GROUP", "pack_pairs", "unpacked_rows"]

GROUP = 32
"""Inputs that share a scale and a minimum."""


def pack_pairs(quants: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packs a weight.

    Args:
        quants: [out, in], uint8, from 0 to 15.
        scales: [out, in / 32], float16.
        minima: The same.

    Returns:
        Weight and groups.

    Raises:
        ValueError: `in` is no multiple of 64.
    """
    outputs, width = quants.shape
    if width % (2 * GROUP):
        raise ValueError(f"w4a16: {width} inputs; on a GPU they must be a multiple of {2 * GROUP}")
    low, high = quants.view(outputs, -1, 2, GROUP).unbind(2)
    packed = (low | high << 4).transpose(0, 1).contiguous()
    # [in / 32, out, 2], float16, as words: the first number is the lower half
    return packed, torch.stack((scales.T, minima.T), dim=-1).view(torch.int32)[..., 0]


def unpacked_rows(weight: torch.Tensor, groups: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Some rows of a packed weight again.

    Args:
        weight: From `pack_pairs`.
        groups: Likewise.
        rows: [rows], int64; None: all.

    Returns:
        [rows, in], float32.
    """
    if rows is not None:
        weight, groups = weight.index_select(1, rows), groups.index_select(1, rows)
    quants = torch.stack((weight & 15, weight >> 4), dim=2)  # [in / 64, rows, 2, 32]
    numbers = groups.contiguous().view(torch.float16).view(len(groups) // 2, 2, -1, 2).float()  # [in / 64, 2, rows, 2]
    scales, minima = numbers.transpose(1, 2).unbind(-1)  # [in / 64, rows, 2]
    return (quants.float() * scales[..., None] + minima[..., None]).transpose(0, 1).flatten(1)
