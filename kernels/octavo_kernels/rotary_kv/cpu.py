"""Queries and keys lie side by side, so they are rotated at once; rows go into the cache by `index_copy_`."""

from __future__ import annotations

import torch

from octavo_kernels.rms_norm.cpu import rms_norm
from octavo_kernels.rotary_kv.reference import rotate

__all__ = ["rotary_kv"]


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
    kv_heads, head_dim = k_cache.shape[2:]
    q_heads = qkv.shape[1] - 2 * kv_heads
    if q_norm is not None and k_norm is not None:
        qkv[:, :q_heads] = rms_norm(qkv[:, :q_heads], q_norm, eps)
        qkv[:, q_heads:-kv_heads] = rms_norm(qkv[:, q_heads:-kv_heads], k_norm, eps)
    qk = rotate(qkv[:, :-kv_heads], cos, sin)
    k, v = qk[:, q_heads:], qkv[:, -kv_heads:]
    written = slots >= 0
    if not written.all():
        k, v, slots = k[written], v[written], slots[written]
    k_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, k.to(k_cache.dtype))
    v_cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, v.to(v_cache.dtype))
    return qk[:, :q_heads]
