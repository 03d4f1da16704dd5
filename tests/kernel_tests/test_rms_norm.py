from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo_kernels.rms_norm import cpu, reference
from octavo_kernels.testing import TOLERANCES, assert_close

SHAPES = [(1, 576), (7, 64), (3, 5, 20), (33, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> None:
    x = (torch.randn(shape, generator=generator) * 3).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    wide = x.double()
    truth = (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()).to(dtype)
    assert_close(reference.rms_norm(x, weight, 1e-5), truth, TOLERANCES[dtype])
    assert_close(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), TOLERANCES[dtype])


@pytest.mark.parametrize("form", [reference, cpu])
def test_rms_norm_zero_row(form: Any) -> None:
    assert torch.equal(form.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5), torch.zeros(2, 8))


@pytest.mark.parametrize("form", [reference, cpu])
def test_add_rms_norm(form: Any, generator: torch.Generator) -> None:
    x, residual = torch.randn(5, 48, generator=generator), torch.randn(5, 48, generator=generator)
    weight = torch.randn(48, generator=generator)
    total = x + residual
    normed = form.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total), "the sum is left in the residual"
    assert_close(normed, reference.rms_norm(total, weight, 1e-6))
