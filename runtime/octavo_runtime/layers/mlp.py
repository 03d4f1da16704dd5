"""A layer's gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.gated_activation import silu_mul
from octavo_runtime.layers.linear import AnyLinear

__all__ = ["GatedMLP"]


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(silu(gate(x)) * up(x)).

    Attributes:
        gate_up: To the gate's and the up projection's columns, in this order.
        down: Back.
    """

    gate_up: AnyLinear
    down: AnyLinear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        return self.down(silu_mul(self.gate_up(x)))
