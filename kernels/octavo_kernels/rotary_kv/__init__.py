"""Norm and rotation of queries and keys, and the write of keys and values into the paged cache. See README.md."""

from __future__ import annotations

import torch

from octavo_kernels.dispatch import form

__all__ = ["rotary_kv"]


def rotary_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotates q and k, writes k and v into the cache, returns q.

    Args:
        qkv: [tokens, q heads + 2 * kv heads, head_dim]; may be overwritten.
        cos: [tokens, head_dim]: cosine of each dimension's angle, the half repeated.
        sin: [tokens, head_dim]: sine, likewise.
        k_cache: [blocks, block size, kv heads, head_dim]; written at `slots`.
        v_cache: The same for values.
        slots: [tokens], int64: block * block size + offset, each at most once; negative in a row that pads a captured
            graph's batch, whose keys and values are written nowhere.
        q_norm: [head_dim]: weight of the RMSNorm of each query head before rotation, or None.
        k_norm: The same for keys.
        eps: Of those norms.

    Returns:
        [tokens, q heads, head_dim].
    """
    result: torch.Tensor = form("rotary_kv", qkv.device.type).rotary_kv(
        qkv, cos, sin, k_cache, v_cache, slots, q_norm, k_norm, eps
    )
    return result
