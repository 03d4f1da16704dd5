from __future__ import annotations

import pytest
import torch

from octavo_kernels.linear import pairs, reference, triton
from octavo_kernels.testing import TOLERANCES, Guards, assert_close

# rows, in, out: decodes of 16 and of 64 rows, whole and in parts, and a prefill; no size a multiple of its tile
SHAPES = [(1, 576, 70), (16, 64, 100), (17, 192, 33), (33, 600, 5), (65, 130, 129)]
GROUP_SHAPES = [(1, 576, 70), (16, 64, 100), (17, 192, 33), (65, 128, 129)]


def cases(shapes: list[tuple[int, int, int]]) -> list[tuple[torch.dtype, int, int, int]]:
    """All shapes in float32, two of them in the narrower types, which differ in nothing but the product's type."""
    return [(torch.float32, *shape) for shape in shapes] + [
        (dtype, *shape) for dtype in (torch.float16, torch.bfloat16) for shape in shapes[1:3]
    ]


def int8_weight(
    width: int, outputs: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weight, scales = reference.quantised(torch.randn(outputs, width, generator=generator))
    return weight, scales, torch.randn(outputs, generator=generator).to(dtype)


def rows_of(rows: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, width, generator=generator).to(dtype)


@pytest.mark.parametrize(("dtype", "rows", "width", "outputs"), cases(SHAPES), ids=str)
def test_w8a16(
    dtype: torch.dtype, rows: int, width: int, outputs: int, generator: torch.Generator, guards: Guards
) -> None:
    x = rows_of(rows, width, dtype, generator)
    weight, scales, bias = int8_weight(width, outputs, dtype, generator)
    got = triton.linear_w8a16(*(guards.place(tensor) for tensor in (x, weight, scales, bias)))
    truth = reference.linear(x.float(), reference.dequantised(weight, scales), bias)
    assert_close(got, truth.to(dtype), TOLERANCES[dtype])


@pytest.mark.parametrize(("dtype", "rows", "width", "outputs"), cases(SHAPES), ids=str)
def test_invariant(
    dtype: torch.dtype, rows: int, width: int, outputs: int, generator: torch.Generator, guards: Guards
) -> None:
    x = rows_of(rows, width, dtype, generator)
    weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((outputs, width), (outputs,)))
    own = [guards.place(tensor) for tensor in (x, weight, bias)]
    got = triton.linear_invariant(*own)
    assert_close(got, reference.linear(x.float(), weight.float(), bias.float()).to(dtype), TOLERANCES[dtype])
    # The same bits whatever rows are beside it, and wherever in a tile it lies.
    for first, end in ((0, 1), (rows // 2, rows), (rows - 1, rows)):
        assert torch.equal(triton.linear_invariant(own[0][first:end], *own[1:]), got[first:end])


@pytest.mark.parametrize(("dtype", "rows", "width", "outputs"), cases(SHAPES), ids=str)
def test_w8a8(
    dtype: torch.dtype, rows: int, width: int, outputs: int, generator: torch.Generator, guards: Guards
) -> None:
    x = rows_of(rows, width, dtype, generator)
    weight, scales, bias = int8_weight(width, outputs, dtype, generator)
    got = triton.linear_w8a8(*(guards.place(tensor) for tensor in (x, weight, scales, bias)))
    # A number in the middle of two steps may be rounded to either.
    assert_close(got, reference.linear_w8a8(x, weight, scales, bias), max(TOLERANCES[dtype], 1e-3))


@pytest.mark.parametrize(("dtype", "rows", "width", "outputs"), cases(SHAPES), ids=str)
def test_w8a8_invariant(
    dtype: torch.dtype, rows: int, width: int, outputs: int, generator: torch.Generator, guards: Guards
) -> None:
    x = guards.place(rows_of(rows, width, dtype, generator))
    own = [guards.place(tensor) for tensor in int8_weight(width, outputs, dtype, generator)]
    got = triton.linear_w8a8_invariant(x, *own)
    assert_close(got, reference.linear_w8a8(x, *own), max(TOLERANCES[dtype], 1e-3))
    for first, end in ((0, 1), (rows // 2, rows), (rows - 1, rows)):
        assert torch.equal(triton.linear_w8a8_invariant(x[first:end], *own), got[first:end])


@pytest.mark.parametrize(("dtype", "rows", "width", "outputs"), cases(GROUP_SHAPES), ids=str)
def test_w4a16(
    dtype: torch.dtype, rows: int, width: int, outputs: int, generator: torch.Generator, guards: Guards
) -> None:
    x = rows_of(rows, width, dtype, generator)
    quants = torch.randint(16, (outputs, width), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(outputs, width // 32, generator=generator) + 0.1).half()
    minima = -8 * scales + torch.rand(scales.shape, generator=generator).half()
    bias = rows_of(1, outputs, dtype, generator)[0]
    packed, groups = pairs.pack_pairs(quants, scales, minima)
    got = triton.linear_w4a16(*(guards.place(tensor) for tensor in (x, packed, groups, bias)))
    wide = reference.dequantised_groups(quants, scales, minima)
    assert_close(got, reference.linear(x.float(), wide, bias).to(dtype))
    assert torch.equal(pairs.unpacked_rows(packed, groups), wide)
    some = torch.tensor([outputs - 1, 0, 2])
    assert torch.equal(pairs.unpacked_rows(packed, groups, some), wide[some])


def test_no_bias_and_rows_of_a_wider_tensor(generator: torch.Generator, guards: Guards) -> None:
    x = guards.place(rows_of(3, 200, torch.float32, generator))[:, :64]
    weight, scales, _ = int8_weight(64, 20, torch.float32, generator)
    truth = reference.linear(x, reference.dequantised(weight, scales), None)
    assert_close(triton.linear_w8a16(x, weight, scales, None), truth)
    assert_close(triton.linear_w8a8(x, weight, scales, None), truth, 0.01)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_w8a8_of_a_faulty_row_leaves_the_others(number: float, generator: torch.Generator) -> None:
    x = rows_of(3, 64, torch.float32, generator)
    weight, scales, _ = int8_weight(64, 20, torch.float32, generator)
    truth = triton.linear_w8a8(x, weight, scales, None)
    x[1, 5] = number
    got = triton.linear_w8a8(x, weight, scales, None)
    assert got[1].isnan().all()
    assert torch.equal(got[::2], truth[::2])


def test_zeros_stay_zeros(generator: torch.Generator) -> None:
    weight, scales, _ = int8_weight(64, 20, torch.float32, generator)
    assert not triton.linear_w8a8(torch.zeros(2, 64), weight, scales, None).any()


def test_no_rows(generator: torch.Generator) -> None:
    weight, scales, _ = int8_weight(64, 20, torch.float32, generator)
    assert triton.linear_w8a16(torch.empty(0, 64), weight, scales, None).shape == (0, 20)


def test_parts_cover_all_inputs_once() -> None:
    for rows in (1, 17, 64, 65, 4096):
        for width in (64, 576, 1536, 4096, 14336):
            for outputs in (20, 1024, 49152):
                constexprs = triton.configuration("w8a16", rows, width, outputs).constexprs
                assert constexprs["SPLITS"] == 1 or rows <= 64
                assert constexprs["SPLITS"] * -(-outputs // constexprs["BLOCK_OUT"]) <= 512 or constexprs["SPLITS"] == 1


def test_what_is_not_supported_says_so() -> None:
    quants, groups = torch.zeros(4, 96, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.float16)
    with pytest.raises(ValueError, match="96 inputs; on a GPU they must be a multiple of 64"):
        pairs.pack_pairs(quants, groups, groups)
    with pytest.raises(ValueError, match="32769 inputs; on a GPU at most 32768"):
        triton.linear_w8a8(torch.empty(1, 32769), torch.empty(1, 32769, dtype=torch.int8), torch.ones(1), None)
