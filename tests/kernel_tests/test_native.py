from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.gated_activation import reference as gated_activation
from octavo_kernels.linear import reference as linear
from octavo_kernels.native import Context
from octavo_kernels.native.operations import Operations, pool_order, token_order
from octavo_kernels.paged_attention import PagedBatch
from octavo_kernels.paged_attention import reference as paged_attention
from octavo_kernels.paged_attention.rows import restored, row_width, stored
from octavo_kernels.rms_norm import reference as rms_norm
from octavo_kernels.rotary_kv import reference as rotary_kv
from octavo_kernels.testing import TOLERANCES, assert_close, paged_pool

TYPES = [torch.float32, torch.bfloat16, torch.float16]
KV_TYPES = [*TYPES, torch.int8]
# Types of a cache, and whether attention over it may round its queries and weights.
CACHES = [*((dtype, False) for dtype in KV_TYPES), (torch.bfloat16, True)]
# To the eight bits that keys and values have: an error of 2^-9 in each query and weight, where there are products of such.
ROUNDED_TOLERANCE = 4e-3


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    rows=st.sampled_from([1, 2, 3, 5, 6, 7, 13, 23, 24, 30, 241]),
    out=st.sampled_from([1, 15, 16, 17, 64, 65, 100, 1100]),
    columns=st.integers(1, 90),
    dtype=st.sampled_from(TYPES),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=60)
def test_linear(
    native: Operations, rows: int, out: int, columns: int, dtype: torch.dtype, bias: bool, add: bool
) -> None:
    x, weight = random(rows, columns), random(out, columns, seed=1).to(dtype)
    offset = random(out, seed=2).to(dtype) if bias else None
    before = random(rows, out, seed=3)
    truth = linear.linear(x, weight, offset)
    got = native.linear(x, weight, offset, before.clone() if add else None)
    assert_close(got, truth + before if add else truth)


@pytest.mark.parametrize("rows", [1, 8, 40])
@pytest.mark.parametrize("columns", [576, 579])
def test_linear_row_is_the_same_in_any_batch(native: Operations, rows: int, columns: int) -> None:
    x, weight = random(rows, columns), random(100, columns, seed=1).bfloat16()
    together = native.linear(x, weight, None)
    for row in range(rows):
        assert torch.equal(native.linear(x[row : row + 1], weight, None), together[row : row + 1])


@pytest.mark.parametrize("columns", [1, 33, 576, 1536, 4099])
def test_linear_bfloat16_is_as_exact_as_float32(native: Operations, columns: int) -> None:
    # Beside a sum of float32 numbers one after the other, rounded once for each product.
    x, weight = random(7, columns), random(100, columns, seed=1).bfloat16()
    truth = x.double() @ weight.double().T
    one_by_one = torch.zeros(7, 100)
    for column in range(columns):
        one_by_one = (one_by_one.double() + x[:, column, None].double() * weight[:, column].double()).float()
    error, allowed = ((sums - truth).square().mean() for sums in (native.linear(x, weight, None), one_by_one))
    assert error <= allowed * 1.05


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e36])
def test_linear_sizes(native: Operations, size: float) -> None:
    x, weight = random(3, 70), random(40, 70, seed=1).bfloat16()
    x[1] *= size
    assert_close(native.linear(x, weight, None)[1:2] / size, linear.linear(x, weight, None)[1:2] / size)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits", [0x7F800000, -0x00800000, 0x7FC00000, 0x7F800001], ids=["inf", "-inf", "nan", "snan"])
@pytest.mark.parametrize("place", [0, 68])
def test_linear_not_finite(native: Operations, dtype: torch.dtype, bits: int, place: int) -> None:
    # One request's infinity or NaN gives what it must in its own row, and nothing in any other.
    x, weight = random(3, 69), random(40, 69, seed=1).to(dtype)
    weight[5] = 0
    finite = native.linear(x, weight, None)
    x.view(torch.int32)[1, place] = bits
    got = native.linear(x, weight, None)
    assert torch.equal(got[::2], finite[::2])
    torch.testing.assert_close(got[1], linear.linear(x, weight, None)[1], equal_nan=True)


