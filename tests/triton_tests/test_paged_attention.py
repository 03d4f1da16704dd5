from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels import gpu
from octavo_kernels.paged_attention import PagedBatch, gpu_configurations, reference
from octavo_kernels.paged_attention import triton as form
from octavo_kernels.paged_attention.rows import stored
from octavo_kernels.testing import Guards, assert_close, paged_pool, scales_behind_blocks

# (tokens in this step, tokens in KV before it)
BATCHES = {
    "one-token": [(1, 0)],
    "decodes": [(1, 14), (1, 15), (1, 16), (1, 32)],
    "prefills": [(15, 0), (16, 0), (17, 0), (2, 0)],
    "chunk-on-context": [(33, 47)],
    "mixed": [(1, 40), (20, 0), (1, 0), (9, 130)],
}
# (query heads, kv heads, head_dim)
HEADS = {"gqa": (4, 2, 16), "odd-group": (3, 1, 64), "padded-width": (2, 2, 80)}
# torch cannot look for NaN in fp8.
_PLACED = {torch.float8_e4m3fn: torch.int8}
EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that need few programs of the interpreter for contexts of several tiles and pieces."""
    monkeypatch.setattr(gpu_configurations, "PREFILL", dict.fromkeys(gpu_configurations.PREFILL, (32, 32, 4, 2)))
    monkeypatch.setattr(gpu_configurations, "DECODE", dict.fromkeys(gpu_configurations.DECODE, (16, 4, 2)))
    monkeypatch.setattr(gpu_configurations, "MIN_PIECE", 32)
    monkeypatch.setattr(gpu_configurations, "_MAX_SPLITS", 4)


def check(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int, int],
    block_size: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    kv_dtype: torch.dtype | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> None:
    q_heads, kv_heads, dim = heads
    context_lens = [new + before for new, before in sequences]
    k, v, tables = paged_pool(
        context_lens,
        block_size=block_size,
        kv_heads=kv_heads,
        head_dim=dim,
        dtype=kv_dtype or dtype,
        generator=generator,
    )
    batch = PagedBatch(block_size, tuple(new for new, _ in sequences), tuple(context_lens), tables)
    tokens = sum(batch.query_lens)
    q = torch.randn(tokens, q_heads, dim, generator=generator).to(dtype)
    bends: dict[str, Any] = {"window": window, "soft_cap": soft_cap}
    truth = reference.paged_attention(q, k, v, reference.prepare(batch, q.device), dim**-0.5, **bends)
    guards = Guards()
    prepared = form.prepare(batch, q.device)
    if window is not None:
        # Blocks wholly outside of the window are not read: a request may have given them back.
        for row, (_, before) in enumerate(sequences):
            prepared.tables[row, : max(before + 1 - window, 0) // block_size] = 2**31 - 1
    prepared = dataclasses.replace(
        prepared,
        query_starts=guards.place(prepared.query_starts),
        context_lens=guards.place(prepared.context_lens),
        tables=guards.place(prepared.tables),
    )
    # As in a decoder, where queries are a part of each row.
    rows = guards.place(torch.cat((q, torch.full_like(q[:, :2], torch.nan)), dim=1))
    caches = [guards.place(scales_behind_blocks(cache).view(_PLACED.get(cache.dtype, cache.dtype))) for cache in (k, v)]
    k_cache, v_cache = (cache.view(k.dtype) for cache in caches)
    got = form.paged_attention(rows[:, :q_heads], k_cache, v_cache, prepared, dim**-0.5, **bends)
    assert_close(got, truth)
    guards.check()


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_equals_reference(
    batch: list[tuple[int, int]], heads: tuple[int, int, int], generator: torch.Generator
) -> None:
    check(batch, heads, 16, torch.float32, generator)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [8, 32])
def test_narrow_types_and_other_blocks(dtype: torch.dtype, block_size: int, generator: torch.Generator) -> None:
    check(BATCHES["mixed"], HEADS["gqa"], block_size, dtype, generator)


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "block_size"),
    [("decodes", "gqa", 16), ("prefills", "padded-width", 8), ("mixed", "odd-group", 32)],
)
def test_cache_in_eight_bits(
    kv_dtype: torch.dtype, batch: str, heads: str, block_size: int, generator: torch.Generator
) -> None:
    check(BATCHES[batch], HEADS[heads], block_size, torch.float32, generator, kv_dtype=kv_dtype)
    check(BATCHES["one-token"], HEADS[heads], block_size, torch.bfloat16, generator, kv_dtype=kv_dtype)


@pytest.mark.parametrize(("window", "soft_cap"), [(1, None), (17, None), (40, 0.5), (1000, None), (None, 0.25)])
def test_window_and_soft_cap(window: int | None, soft_cap: float | None, generator: torch.Generator) -> None:
    check(BATCHES["mixed"], HEADS["gqa"], 16, torch.float32, generator, window=window, soft_cap=soft_cap)


def test_window_of_eight_bits(generator: torch.Generator) -> None:
    batch = [(1, 200), (35, 90)]
    check(batch, HEADS["odd-group"], 8, torch.float16, generator, kv_dtype=torch.int8, window=70, soft_cap=3.0)


@pytest.mark.parametrize("kv_dtype", EIGHT_BITS, ids=str)
def test_scale_that_is_no_number_shows_where_it_is_seen(kv_dtype: torch.dtype, generator: torch.Generator) -> None:
    k, v, tables = paged_pool([50], block_size=8, kv_heads=1, head_dim=16, dtype=kv_dtype, generator=generator)
    batch = PagedBatch(8, (20,), (50,), tables)
    q = torch.randn(20, 2, 16, generator=generator)
    for cache in (k, v):
        kept = cache.clone()
        cache[tables[0][5], 1] = stored(torch.full((1, 16), torch.nan), kv_dtype)  # position 41
        caches = (scales_behind_blocks(k), scales_behind_blocks(v))
        got = form.paged_attention(q, *caches, form.prepare(batch, q.device), 0.25)
        assert got.isfinite().all(dim=(1, 2)).tolist() == [True] * 11 + [False] * 9
        cache.copy_(kept)


@pytest.mark.parametrize(
    ("kv_dtype", "window", "soft_cap"),
    [(torch.float32, None, None), (torch.int8, None, None), (torch.float32, 37, 2.0)],
)
def test_batch_invariant(
    kv_dtype: torch.dtype, window: int | None, soft_cap: float | None, generator: torch.Generator
) -> None:
    """A token's result has the same bits alone, in a batch, in any chunk, and as a decode."""
    lens = [70, 18, 1]
    k, v, tables = paged_pool(lens, block_size=8, kv_heads=1, head_dim=16, dtype=kv_dtype, generator=generator)
    k, v = scales_behind_blocks(k), scales_behind_blocks(v)
    q = [torch.randn(length, 3, 16, generator=generator) for length in lens]

    def run(*chunks: tuple[int, int, int]) -> list[torch.Tensor]:
        """Of (sequence, first token, behind the last)."""
        batch = PagedBatch(
            8,
            tuple(end - begin for _, begin, end in chunks),
            tuple(end for _, _, end in chunks),
            tuple(tables[sequence] for sequence, _, _ in chunks),
        )
        queries = torch.cat([q[sequence][begin:end] for sequence, begin, end in chunks])
        prepared = form.prepare(batch, queries.device)
        result = form.paged_attention(queries, k, v, prepared, 0.25, window, soft_cap, batch_invariant=True)
        return list(torch.split(result, list(batch.query_lens)))

    alone = [run((sequence, 0, length))[0] for sequence, length in enumerate(lens)]
    truth = form.paged_attention(
        q[0], k, v, form.prepare(PagedBatch(8, (70,), (70,), tables[:1]), q[0].device), 0.25, window, soft_cap
    )
    assert_close(alone[0], truth)
    together = run((1, 0, 18), (2, 0, 1), (0, 0, 70))
    assert torch.equal(torch.cat(together), torch.cat([alone[1], alone[2], alone[0]]))
    for cuts in ([0, 15, 16, 69, 70], [0, 33, 70]):
        chunks = [run((1, 15, 18), (0, begin, end), (1, 12, 13)) for begin, end in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat([chunk[1] for chunk in chunks]), alone[0])
        assert all(torch.equal(chunk[2], alone[1][12:13]) for chunk in chunks)


