"""A layer's attention: projections, rotation, and paged attention between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from octavo_kernels.paged_attention import paged_attention
from octavo_kernels.rotary_kv import rotary_kv
from octavo_runtime.layers.linear import AnyLinear

__all__ = ["Attention", "AttentionStep"]


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What all layers share in one step.

    Attributes:
        cos: [tokens, head_dim] at the tokens' positions.
        sin: [tokens, head_dim].
        slots: [tokens], int64: where each token's KV goes.
        prepared: What paged attention prepared for the batch.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    prepared: Any


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention of one layer.

    Attributes:
        qkv: To the heads of q, k and v, in this order.
        output: From the query heads back.
        q_norm: [head_dim] weight of the norm of each query head, or None.
        k_norm: The same for keys.
        eps: Of those norms.
        head_dim: Width of a head.
        k_cache: [blocks, block size, kv heads, row], as `KVPool` has it.
        v_cache: The same for values.
        batch_invariant: See octavo_kernels.paged_attention.
    """

    qkv: AnyLinear
    output: AnyLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float
    head_dim: int
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    batch_invariant: bool = False

    def __call__(self, x: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; writes the tokens' KV."""
        tokens = x.shape[0]
        qkv = self.qkv(x).view(tokens, -1, self.head_dim)
        q = rotary_kv(
            qkv, step.cos, step.sin, self.k_cache, self.v_cache, step.slots, self.q_norm, self.k_norm, self.eps
        )
        attended = paged_attention(
            q,
            self.k_cache,
            self.v_cache,
            step.prepared,
            self.head_dim**-0.5,
            batch_invariant=self.batch_invariant,
        )
        return self.output(attended.view(tokens, -1))
