"""A batch that only the device knows, as a captured graph has it: with rows of nobody at the end."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.paged_attention import reference
from octavo_kernels.paged_attention import triton as form
from octavo_kernels.testing import Guards, assert_close, paged_pool

BLOCK_SIZE, Q_HEADS, KV_HEADS, DIM = 16, 4, 2, 64


@pytest.mark.parametrize("context_lens", [(1,), (33, 0), (16, 300, 1, 0), (0, 0)])
def test_prepare_rows_equals_reference(
    context_lens: tuple[int, ...], generator: torch.Generator, guards: Guards
) -> None:
    k, v, tables = paged_pool(
        context_lens,
        block_size=BLOCK_SIZE,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=torch.float32,
        generator=generator,
    )
    # What is behind a sequence's own blocks is left from others, or no block at all.
    rows = torch.full((len(context_lens), 24), 1 << 30, dtype=torch.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = torch.tensor(table, dtype=torch.int32)
    q = torch.randn(len(context_lens), Q_HEADS, DIM, generator=generator)
    lengths = torch.tensor(context_lens, dtype=torch.int32)
    truth = reference.paged_attention(q, k, v, reference.prepare_rows(rows, lengths, BLOCK_SIZE), DIM**-0.5)
    prepared = form.prepare_rows(guards.place(rows), guards.place(lengths), BLOCK_SIZE)
    got = form.paged_attention(guards.place(q), guards.place(k), guards.place(v), prepared, DIM**-0.5)
    assert_close(got, truth)
    assert not got[lengths == 0].any()
