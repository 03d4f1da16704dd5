from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.linear import packing
from octavo_kernels.linear.packing import MOST_QUANTISED_INPUTS, pack_quantised
from octavo_kernels.linear.reference import dequantised, linear, quantised
from octavo_kernels.native.arrays import from_tensor, to_tensor
from octavo_kernels.native.operations import Operations
from octavo_kernels.testing import assert_close

# Activations of 16 bits, where there are instructions for int8; float32 elsewhere.
TOLERANCE = 1e-4


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def truth(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return linear(x, dequantised(*quantised(weight)), bias)


@given(
    rows=st.integers(1, 33),
    out=st.sampled_from([1, 15, 16, 17, 48, 64, 65, 100, 1100]),
    columns=st.integers(1, 90),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=80)
def test_linear_quantised(
    native: Operations, rows: int, out: int, columns: int, dtype: torch.dtype, bias: bool, add: bool
) -> None:
    x, weight = random(rows, columns), random(out, columns, seed=1).to(dtype)
    offset = random(out, seed=2).to(dtype) if bias else None
    before = random(rows, out, seed=3)
    expected = truth(x, weight, offset)
    got = native.linear(x, weight, offset, before.clone() if add else None, quantised=True)
    assert_close(got, expected + before if add else expected, TOLERANCE)


@pytest.mark.parametrize("rows", [240, 241, 500])
def test_linear_quantised_many_rows(native: Operations, rows: int) -> None:
    x, weight = random(rows, 1537), random(130, 1537, seed=1)
    assert_close(native.linear(x, weight, None, quantised=True), truth(x, weight), TOLERANCE)


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_linear_quantised_row_is_the_same_in_any_batch(native: Operations, rows: int) -> None:
    x, weight, bias = random(rows, 577), random(100, 577, seed=1).bfloat16(), random(100, seed=2)
    together = native.linear(x, weight, bias, quantised=True)
    for row in range(rows):
        assert torch.equal(native.linear(x[row : row + 1], weight, bias, quantised=True), together[row : row + 1])


def test_linear_quantised_zeros(native: Operations) -> None:
    x, weight = random(5, 70), random(40, 70, seed=1)
    x[1], x[3], weight[2], weight[17] = 0, 1e-42, 0, 1e-42
    got = native.linear(x, weight, None, quantised=True)
    assert_close(got, truth(x, weight), TOLERANCE)
    assert not got[1].any()
    assert not got[:, 2].any()


def test_linear_quantised_extremes(native: Operations) -> None:
    # Each row and each output have a scale of their own; sums reach their largest where all have one sign.
    x, weight = torch.ones(4, 4096), torch.ones(33, 4096)
    x *= torch.tensor([1e-20, 1e-3, -1.0, 1e20])[:, None]
    weight *= torch.logspace(-15, 15, 33)[:, None] * torch.tensor([1.0, -1.0, 1.0] * 11)[:, None]
    torch.testing.assert_close(native.linear(x, weight, None, quantised=True), truth(x, weight), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 68])
def test_linear_quantised_not_finite(native: Operations, bad: float, place: int) -> None:
    # One request's NaN must show in its own row, and in no other.
    x = random(3, 69)
    x[1, place] = bad
    finite = native.linear(x, random(40, 69, seed=1), None, quantised=True).isfinite().all(dim=1)
    assert finite.tolist() == [True, False, True]


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
