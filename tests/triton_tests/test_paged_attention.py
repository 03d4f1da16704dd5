from __future__ import annotations

import pytest
import torch

from octavo_kernels.paged_attention import PagedBatch, reference
from octavo_kernels.paged_attention import triton as form
from octavo_kernels.testing import Guards, assert_close, paged_pool

# (tokens in this step, tokens in KV before it)
BATCHES = {
    "one-token": [(1, 0)],
    "decodes-ragged": [(1, 0), (1, 14), (1, 15), (1, 16), (1, 32), (1, 300)],
    "prefills": [(15, 0), (16, 0), (17, 0), (2, 0)],
    "chunk-on-context": [(33, 47)],
    "mixed": [(1, 40), (20, 0), (1, 0), (9, 130)],
}
# (query heads, kv heads, head_dim)
HEADS = {"gqa": (4, 2, 64), "odd-group": (3, 1, 64), "padded-width": (4, 1, 80)}


def check(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    guards: Guards,
) -> None:
    q_heads, kv_heads, dim = heads
    context_lens = [new + before for new, before in sequences]
    k, v, tables = paged_pool(
        context_lens, block_size=block_size, kv_heads=kv_heads, head_dim=dim, dtype=dtype, generator=generator
    )
    batch = PagedBatch(block_size, tuple(new for new, _ in sequences), tuple(context_lens), tables)
    q = torch.randn(sum(batch.query_lens), q_heads, dim, generator=generator).to(dtype)
    truth = reference.paged_attention(q, k, v, reference.prepare(batch, q.device), dim**-0.5)
    prepared = form.prepare(batch, q.device)
    got = form.paged_attention(guards.place(q), guards.place(k), guards.place(v), prepared, dim**-0.5)
    assert_close(got, truth)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_equals_reference(
    batch: list[tuple[int, int]], heads: tuple[int, int, int], generator: torch.Generator, guards: Guards
) -> None:
    check(batch, heads, 16, torch.float32, generator, guards)
