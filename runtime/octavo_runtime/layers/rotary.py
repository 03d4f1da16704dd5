"""Rotary position embedding: the table of cosines and sines."""

from __future__ import annotations

import torch

__all__ = ["RotaryTable"]


class RotaryTable:
    """Cosines and sines of every position's angles.

    Args:
        inverse_frequencies: [head_dim / 2], float32: radians per position.
        attention_factor: Multiplies both (YaRN's temperature).
        length: Positions in the table.
        dtype: Of the table; the angles are float32 whatever it is.
        device: Of the table.
    """

    def __init__(
        self,
        inverse_frequencies: torch.Tensor,
        *,
        attention_factor: float,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies)
        angles = torch.cat((angles, angles), dim=-1)  # [length, head_dim]
        self.cos = (angles.cos() * attention_factor).to(device=device, dtype=dtype)
        self.sin = (angles.sin() * attention_factor).to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [tokens, head_dim] each, at `positions`, [tokens]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)
