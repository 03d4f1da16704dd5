"""Weights in groups of 32 inputs, in four bits with minima or in eight without."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.linear import packing
from octavo_kernels.linear.reference import from_groups, linear, rounded_groups
from octavo_kernels.native import Context
from octavo_kernels.native.arrays import from_tensor
from octavo_kernels.native.operations import Operations
from octavo_kernels.testing import assert_close

# Activations of 16 bits.
TOLERANCE = 5e-5

Groups = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight(bits: int, out: int, groups: int, seed: int = 1) -> Groups:
    """Any bytes, and scales and minima of both signs."""
    generator = torch.Generator().manual_seed(seed)
    quants = torch.randint(0, 256, (out, groups * 4 * bits), generator=generator, dtype=torch.uint8)
    scales, minima = torch.randn(2, out, groups, generator=generator).half()
    return (quants, scales, minima) if bits == 4 else (quants.view(torch.int8), scales, None)


@given(
    bits=st.sampled_from([4, 8]),
    rows=st.integers(1, 33),
    out=st.sampled_from([1, 7, 8, 9, 16, 17, 48, 65, 1100]),
    groups=st.integers(1, 4),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=60)
def test_linear_of_groups(
    native: Operations, bits: int, rows: int, out: int, groups: int, bias: bool, add: bool
) -> None:
    x, parts = random(rows, groups * 32), weight(bits, out, groups)
    offset = random(out, seed=2) if bias else None
    before = random(rows, out, seed=3)
    expected = linear(x, from_groups(*parts), offset)
    got = native.linear_of_groups(x, *parts, offset, before.clone() if add else None)
    error = got - (expected + before if add else expected)
    # Of few sums all may be near zero, so beside what sums are whose products have their signs by chance.
    size = linear(x.square(), from_groups(*parts).square(), None).sqrt()
    assert error.square().mean().sqrt() <= TOLERANCE * size.square().mean().sqrt()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 9, 40, 300])
def test_linear_of_groups_after_norm(native: Operations, bits: int, rows: int) -> None:
    x, parts, norm = random(rows, 96), weight(bits, 130, 3), (random(96, seed=2), 1e-5)
    truth = native.linear_of_groups(native.rms_norm(x, *norm), *parts, None)
    assert torch.equal(native.linear_of_groups(x, *parts, None, norm=norm), truth)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [288, 295])
def test_linear_of_groups_many_rows(native: Operations, bits: int, rows: int) -> None:
    x, parts = random(rows, 1536), weight(bits, 130, 48)
    assert_close(native.linear_of_groups(x, *parts, None), linear(x, from_groups(*parts), None), TOLERANCE)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 8, 39, 250])
def test_linear_of_groups_row_is_the_same_in_any_batch(native: Operations, bits: int, rows: int) -> None:
    x, parts, bias = random(rows, 576), weight(bits, 100, 18), random(100, seed=2)
    together = native.linear_of_groups(x, *parts, bias)
    for row in range(rows):
        assert torch.equal(native.linear_of_groups(x[row : row + 1], *parts, bias), together[row : row + 1])


@pytest.mark.parametrize("bits", [4, 8])
def test_linear_of_groups_reads_each_weight(native: Operations, bits: int) -> None:
    # A row with a single 1 gives back a column of the weight: scale * quant + minimum, to the last bits of float32.
    parts = weight(bits, 40, 3)
    got = native.linear_of_groups(torch.eye(96), *parts, None)
    torch.testing.assert_close(got.T, from_groups(*parts), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_linear_of_groups_extremes(native: Operations, bits: int) -> None:
    # Sums of whole numbers reach their largest where all have one sign.
    x = torch.ones(4, 4096) * torch.tensor([1e-20, 0.0, -1.0, 1e20])[:, None]
    quants = torch.full((33, 128 * 4 * bits), 255 if bits == 4 else 128, dtype=torch.uint8)
    scales = torch.logspace(-4, 4, 33)[:, None].expand(33, 128).half()
    parts: Groups = (quants, scales, scales) if bits == 4 else (quants.view(torch.int8), scales, None)
    got = native.linear_of_groups(x, *parts, None)
    torch.testing.assert_close(got, linear(x, from_groups(*parts), None), rtol=1e-4, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 63])
def test_linear_of_groups_not_finite(native: Operations, bad: float, place: int) -> None:
    x = random(3, 64)
    x[1, place] = bad
    finite = native.linear_of_groups(x, *weight(4, 40, 2), None).isfinite().all(dim=1)
    assert finite.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_groups_is_the_reference(dtype: torch.dtype) -> None:
    weight = (random(70, 96) * torch.logspace(-8, 4, 70)[:, None]).to(dtype)
    weight[3, :40] = 0
    quants, scales = rounded_groups(weight)
    got_quants, got_scales = packing.rounded_groups(from_tensor(weight))
    assert (got_quants == quants.numpy()).all()
    assert (got_scales == scales.numpy()).all()
    assert not quants[3, :32].any()


def test_rounded_groups_not_finite() -> None:
    weight = random(3, 64)
    weight[1, 40] = torch.nan
    for scales in (rounded_groups(weight)[1], torch.from_numpy(packing.rounded_groups(from_tensor(weight))[1])):
        assert scales.isfinite().tolist() == [[True, True], [True, False], [True, True]]


def test_pack_rounded() -> None:
    weight = random(1100, 64).bfloat16()
    quants, scales = rounded_groups(weight)
    whole = packing.pack_groups(quants.numpy(), scales.numpy(), None)
    got = packing.pack_rounded(from_tensor(weight))
    assert (got.panels == whole.panels).all()
    assert (got.out, got.columns, got.type) == (whole.out, whole.columns, whole.type)


def test_rounded_groups_error() -> None:
    # Half a step of each group's own, and what float16 rounds of its scale.
    weight = random(50, 576)
    error = (from_groups(*rounded_groups(weight), None) - weight).view(50, -1, 32).abs().amax(dim=2)
    assert bool((error <= weight.view(50, -1, 32).abs().amax(dim=2) * (0.5 / 127 + 2**-11)).all())


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("bits", [4, 8])
def test_linear_of_groups_threads_change_nothing(instruction_set: str, bits: int, threads: int) -> None:
    one, several = (Operations(Context(count, instruction_set)) for count in (1, threads))
    for out in (1, 17, 33, 112, 600):
        groups = weight(bits, out, 2)
        for rows in (1, 2, 4, 5, 9, 33):
            x = random(rows, 64)
            expected = one.linear_of_groups(x, *groups, None)
            assert torch.equal(several.linear_of_groups(x, *groups, None), expected)