def test_batch_invariant_padding_becomes_zero(generator: torch.Generator) -> None:
    q, k, v, prepared, truth = decode_batch((20, 40, 9), generator)
    prepared.context_lens[1:] = 0
    prepared.tables[1:] = 2**31 - 1
    q[1:] = torch.nan
    got = form.paged_attention(q, k, v, prepared, 0.25, batch_invariant=True)
    assert_close(got[:1], truth[:1])
    assert (got[1:] == 0).all()


@settings(max_examples=4)
@given(
    sequences=st.lists(st.tuples(st.sampled_from([1, 2, 15, 33]), st.integers(0, 70)), min_size=1, max_size=3),
    block_size=st.sampled_from([8, 16, 32]),
    heads=st.sampled_from(sorted(HEADS.values())),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]], block_size: int, heads: tuple[int, int, int], seed: int
) -> None:
    check(sequences, heads, block_size, torch.float32, torch.Generator().manual_seed(seed))


Decodes = tuple[torch.Tensor, torch.Tensor, torch.Tensor, form.DeviceBatch, torch.Tensor]


def decode_batch(context_lens: tuple[int, ...], generator: torch.Generator) -> Decodes:
    k, v, tables = paged_pool(
        context_lens, block_size=8, kv_heads=1, head_dim=16, dtype=torch.float32, generator=generator
    )
    q = torch.randn(len(context_lens), 2, 16, generator=generator)
    batch = PagedBatch(8, (1,) * len(context_lens), context_lens, tables)
    return q, k, v, form.prepare(batch, q.device), reference.paged_attention(q, k, v, batch, 0.25)


