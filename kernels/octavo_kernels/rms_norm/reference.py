"""The truth: written out, statistics in float32."""

from __future__ import annotations

import torch

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    residual += x
    return rms_norm(residual, weight, eps)
