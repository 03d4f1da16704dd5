"""A step's batch as the library takes it."""

from __future__ import annotations

import math

import numpy as np

from octavo_kernels.native import abi
from octavo_kernels.native.arrays import Array, dtype_name
from octavo_kernels.paged_attention.batch import PagedBatch
from octavo_kernels.paged_attention.rows import head_dim_of

__all__ = ["LOG2_E", "NativeBatch", "attention_struct"]


class NativeBatch:
    """A batch in the library's form; holds the memory that `struct` points to.

    Args:
        batch: Which tokens are whose.
        token_ids: [tokens], int64.
        positions: [tokens], int64.
        slots: [tokens], int64.
        wanted_rows: [rows], int64: tokens whose logits are wanted.

    Attributes:
        struct: What the library takes.
    """

    def __init__(
        self,
        batch: PagedBatch,
        *,
        token_ids: Array,
        positions: Array,
        slots: Array,
        wanted_rows: Array,
    ) -> None:
        lengths = [-(-context // batch.block_size) for context in batch.context_lens]
        tables = [
            np.asarray(table[:length], dtype=np.int32)
            for table, length in zip(batch.block_tables, lengths, strict=True)
        ]
        query_lens = np.asarray(batch.query_lens, dtype=np.int64)
        context_lens = np.asarray(batch.context_lens, dtype=np.int64)
        table_starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
        blocks = np.concatenate(tables)
        self._kept = (token_ids, positions, slots, wanted_rows, query_lens, context_lens, table_starts, blocks)
        self.struct = abi.Batch(
            tokens=token_ids.shape[0],
            sequences=len(lengths),
            wanted=wanted_rows.shape[0],
            token_ids=token_ids.ctypes.data,
            positions=positions.ctypes.data,
            slots=slots.ctypes.data,
            query_lens=query_lens.ctypes.data,
            context_lens=context_lens.ctypes.data,
            table_starts=table_starts.ctypes.data,
            blocks=blocks.ctypes.data,
            wanted_rows=wanted_rows.ctypes.data,
        )


LOG2_E = math.log2(math.e)
"""What turns e^x into a power of two."""


def attention_struct(kv: Array, heads: int, scale: float, *, rounded: bool = False) -> abi.Attention:
    """The shape of attention over a pool of [blocks, block size, kv heads, row] (paged_attention/rows.py).

    Args:
        kv: The pool of keys, or of values.
        heads: Query heads.
        scale: Of queries, `LOG2_E` included.
        rounded: Whether queries and weights may be rounded to bfloat16 where keys and values are (ADR 50).
    """
    _, block_size, kv_heads, _ = kv.shape
    return abi.Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim_of(kv),
        block_size=block_size,
        type=abi.TYPES[dtype_name(kv.dtype)],
        rounded=rounded,
        scale=scale,
    )
