"""A linear layer's weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Linear"]


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
