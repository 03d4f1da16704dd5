from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from octavo_kernels.paged_attention import PagedBatch, cpu, reference
from octavo_kernels.testing import TOLERANCES, assert_close, paged_pool

# (tokens in this step, tokens in KV before it)
BATCHES = {
    "one-token": [(1, 0)],
    "one-decode": [(1, 33)],
    "decodes-equal": [(1, 15), (1, 15), (1, 15)],
    "decodes-ragged": [(1, 0), (1, 1), (1, 31), (1, 32), (1, 33), (1, 300)],
    "prefill": [(63, 0)],
    "prefills": [(16, 0), (17, 0), (2, 0)],
    "chunk-on-context": [(33, 47)],
    "chunk-at-block-edge": [(32, 32), (5, 64)],
    "mixed": [(1, 40), (20, 0), (1, 7), (9, 130), (1, 0)],
}
HEADS = {"smollm2": (9, 3, 64), "mha": (4, 4, 16), "mqa": (8, 1, 32), "odd-dim": (6, 2, 20)}


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Another truth, for one sequence with everything at hand: float64, a loop over query heads and queries."""
    out = torch.empty_like(q, dtype=torch.float64)
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        for row in range(q.shape[0]):
            seen = k.shape[0] - q.shape[0] + row + 1
            scores = (k[:seen, group].double() @ q[row, head].double()) * scale
            weights = (scores - scores.max()).exp()
            out[row, head] = weights @ v[:seen, group].double() / weights.sum()
    return out


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_cpu_equals_reference(
    batch: list[tuple[int, int]], block_size: int, heads: tuple[int, int, int], generator: torch.Generator
) -> None:
    check_cpu(batch, block_size, heads, torch.float32, torch.float32, generator)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_cpu_narrow_types(dtype: torch.dtype, kv_dtype: torch.dtype, generator: torch.Generator) -> None:
    check_cpu(BATCHES["mixed"], 16, HEADS["smollm2"], dtype, kv_dtype, generator)


def check_cpu(
    sequences: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    q_heads, kv_heads, dim = heads
    context_lens = [new + before for new, before in sequences]
    k, v, tables = paged_pool(
        context_lens, block_size=block_size, kv_heads=kv_heads, head_dim=dim, dtype=kv_dtype, generator=generator
    )
    batch = PagedBatch(block_size, tuple(new for new, _ in sequences), tuple(context_lens), tables)
    q = torch.randn(sum(batch.query_lens), q_heads, dim, generator=generator).to(dtype)
    truth = reference.paged_attention(q, k, v, reference.prepare(batch, q.device), dim**-0.5)
    got = cpu.paged_attention(q, k, v, cpu.prepare(batch, q.device), dim**-0.5)
    assert_close(got, truth, TOLERANCES[dtype])


@pytest.mark.parametrize("sequence", [(1, 0), (1, 20), (13, 0), (6, 21)], ids=str)
def test_reference_equals_dense(sequence: tuple[int, int], generator: torch.Generator) -> None:
    new, before = sequence
    k, v, tables = paged_pool(
        [new + before], block_size=8, kv_heads=2, head_dim=16, dtype=torch.float32, generator=generator
    )
    q = torch.randn(new, 6, 16, generator=generator)
    batch = PagedBatch(8, (new,), (new + before,), tables)
    rows = torch.tensor(tables[0])
    truth = dense_attention(
        q, k[rows].flatten(0, 1)[: new + before], v[rows].flatten(0, 1)[: new + before], 16**-0.5
    ).float()
    assert_close(reference.paged_attention(q, k, v, batch, 16**-0.5), truth)


@pytest.mark.parametrize("form", [reference, cpu])
def test_softmax_spans_blocks(form: Any) -> None:
    # Scores 0, 0 in one block and 10 in the next: the answer is nearly the third value, not a mean of the blocks'.
    k = torch.zeros(2, 8, 1, 4)
    v = torch.full((2, 8, 1, 4), torch.nan)
    k[1, 0, 0] = torch.tensor([10.0, 0, 0, 0])
    v[0], v[1, 0] = 1.0, 3.0
    batch = PagedBatch(8, (1,), (9,), ((0, 1),))
    q = torch.tensor([[[1.0, 0, 0, 0]]])
    out = form.paged_attention(q, k, v, form.prepare(batch, q.device), 1.0)
    weight = torch.tensor(10.0).exp()
    assert_close(out, ((8 * 1.0 + weight * 3.0) / (8 + weight)).expand(1, 1, 4).clone())


def test_cpu_shared_prefix(generator: torch.Generator) -> None:
    k, v, (table,) = paged_pool([40], block_size=8, kv_heads=1, head_dim=8, dtype=torch.float32, generator=generator)
    q = torch.randn(2, 2, 8, generator=generator)
    both = PagedBatch(8, (1, 1), (40, 24), (table, table[:3]))
    together = cpu.paged_attention(q, k, v, cpu.prepare(both, q.device), 0.3)
    for row, length in enumerate((40, 24)):
        alone = PagedBatch(8, (1,), (length,), (table[: length // 8],))
        assert_close(together[row : row + 1], reference.paged_attention(q[row : row + 1], k, v, alone, 0.3))


def test_cpu_table_longer_than_context(generator: torch.Generator) -> None:
    # The scheduler may hold blocks for tokens that are not computed yet.
    k, v, (table,) = paged_pool([9], block_size=8, kv_heads=1, head_dim=8, dtype=torch.float32, generator=generator)
    spare = next(block for block in range(len(k)) if block not in table)
    batch = PagedBatch(8, (3,), (9,), ((*table, spare),))
    q = torch.randn(3, 1, 8, generator=generator)
    truth = reference.paged_attention(q, k, v, batch, 0.3)
    assert_close(cpu.paged_attention(q, k, v, cpu.prepare(batch, q.device), 0.3), truth)


@pytest.mark.parametrize("bend", [{"window": 4}, {"soft_cap": 30.0}])
def test_paged_attention_cpu_has_no_window_and_no_soft_cap(bend: dict[str, Any]) -> None:
    cache = torch.zeros(1, 8, 1, 8)
    prepared = cpu.prepare(PagedBatch(8, (1,), (1,), ((0,),)), cache.device)
    with pytest.raises(NotImplementedError, match="no sliding window and no soft cap"):
        cpu.paged_attention(cache[0, :1], cache, cache, prepared, 1.0, **bend)


def test_paged_attention_reference_window_and_soft_cap() -> None:
    # Scores are 0 but for position 0, whose value is 1: what is left of it tells the weights.
    k, v = torch.zeros(1, 8, 1, 1), torch.zeros(1, 8, 1, 1)
    k[0, 0], v[0, 0] = 100.0, 1.0
    batch = PagedBatch(8, (3,), (3,), ((0,),))
    q = torch.ones(3, 1, 1)
    bent = reference.paged_attention(q, k, v, batch, 1.0, window=2, soft_cap=2.0)
    share = math.exp(2.0) / (math.exp(2.0) + 1)
    assert bent.flatten().tolist() == pytest.approx([1.0, share, 0.0])
