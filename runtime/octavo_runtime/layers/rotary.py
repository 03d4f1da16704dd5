"""Rotary position embedding: the table of cosines and sines."""

from __future__ import annotations

import torch

__all__ = ["RotaryTable"]


class RotaryTable:
    """Cosines and sines of every position's angles.

    Args:
        cos: [positions, head_dim], float32.
        sin: The same.
        dtype: Of what it gives.
        device: The same.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, *, dtype: torch.dtype, device: torch.device) -> None:
        self.cos = cos.to(device=device, dtype=dtype)
        self.sin = sin.to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [tokens, head_dim] each, at `positions`, [tokens]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)
