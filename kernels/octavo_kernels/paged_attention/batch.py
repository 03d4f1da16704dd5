"""The shape of a step's batch, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PagedBatch"]


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Which tokens belong to which sequence, and where its context lies.

    Attributes:
        block_size: Tokens per block.
        query_lens: For each sequence its tokens in this step, at least 1.
        context_lens: For each sequence all its tokens with KV, this step's included. The reference knows 0 too: a row
            of nobody (see `prepare_rows`).
        block_tables: For each sequence its blocks in order; together at least context_len tokens.
    """

    block_size: int
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[Sequence[int], ...]
