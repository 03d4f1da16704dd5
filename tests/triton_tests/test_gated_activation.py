from __future__ import annotations

import pytest
import torch

from octavo_kernels.gated_activation import reference, triton
from octavo_kernels.testing import Guards, assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 1536), (15, 33), (16, 1), (17, 16), (33, 2), (2, 1025), (1, 3072)], ids=str
)
def test_silu_mul(rows: int, width: int, dtype: torch.dtype, generator: torch.Generator, guards: Guards) -> None:
    gate_up = (4 * torch.randn(rows, 2 * width, generator=generator)).to(dtype)
    assert_close(triton.silu_mul(guards.place(gate_up)), reference.silu_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_silu_mul_of_large_numbers() -> None:
    # exp(-x) overflows for the first and vanishes for the last; neither may become NaN.
    gate = torch.tensor([[-3e4, -200.0, -0.0, 200.0, 3e4]])
    gate_up = torch.cat((gate, torch.full_like(gate, 2.0)), dim=1)
    assert triton.silu_mul(gate_up).tolist() == [[0, 0, 0, 400, 6e4]]


def test_silu_mul_columns_of_a_wider_tensor(generator: torch.Generator, guards: Guards) -> None:
    wide = torch.randn(5, 100, generator=generator)
    assert_close(triton.silu_mul(guards.place(wide)[:, :60]), reference.silu_mul(wide[:, :60]))


def test_silu_mul_no_rows() -> None:
    assert triton.silu_mul(torch.empty(0, 8)).shape == (0, 4)
