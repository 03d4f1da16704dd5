"""RMSNorm, alone or with the residual sum before it. README.md has the maths."""

from __future__ import annotations

import torch

from octavo_kernels.dispatch import form

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalises the last dimension to a root mean square of 1, times `weight`.

    Args:
        x: [..., width].
        weight: [width].
        eps: Added to the mean square.
    """
    result: torch.Tensor = form("rms_norm", x.device.type).rms_norm(x, weight, eps)
    return result


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds x to the residual in place, and returns the norm of the sum.

    Args:
        x: [tokens, width].
        residual: [tokens, width]; becomes residual + x.
        weight: [width].
        eps: Added to the mean square.
    """
    result: torch.Tensor = form("rms_norm", x.device.type).add_rms_norm(x, residual, weight, eps)
    return result
