"""torch's own fused RMSNorm in float32; the written-out form for narrower types, which it rounds otherwise."""

from __future__ import annotations

import torch

from octavo_kernels.rms_norm import reference

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    if x.dtype != torch.float32:
        return reference.rms_norm(x, weight, eps)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    residual += x
    return rms_norm(residual, weight, eps)
