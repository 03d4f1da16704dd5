"""Sampling from tensors."""

from __future__ import annotations

import math

import torch

from octavo_kernels import sampling
from octavo_kernels.native.arrays import Array, to_tensor

__all__ = ["TorchSampling"]


class TorchSampling:
    """A `SamplingForm`: octavo_kernels.sampling, on the device where the logits are."""

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """See SamplingForm."""
        return sampling.greedy(logits)

    def sample(
        self, logits: torch.Tensor, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array
    ) -> torch.Tensor:
        """See SamplingForm."""
        columns = (to_tensor(column).to(logits.device) for column in (temperature, top_k, top_p, min_p, uniform))
        return sampling.sample(logits, *columns)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See SamplingForm."""
        return logits.float().log_softmax(dim=-1).nan_to_num_(0, math.inf, -math.inf)

    def best(self, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See SamplingForm."""
        return sampling.best(scores, count)
