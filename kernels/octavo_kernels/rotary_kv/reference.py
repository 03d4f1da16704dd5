"""The truth: written out."""

from __future__ import annotations

import torch

from octavo_kernels.paged_attention.rows import stored
from octavo_kernels.rms_norm.reference import rms_norm

__all__ = ["rotary_kv", "rotate"]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates dimension i with dimension i + head_dim/2.

    Args:
        x: [tokens, heads, head_dim].
        cos: [tokens, head_dim].
        sin: [tokens, head_dim].
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]


def rotary_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """See octavo_kernels.rotary_kv."""
    kv_heads, row = k_cache.shape[2:]
    q, k, v = qkv[:, : -2 * kv_heads], qkv[:, -2 * kv_heads : -kv_heads], qkv[:, -kv_heads:]
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    written = slots >= 0
    k_cache.view(-1, kv_heads, row)[slots[written]] = stored(k[written], k_cache.dtype)
    v_cache.view(-1, kv_heads, row)[slots[written]] = stored(v[written], v_cache.dtype)
    return q
