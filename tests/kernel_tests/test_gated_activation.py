from __future__ import annotations

import pytest
import torch

from octavo_kernels.gated_activation import cpu, reference
from octavo_kernels.testing import TOLERANCES, assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 3072), (33, 62)], ids=str)
def test_silu_mul(shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    gate_up = (torch.randn(shape, generator=generator) * 4).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    truth = (gate / (1 + (-gate).exp()) * up).to(dtype)
    assert_close(reference.silu_mul(gate_up), truth, TOLERANCES[dtype])
    assert_close(cpu.silu_mul(gate_up.clone()), truth, TOLERANCES[dtype])
