"""Rotary position embedding: the angles of each position, with the ways to stretch them beyond the pretraining's length.

Sources: RoFormer (Su et al. 2021); position interpolation, `linear` (Chen et al. 2023); YaRN (Peng et al. 2023);
`llama3` as published with Llama 3.1.
"""

from __future__ import annotations

import math

import numpy as np

from octavo_kernels.native.arrays import Array
from octavo_runtime.loading.spec import RopeSpec

__all__ = ["inverse_frequencies", "rotary_table"]


def rotary_table(rope: RopeSpec, head_dim: int, length: int) -> tuple[Array, Array]:
    """Cosines and sines of the angles of `length` positions, times the attention factor: [length, head_dim], float32."""
    angles = np.outer(np.arange(length, dtype=np.float32), inverse_frequencies(rope, head_dim))
    angles = np.concatenate((angles, angles), axis=1)
    factor = np.float32(rope.attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Array:
    """Radians per position of each pair of dimensions: [head_dim / 2], float32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain: Array = 1 / np.float32(rope.theta) ** exponents
    if rope.kind == "linear":
        return plain / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def _llama3(rope: RopeSpec, plain: Array) -> Array:
    """Short waves stay, long ones are stretched by the factor, those between are blended."""
    # How often a wave turns over the original length.
    turns = rope.original_max_position * plain / (2 * math.pi)
    blend = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clip(0, 1)
    blended: Array = blend * plain + (1 - blend) * plain / rope.factor
    return blended


def _yarn(rope: RopeSpec, plain: Array, head_dim: int) -> Array:
    """As llama3, with a blend that is linear in the dimension's number."""

    def dimension(turns: float) -> float:
        """The dimension that turns this often over the original length."""
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    stretched = ((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low)).clip(0, 1)
    blended: Array = (1 - stretched) * plain + stretched * plain / rope.factor
    return blended
