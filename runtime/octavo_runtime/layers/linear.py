"""A linear layer's weights: as they are stored, or quantised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_kernels.linear import linear_invariant, linear_w4a16, linear_w8a16

__all__ = ["AnyLinear", "GroupedLinear", "Int8Linear", "Int8Product", "InvariantLinear", "Linear"]

Int8Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""One of octavo_kernels.linear: of x, an int8 weight, its scales and a bias."""


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias.

    Attributes:
        weight: [out, in].
        bias: [out], or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out]."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class InvariantLinear(Linear):
    """The same with a kernel of our own, whose rows do not depend on each other (ADR 37)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out]."""
        return linear_invariant(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """x @ (weight * scales).T + bias.

    Attributes:
        weight: [out, in], int8.
        scales: [out], float32.
        bias: [out], or None.
        product: Computes it, from activations as they are or rounded to int8 as well.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None = None
    product: Int8Product = linear_w8a16

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out]."""
        return self.product(x, self.weight, self.scales, self.bias)


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """A weight of four bits in groups of 32 inputs, packed as octavo_kernels.linear.pairs does.

    Attributes:
        weight: [in / 64, out, 32], uint8.
        groups: [in / 32, out], int32.
        bias: [out], or None.
    """

    weight: torch.Tensor
    groups: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out]."""
        return linear_w4a16(x, self.weight, self.groups, self.bias)


AnyLinear = Linear | Int8Linear | GroupedLinear