@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 64, 100, 576])
def test_rms_norm(native: Operations, width: int) -> None:
    x, weight = random(5, width), random(width, seed=1)
    assert_close(native.rms_norm(x, weight, 1e-5), rms_norm.rms_norm(x, weight, 1e-5))


def test_rms_norm_not_finite(native: Operations) -> None:
    # One request's NaN must show in its own row, and in no other.
    x = random(3, 24)
    x[1, 3] = torch.nan
    finite = native.rms_norm(x, random(24, seed=1), 1e-5).isfinite().all(dim=1)
    assert finite.tolist() == [True, False, True]


@pytest.mark.parametrize("width", [1, 8, 17, 96])
def test_silu_mul(native: Operations, width: int) -> None:
    gate_up = random(4, 2 * width) * 30
    truth = gated_activation.silu_mul(gate_up.clone())
    assert_close(native.silu_mul(gate_up), truth)


def test_silu_mul_extremes(native: Operations) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, -0.0, 88.0, 1e30, torch.inf, torch.nan])
    gate_up = torch.cat((gate, torch.ones(8)))[None].contiguous()
    got = native.silu_mul(gate_up)[0]
    assert got[:4].abs().max() < 1e-5
    assert got[4:7].tolist() == gate[4:7].tolist()
    assert got[7].isnan()


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [*((dtype, "none") for dtype in TYPES), (torch.float32, "w8a16"), (torch.float32, "w8a8")],
)
@pytest.mark.parametrize("rows", [1, 9, 40, 300])
def test_linear_after_norm(native: Operations, rows: int, dtype: torch.dtype, quantization: str) -> None:
    x, weight, norm = random(rows, 100), random(130, 100, seed=1).to(dtype), (random(100, seed=2), 1e-5)
    truth = native.linear(native.rms_norm(x, *norm), weight, None, quantization=quantization)
    assert torch.equal(native.linear(x, weight, None, quantization=quantization, norm=norm), truth)


@pytest.mark.parametrize("quantization", ["none", "w8a16", "w8a8"])
@pytest.mark.parametrize(("rows", "half", "columns"), [(1, 16, 64), (9, 48, 128), (17, 176, 64), (250, 20, 30)])
def test_gated_linear(native: Operations, quantization: str, rows: int, half: int, columns: int) -> None:
    x, weight, bias = random(rows, columns), random(2 * half, columns, seed=1), random(2 * half, seed=2)
    truth = native.silu_mul(native.linear(x, weight, bias, quantization=quantization).contiguous())
    got = native.gated_linear(x, weight, bias, quantization=quantization)
    assert torch.equal(got, truth)


def test_gated_linear_not_finite(native: Operations) -> None:
    x = random(20, 64)
    x[3, 5] = torch.inf
    finite = native.gated_linear(x, random(96, 64, seed=1), None, quantization="w8a16").isfinite().all(dim=1)
    assert finite.tolist() == [row != 3 for row in range(20)]