def test_decode_in_pieces_is_merged(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    # 130 positions in pieces of 64, for which at most 4 pieces are allowed; 31 stay whole.
    q, k, v, prepared, truth = decode_batch((130, 31), generator)
    grids: list[tuple[int, ...]] = []

    def launch(kernel: Any, grid: tuple[int, ...], *rest: Any) -> None:
        grids.append(grid)
        gpu.launch(kernel, grid, *rest)

    monkeypatch.setattr(form, "launch", launch)
    assert_close(form.paged_attention(q, k, v, prepared, 0.25), truth)
    assert grids == [(2, 1, 4), (2, 2)]


def test_padding_of_a_captured_graph_becomes_zero(generator: torch.Generator) -> None:
    q, k, v, prepared, truth = decode_batch((20, 40, 9), generator)
    prepared.context_lens[1:] = 0
    prepared.tables[1:] = 2**31 - 1
    q[1:] = torch.nan
    got = form.paged_attention(q, k, v, prepared, 0.25)
    assert_close(got[:1], truth[:1])
    assert (got[1:] == 0).all()


def test_blocks_beyond_the_reach_of_32_bits(generator: torch.Generator) -> None:
    # Three blocks 2 ** 30 numbers apart: the last one's offset needs 33 bits. Memory that is not touched costs nothing.
    memory = torch.empty(2**31 + 1024, dtype=torch.float16)
    shape, strides = (3, 16, 1, 16), (2**30, 16, 16, 1)
    k, v = memory.as_strided(shape, strides), memory.as_strided(shape, strides, 512)
    for pool in (k, v):
        pool[::2] = torch.randn(2, 16, 1, 16, generator=generator).half()
    q = torch.randn(1, 2, 16, generator=generator).half()
    batch = PagedBatch(16, (1,), (20,), ((0, 2),))
    got = form.paged_attention(q, k, v, form.prepare(batch, q.device), 0.25)
    assert_close(got, reference.paged_attention(q, k, v, batch, 0.25))


def test_prepare_aligns_each_part() -> None:
    batch = PagedBatch(8, (1, 3, 2), (9, 3, 17), ((4, 5), (6,), (7, 8, 9, 10)))
    prepared = form.prepare(batch, torch.device("cpu"))
    assert prepared.query_starts.tolist() == [0, 1, 4, 6]
    assert prepared.context_lens.tolist() == [9, 3, 17]
    assert prepared.tables.tolist() == [[4, 5, 0, 0], [6, 0, 0, 0], [7, 8, 9, 0]]
    assert prepared.decode_context.tolist() == [9]
    assert (prepared.decodes, prepared.prefills) == (True, True)
    for part in (prepared.query_starts, prepared.context_lens, prepared.tables):
        assert part.data_ptr() % 16 == prepared.context_lens.data_ptr() % 16 == 0
