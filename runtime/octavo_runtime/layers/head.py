"""The head of stored weights: a linear layer whose rows a GPU's sampling can read 16 bytes at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.aligned import aligned_rows
from octavo_runtime.layers.linear import Linear

__all__ = ["Head"]


@dataclass(frozen=True, slots=True)
class Head(Linear):
    """x @ weight.T, without a bias. A vocabulary need be no multiple of anything: Qwen3's is 151,669."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] -> [tokens, out], in aligned rows (octavo_kernels.aligned)."""
        return torch.mm(x, self.weight.T, out=aligned_rows(len(x), len(self.weight), x))
