"""The embedding: as it is stored, or packed in groups of four bits, where a tied head has it so."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_kernels.linear.pairs import unpacked_rows

__all__ = ["AnyEmbedding", "Embedding", "GroupedEmbedding"]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table.

    Attributes:
        weight: [vocabulary, hidden].
    """

    weight: torch.Tensor

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden], which is nobody else's."""
        return torch.nn.functional.embedding(token_ids, self.weight)


@dataclass(frozen=True, slots=True)
class GroupedEmbedding:
    """Rows of a table that is packed as a linear layer's weight is.

    Attributes:
        weight: [hidden / 64, vocabulary, 32], uint8.
        groups: [hidden / 32, vocabulary], int32.
        dtype: Of the rows.
    """

    weight: torch.Tensor
    groups: torch.Tensor
    dtype: torch.dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden]."""
        return unpacked_rows(self.weight, self.groups, token_ids).to(self.dtype)


AnyEmbedding = Embedding | GroupedEmbedding
