"""silu(gate) * up, the activation of a gated MLP. README.md has the maths."""

from __future__ import annotations

import torch

from octavo_kernels.dispatch import form

__all__ = ["silu_mul"]


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up.

    Args:
        gate_up: [tokens, 2 * width], the gate's columns first; may be overwritten.

    Returns:
        [tokens, width].
    """
    result: torch.Tensor = form("gated_activation", gate_up.device.type).silu_mul(gate_up)
    return result
