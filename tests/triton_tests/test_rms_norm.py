from __future__ import annotations

import pytest
import torch

from octavo_kernels.rms_norm import reference, triton
from octavo_kernels.testing import Guards, assert_close

SHAPES = [(1, 576), (15, 33), (16, 1), (17, 16), (33, 2), (3, 1536)]


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator, guards: Guards) -> None:
    x, weight = normal(shape, dtype, generator), normal(shape[1:], dtype, generator)
    got = triton.rms_norm(guards.place(x), guards.place(weight), 1e-5)
    assert_close(got, reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator, guards: Guards) -> None:
    x, residual = normal(shape, dtype, generator), normal(shape, dtype, generator)
    weight = normal(shape[1:], dtype, generator)
    placed = guards.place(residual)
    got = triton.add_rms_norm(guards.place(x), placed, guards.place(weight), 1e-5)
    assert_close(got, reference.add_rms_norm(x, residual, weight, 1e-5))
    assert_close(placed, residual)  # which the reference has added to


def test_rms_norm_columns_of_a_wider_tensor(generator: torch.Generator, guards: Guards) -> None:
    wide, weight = normal((5, 100), torch.float32, generator), normal((40,), torch.float32, generator)
    wide[:, 40:] = torch.nan
    got = triton.rms_norm(guards.place(wide)[:, :40], guards.place(weight), 1e-5)
    assert_close(got, reference.rms_norm(wide[:, :40], weight, 1e-5))


def test_rms_norm_of_heads(generator: torch.Generator, guards: Guards) -> None:
    x, weight = normal((3, 4, 20), torch.float16, generator), normal((20,), torch.float16, generator)
    got = triton.rms_norm(guards.place(x), guards.place(weight), 1e-5)
    assert_close(got, reference.rms_norm(x, weight, 1e-5))


def test_rms_norm_no_rows() -> None:
    assert triton.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


def test_rms_norm_of_a_faulty_row_leaves_the_others(generator: torch.Generator) -> None:
    x, weight = normal((3, 8), torch.float32, generator), torch.ones(8)
    x[1, 2] = torch.nan
    got = triton.rms_norm(x, weight, 1e-5)
    assert got[1].isnan().all()
    assert_close(got[::2], reference.rms_norm(x[::2], weight, 1e-5))


def test_rms_norm_too_wide() -> None:
    with pytest.raises(ValueError, match="rows of 16385 numbers; on a GPU at most 16384"):
        triton.rms_norm(torch.empty(1, 16385), torch.empty(16385), 1e-5)