@given(
    heads=st.sampled_from([(3, 1), (4, 4), (6, 2)]),
    dim=st.sampled_from([8, 16, 24, 64]),
    size=st.sampled_from([8, 16, 32]),
    tokens=st.integers(1, 40),
    dtype=st.sampled_from(KV_TYPES),
    norms=st.booleans(),
)
@settings(max_examples=40)
def test_rotary_kv(
    native: Operations, heads: tuple[int, int], dim: int, size: int, tokens: int, dtype: torch.dtype, norms: bool
) -> None:
    q_heads, kv_heads = heads
    qkv = random(tokens, q_heads + 2 * kv_heads, dim)
    angles = random(tokens, dim // 2, seed=1) * 10
    cos, sin = (torch.cat((part, part), dim=1) for part in (angles.cos(), angles.sin()))
    q_norm, k_norm = (random(dim, seed=2), random(dim, seed=3)) if norms else (None, None)
    slots = torch.randperm(size * 6, generator=torch.Generator().manual_seed(4))[:tokens]
    caches = [torch.full((6, size, kv_heads, row_width(dim, dtype)), 7, dtype=dtype) for _ in range(4)]
    truth = rotary_kv.rotary_kv(qkv.clone(), cos, sin, caches[0], caches[1], slots, q_norm, k_norm, 1e-6)
    assert_close(native.rotary_kv(qkv, cos, sin, caches[2], caches[3], slots, q_norm, k_norm, 1e-6), truth)
    for got, expected in zip(token_order(caches[2], caches[3]), caches[:2], strict=True):
        # Those of other slots included. Rounded to eight bits, a last bit may become a step.
        assert_close(restored(got), restored(expected), 3e-3 if dtype == torch.int8 else TOLERANCES[dtype])


def test_rotary_kv_int8_rows(native: Operations) -> None:
    # Nothing is rotated, so both forms round the same numbers: ties, zeros, the smallest there are, and none at all.
    rows = random(10, 3, 24)
    rows[1] = torch.arange(-12, 12) * 0.5 + torch.tensor([0, 127, 0.25])[:, None]
    rows[2, :2] = 0
    rows[3] *= 1e-44
    rows[4] *= 3e38 / rows[4].abs().max()
    rows[5, 1, 7] = torch.nan
    rows[6, 2, 0] = torch.inf
    rows[7, 1, 23] = -torch.inf
    caches = [torch.full((2, 8, 1, row_width(24, torch.int8)), -1, dtype=torch.int8) for _ in range(4)]
    unturned = torch.ones(10, 24), torch.zeros(10, 24)
    slots = torch.tensor([3, 0, 9, 15, 8, 1, 2, 14, 4, 5])
    rotary_kv.rotary_kv(rows.clone(), *unturned, caches[0], caches[1], slots, None, None, 0)
    native.rotary_kv(rows, *unturned, caches[2], caches[3], slots, None, None, 0)
    for got, expected in zip(token_order(caches[2], caches[3]), caches[:2], strict=True):
        assert torch.equal(got[..., :24], expected[..., :24])
        poisoned = restored(expected).isnan()
        assert torch.equal(restored(got).isnan(), poisoned)
        assert_close(restored(got)[~poisoned], restored(expected)[~poisoned])


@given(
    sequences=st.lists(
        st.tuples(st.one_of(st.just(1), st.integers(1, 50)), st.sampled_from([0, 1, 7, 8, 31, 32, 33, 300])),
        min_size=1,
        max_size=6,
    ),
    size=st.sampled_from([8, 16, 32]),
    heads=st.sampled_from(
        [(9, 3, 64), (4, 4, 16), (8, 1, 32), (14, 2, 24), (2, 1, 80), (6, 2, 96), (5, 1, 128), (2, 1, 256)]
    ),
    cache=st.sampled_from(CACHES),
    seed=st.integers(0, 5),
)
@settings(max_examples=100)
def test_paged_attention(
    native: Operations,
    sequences: list[tuple[int, int]],
    size: int,
    heads: tuple[int, int, int],
    cache: tuple[torch.dtype, bool],
    seed: int,
) -> None:
    check_attention(native, sequences, size, heads, cache, seed)


@pytest.mark.parametrize(
    ("size", "cache"),
    [
        *((size, cache) for size in (8, 16, 32) for cache in CACHES if cache[0] in {torch.float32, torch.bfloat16}),
        (16, (torch.int8, False)),
    ],
    ids=str,
)
def test_paged_attention_long(native: Operations, size: int, cache: tuple[torch.dtype, bool]) -> None:
    check_attention(native, [(1, 8191), (30, 4000)], size, (9, 3, 64), cache, 0)


def check_attention(
    native: Operations,
    sequences: list[tuple[int, int]],
    size: int,
    heads: tuple[int, int, int],
    cache: tuple[torch.dtype, bool],
    seed: int,
) -> None:
    (q_heads, kv_heads, dim), (dtype, rounded) = heads, cache
    generator = torch.Generator().manual_seed(seed)
    context_lens = tuple(new + before for new, before in sequences)
    keys, values, tables = paged_pool(
        context_lens, block_size=size, kv_heads=kv_heads, head_dim=dim, dtype=dtype, generator=generator
    )
    batch = PagedBatch(size, tuple(new for new, _ in sequences), context_lens, tables)
    q = torch.randn(sum(batch.query_lens), q_heads, dim, generator=generator)
    truth = paged_attention.paged_attention(q, keys, values, batch, dim**-0.5)
    got = native.paged_attention(q, *pool_order(keys, values), batch, dim**-0.5, rounded=rounded)
    assert_close(got, truth, ROUNDED_TOLERANCE if rounded else None)


def bfloat16_pool(kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, tuple[tuple[int, ...], ...]]:
    """Of one context of 1,000 tokens, in blocks of 16 with heads of 64."""
    generator = torch.Generator().manual_seed(0)
    return paged_pool([1000], block_size=16, kv_heads=kv_heads, head_dim=64, dtype=torch.bfloat16, generator=generator)


@pytest.mark.parametrize("queries", [1, 40])
def test_paged_attention_bfloat16_is_as_exact_as_float32(native: Operations, queries: int) -> None:
    # Beside the same computation in float32 over the same cache, both against float64.
    keys, values, tables = bfloat16_pool(kv_heads=1)
    batch, q = PagedBatch(16, (queries,), (1000,), tables), random(queries, 4, 64)
    k, v = (cache[list(tables[0])].flatten(0, 1)[:1000, 0].double() for cache in (keys, values))
    hidden = torch.arange(1000) > torch.arange(1000 - queries, 1000)[:, None]
    scores = (q.double() @ k.T * 0.5).masked_fill(hidden[:, None], -torch.inf)
    truth = scores.softmax(dim=-1) @ v
    got = native.paged_attention(q, *pool_order(keys, values), batch, 0.5)
    in_float32 = paged_attention.paged_attention(q, keys, values, batch, 0.5)
    error, allowed = ((result - truth).square().mean().sqrt() for result in (got, in_float32))
    assert error <= allowed * 2  # sums one after the other lose more than torch's


@pytest.mark.parametrize("queries", [1, 40, 100])
def test_paged_attention_rounded(native: Operations, instruction_set: str, queries: int) -> None:
    keys, values, tables = bfloat16_pool(kv_heads=2)
    batch, q, pool = PagedBatch(16, (queries,), (1000,), tables), random(queries, 6, 64), pool_order(keys, values)
    truth = paged_attention.paged_attention(q, keys, values, batch, 0.125)
    got = native.paged_attention(q, *pool, batch, 0.125, rounded=True)
    assert_close(got, truth, ROUNDED_TOLERANCE)
    exact = native.paged_attention(q, *pool, batch, 0.125)
    assert torch.equal(got, exact) == (instruction_set not in {"amx", "avx512bf16"})


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("place", [40, 41, 49])
def test_paged_attention_bfloat16_not_finite(native: Operations, place: int, rounded: bool) -> None:
    # A token whose keys are no numbers shows in those that see it, and in no other.
    keys, values, tables = paged_pool(
        [50], block_size=8, kv_heads=1, head_dim=16, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)
    )
    keys[tables[0][place // 8], place % 8] = torch.nan
    finite = native.paged_attention(
        random(20, 4, 16), *pool_order(keys, values), PagedBatch(8, (20,), (50,), tables), 0.25, rounded=rounded
    )
    assert finite.isfinite().all(dim=(1, 2)).tolist() == [position < place for position in range(30, 50)]


def test_paged_attention_int8_not_finite(native: Operations) -> None:
    # A token whose keys are no numbers shows in those that see it, and in no other.
    keys, values, tables = paged_pool(
        [50], block_size=8, kv_heads=1, head_dim=16, dtype=torch.int8, generator=torch.Generator().manual_seed(0)
    )
    keys[tables[0][5], 1] = stored(torch.full((1, 16), torch.nan), torch.int8)  # position 41
    q = random(20, 4, 16)
    finite = native.paged_attention(q, *pool_order(keys, values), PagedBatch(8, (20,), (50,), tables), 0.25).isfinite()
    assert finite.all(dim=(1, 2)).tolist() == [True] * 11 + [False] * 9


@pytest.mark.parametrize(("dtype", "rounded"), CACHES, ids=str)
def test_paged_attention_token_is_the_same_in_any_chunk(native: Operations, dtype: torch.dtype, rounded: bool) -> None:
    # Forms differ with the number of queries, contexts go in pieces of 512 tokens, and the third begins under way.
    keys, values, tables = paged_pool(
        [1050], block_size=16, kv_heads=2, head_dim=24, dtype=dtype, generator=torch.Generator().manual_seed(0)
    )
    pool, q = pool_order(keys, values), random(40, 6, 24)
    together = native.paged_attention(q, *pool, PagedBatch(16, (40,), (1050,), tables), 0.2, rounded=rounded)
    for row in (0, 12, 13, 14, 39):
        alone = native.paged_attention(
            q[row : row + 1], *pool, PagedBatch(16, (1,), (1011 + row,), tables), 0.2, rounded=rounded
        )
        assert torch.equal(alone, together[row : row + 1])
    few = native.paged_attention(q[12:15], *pool, PagedBatch(16, (3,), (1025,), tables), 0.2, rounded=rounded)
    assert torch.equal(few, together[12:15])


@pytest.mark.parametrize(("dtype", "rounded"), [cache for cache in CACHES if cache[0] != torch.float16], ids=str)
def test_paged_attention_threads_change_nothing(instruction_set: str, dtype: torch.dtype, rounded: bool) -> None:
    # Several share out a context, and whoever is done first takes the next piece.
    keys, values, tables = paged_pool(
        [3000, 40, 513, 512],
        block_size=16,
        kv_heads=3,
        head_dim=64,
        dtype=dtype,
        generator=torch.Generator().manual_seed(0),
    )
    pool, q = pool_order(keys, values), random(24, 9, 64)
    batch = PagedBatch(16, (1, 1, 2, 20), (3000, 40, 513, 512), tables)
    one, several = (Operations(Context(threads, instruction_set)) for threads in (1, 5))
    truth = one.paged_attention(q, *pool, batch, 0.125, rounded=rounded)
    expected = paged_attention.paged_attention(q, keys, values, batch, 0.125)
    assert_close(truth, expected, ROUNDED_TOLERANCE if rounded else None)
    for _ in range(20):
        assert torch.equal(several.paged_attention(q, *pool, batch, 0.125, rounded=rounded), truth)


def test_paged_attention_large_scores(native: Operations) -> None:
    keys, values, tables = paged_pool(
        [40], block_size=8, kv_heads=1, head_dim=8, dtype=torch.float32, generator=torch.Generator().manual_seed(0)
    )
    batch = PagedBatch(8, (4,), (40,), tables)
    q = random(4, 1, 8) * 1000
    truth = paged_attention.paged_attention(q, keys, values, batch, 1.0)
    assert_close(native.paged_attention(q, *pool_order(keys, values), batch, 1.0), truth, 1e-4)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_context_threads_change_nothing(threads: int) -> None:
    x, weight = random(10, 48), random(5000, 48, seed=1)  # 79 items
    one = Operations(Context(1)).linear(x, weight, None)
    several = Operations(Context(threads))
    for _ in range(50):
        assert torch.equal(several.linear(x, weight, None), one)


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("quantization", ["none", "w8a16", "w8a8"])
def test_linear_threads_change_nothing(instruction_set: str, quantization: str, threads: int) -> None:
    # Fewer panels than threads, as many, and parts of them that cannot be even.
    one, several = (Operations(Context(count, instruction_set)) for count in (1, threads))
    for out in (1, 17, 33, 112, 600):
        weight = random(out, 70, seed=1).bfloat16()
        for rows in (1, 2, 4, 5, 9, 33):
            x = random(rows, 70)
            expected = one.linear(x, weight, None, quantization=quantization)
            assert torch.equal(several.linear(x, weight, None, quantization=quantization), expected)


def kernel_threads() -> dict[str, str]:
    """State of each thread of a context, by its number."""
    states = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            name, state = (task / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            if name == "octavo-kernels":
                states[task.name] = state[0]
    return states


def test_context_sleeps_between_calls() -> None:
    context = Context(3)
    Operations(context).linear(random(70, 48), random(700, 48, seed=1), None)
    assert len(kernel_threads()) >= 2
    while set(kernel_threads().values()) != {"S"}:  # the test's time limit ends what never sleeps
        pass


def test_context_ends_its_threads() -> None:
    gc.collect()
    before = kernel_threads().keys()
    context = Context(3)
    assert len(kernel_threads().keys() - before) == 2
    del context
    assert not kernel_threads().keys() - before
