from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.linear import packing
from octavo_kernels.linear.packing import MOST_QUANTISED_INPUTS, pack_quantised
from octavo_kernels.linear.reference import dequantised, linear, linear_w8a8, quantised, rounded_rows
from octavo_kernels.native.arrays import from_tensor, to_tensor
from octavo_kernels.native.operations import Operations
from octavo_kernels.testing import assert_close

# In w8a16 activations of 16 bits, where there are instructions for int8; float32 elsewhere. In w8a8 they are the
# reference's, and so are sums but for rounding.
TOLERANCES = {"w8a16": 1e-4, "w8a8": 1e-6}


@pytest.fixture(params=TOLERANCES)
def quantization(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def truth(quantization: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if quantization == "w8a8":
        return linear_w8a8(x, *quantised(weight), bias)
    return linear(x, dequantised(*quantised(weight)), bias)


@given(
    quantization=st.sampled_from(sorted(TOLERANCES)),
    rows=st.integers(1, 35),
    out=st.sampled_from([1, 15, 16, 17, 48, 64, 65, 100, 1100]),
    columns=st.integers(1, 90),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=160)
def test_linear_quantised(
    native: Operations,
    quantization: str,
    rows: int,
    out: int,
    columns: int,
    dtype: torch.dtype,
    bias: bool,
    add: bool,
) -> None:
    x, weight = random(rows, columns), random(out, columns, seed=1).to(dtype)
    offset = random(out, seed=2).to(dtype) if bias else None
    before = random(rows, out, seed=3)
    expected = truth(quantization, x, weight, offset)
    got = native.linear(x, weight, offset, before.clone() if add else None, quantization=quantization)
    assert_close(got, expected + before if add else expected, TOLERANCES[quantization])


@pytest.mark.parametrize("rows", [288, 289, 600])
def test_linear_quantised_many_rows(native: Operations, quantization: str, rows: int) -> None:
    x, weight = random(rows, 1537), random(130, 1537, seed=1)
    got = native.linear(x, weight, None, quantization=quantization)
    assert_close(got, truth(quantization, x, weight), TOLERANCES[quantization])


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_linear_quantised_row_is_the_same_in_any_batch(native: Operations, quantization: str, rows: int) -> None:
    x, weight, bias = random(rows, 577), random(100, 577, seed=1).bfloat16(), random(100, seed=2)
    together = native.linear(x, weight, bias, quantization=quantization)
    for row in range(rows):
        alone = native.linear(x[row : row + 1], weight, bias, quantization=quantization)
        assert torch.equal(alone, together[row : row + 1])


def test_linear_quantised_zeros(native: Operations, quantization: str) -> None:
    x, weight = random(5, 70), random(40, 70, seed=1)
    x[1], x[3], weight[2], weight[17] = 0, 1e-42, 0, 1e-42
    got = native.linear(x, weight, None, quantization=quantization)
    assert_close(got, truth(quantization, x, weight), TOLERANCES[quantization])
    assert not got[1].any()
    assert not got[:, 2].any()


def test_linear_quantised_extremes(native: Operations, quantization: str) -> None:
    # Each row and each output have a scale of their own; sums reach their largest where all have one sign.
    x, weight = torch.ones(4, 4096), torch.ones(33, 4096)
    x *= torch.tensor([1e-20, 1e-3, -1.0, 1e20])[:, None]
    weight *= torch.logspace(-15, 15, 33)[:, None] * torch.tensor([1.0, -1.0, 1.0] * 11)[:, None]
    got = native.linear(x, weight, None, quantization=quantization)
    torch.testing.assert_close(got, truth(quantization, x, weight), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 68])
def test_linear_quantised_not_finite(native: Operations, quantization: str, bad: float, place: int) -> None:
    # One request's NaN must show in its own row, and in no other.
    x = random(3, 69)
    x[1, place] = bad
    finite = native.linear(x, random(40, 69, seed=1), None, quantization=quantization).isfinite()
    assert finite.all(dim=1).tolist() == [True, False, True]
    if quantization == "w8a8":
        assert not finite[1].any()


@given(rows=st.integers(1, 5), columns=st.integers(1, 40), exponent=st.integers(-20, 30))
def test_rounded_rows(rows: int, columns: int, exponent: int) -> None:
    x = random(rows, columns) * 10.0**exponent
    step = x.abs().amax(dim=1, keepdim=True) / 127
    whole = rounded_rows(x) / step
    assert ((whole - x / step).abs() <= 0.501).all()
    assert ((whole - whole.round()).abs() <= 1e-4).all()
    assert (whole.abs().amax(dim=1) - 127).abs().max() <= 1e-4, "all of the range is used"


def test_rounded_rows_at_the_edges() -> None:
    rows = [[0.0, -0.0], [1e-42, -1e-31], [torch.inf, 1.0], [1.0, torch.nan], [3e38, -3e38]]
    zeros, tiny, infinite, missing, huge = rounded_rows(torch.tensor(rows))
    assert not zeros.any()
    assert not tiny.any()
    assert infinite.isnan().all()
    assert missing.isnan().all()
    assert huge.isfinite().all()


@given(out=st.integers(1, 40), columns=st.integers(1, 20), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_quantised_is_within_half_a_step(out: int, columns: int, dtype: torch.dtype) -> None:
    weight = random(out, columns).to(dtype)
    weight[0] = 0
    steps, scales = quantised(weight)
    assert ((dequantised(steps, scales) - weight.float()).abs() <= scales[:, None] * 0.501).all()
    assert (steps.abs().amax(dim=1)[1:] == 127).all(), "all of the range is used"


def test_quantised_not_finite() -> None:
    weight = random(3, 8)
    weight[1, 2] = torch.nan
    finite = linear(torch.ones(1, 8), dequantised(*quantised(weight)), None).isfinite()
    assert finite.tolist() == [[True, False, True]]


def test_pack_quantised_too_wide() -> None:
    with pytest.raises(AssertionError, match="132105 inputs"):
        pack_quantised(np.empty((1, MOST_QUANTISED_INPUTS + 1)), quads=True)


@given(out=st.integers(1, 40), columns=st.integers(1, 20), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_quantised_of_arrays_as_the_reference(out: int, columns: int, dtype: torch.dtype) -> None:
    weight = random(out, columns).to(dtype)
    weight[0], weight[-1, 0] = 0, torch.inf
    (steps, scales), expected = packing.quantised(from_tensor(weight)), quantised(weight)
    assert torch.equal(to_tensor(scales), expected[1])
    assert torch.equal(to_tensor(steps)[:-1], expected[0][:-1])
