"""A step's plan as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo_kernels.native.arrays import Array
from octavo_kernels.paged_attention import PagedBatch
from octavo_runtime.domain import StepPlan

__all__ = ["Batch", "build_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the decoder takes.

    Attributes:
        tokens: [3, tokens], int64, sequence after sequence: their ids, their positions, and their slots, where each
            one's KV goes. In one piece, so that one copy brings them to a device.
        paged: Which tokens are whose.
        sampling_rows: [sequences that sample], int64, in order: the row of each one's last token.
    """

    tokens: Array
    paged: PagedBatch
    sampling_rows: Array


def build_batch(plan: StepPlan, sampled: Mapping[int, int], block_size: int) -> Batch:
    """Lays a plan's sequences one after the other.

    Args:
        plan: At least one sequence.
        sampled: Sequence number -> token sampled in the step before: what takes the places of placeholders.
        block_size: Tokens per block.
    """
    table = np.empty((3, plan.num_tokens), dtype=np.int64)
    rows: list[int] = []
    end = 0
    for sequence in plan.sequences:
        start, end = end, end + len(sequence.token_ids)
        table[0, start:end] = sampled[sequence.number] if sequence.feeds else sequence.token_ids
        first = sequence.num_computed
        if end - start == 1:
            table[1, start] = first
            table[2, start] = sequence.block_table[first // block_size] * block_size + first % block_size
        else:
            positions = np.arange(first, first + end - start)
            table[1, start:end] = positions
            blocks = np.asarray(sequence.block_table, dtype=np.int64)
            table[2, start:end] = blocks[positions // block_size] * block_size + positions % block_size
        if sequence.num_samples:
            rows.append(end - 1)
    return Batch(
        tokens=table,
        paged=PagedBatch(
            block_size=block_size,
            query_lens=tuple(len(sequence.token_ids) for sequence in plan.sequences),
            context_lens=tuple(sequence.num_computed + len(sequence.token_ids) for sequence in plan.sequences),
            block_tables=tuple(sequence.block_table for sequence in plan.sequences),
        ),
        sampling_rows=np.array(rows, dtype=np.int64),
    )
