"""What makes tokens less likely that a prompt or its answer has already."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Penalties"]


class Penalties(NamedTuple):
    """For each row what it has seen, and what that costs.

    Attributes:
        seen: [rows, vocabulary], int32, in aligned rows (octavo_kernels.aligned): for each token twice the times that the
            answer has it, and 1 more where the prompt has it.
        repetition: [rows], float32, above 0: of a token that prompt or answer has a positive logit is divided by it, and
            another one multiplied; 1 changes nothing.
        presence: [rows], float32: taken off the logit of a token that the answer has.
        frequency: [rows], float32: the same for each time that it has it.
    """

    seen: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
