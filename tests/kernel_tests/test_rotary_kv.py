from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo_kernels.rotary_kv import cpu, reference
from octavo_kernels.testing import TOLERANCES, assert_close


def inputs(
    tokens: int, q_heads: int, kv_heads: int, dim: int, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    angles = torch.rand(tokens, dim // 2, generator=generator) * 6
    angles = torch.cat((angles, angles), dim=-1)
    slots = torch.randperm(5 * 8, generator=generator)[:tokens]
    return {
        "qkv": torch.randn(tokens, q_heads + 2 * kv_heads, dim, generator=generator).to(dtype),
        "cos": angles.cos().to(dtype),
        "sin": angles.sin().to(dtype),
        "k_cache": torch.full((5, 8, kv_heads, dim), torch.nan, dtype=dtype),
        "v_cache": torch.full((5, 8, kv_heads, dim), torch.nan, dtype=dtype),
        "slots": slots,
    }


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("q_heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 20), (5, 1, 2)])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_cpu_equals_reference(
    tokens: int, q_heads: int, kv_heads: int, dim: int, dtype: torch.dtype, norm: bool, generator: torch.Generator
) -> None:
    given = inputs(tokens, q_heads, kv_heads, dim, dtype, generator)
    weights = [torch.randn(dim, generator=generator).to(dtype) if norm else None for _ in "qk"]
    results = []
    for form in (reference, cpu):
        own = {name: tensor.clone() for name, tensor in given.items()}
        q = form.rotary_kv(**own, q_norm=weights[0], k_norm=weights[1], eps=1e-5)
        results.append((q, own["k_cache"], own["v_cache"]))
    (q_truth, *cache_truth), (q, *cache) = results
    assert_close(q, q_truth, TOLERANCES[dtype])
    written = torch.zeros(40, dtype=torch.bool)
    written[given["slots"]] = True
    for got, truth in zip(cache, cache_truth, strict=True):
        assert_close(got.flatten(0, 1)[written], truth.flatten(0, 1)[written], TOLERANCES[dtype])
        assert got.flatten(0, 1)[~written].isnan().all(), "a slot that is not this step's was written"


@pytest.mark.parametrize("form", [reference, cpu])
def test_rotation_is_a_complex_product(form: Any, generator: torch.Generator) -> None:
    given = inputs(6, 3, 2, 8, torch.float32, generator)
    before = given["qkv"].clone()
    q = form.rotary_kv(**given, q_norm=None, k_norm=None, eps=0)
    turn = torch.complex(given["cos"][:, None, :4], given["sin"][:, None, :4])
    turned = torch.complex(before[..., :4], before[..., 4:]) * turn
    truth = torch.cat((turned.real, turned.imag), dim=-1)
    assert_close(q, truth[:, :3])
    assert_close(given["k_cache"].flatten(0, 1)[given["slots"]], truth[:, 3:5])
    assert torch.equal(given["v_cache"].flatten(0, 1)[given["slots"]], before[:, 5:])


@pytest.mark.parametrize("form", [reference, cpu])
def test_cache_narrower_than_activations(form: Any, generator: torch.Generator) -> None:
    given = inputs(6, 3, 2, 8, torch.float32, generator)
    given["k_cache"], given["v_cache"] = given["k_cache"].bfloat16(), given["v_cache"].bfloat16()
    values = given["qkv"][:, 5:].clone()
    form.rotary_kv(**given, q_norm=None, k_norm=None, eps=0)
    assert torch.equal(given["v_cache"].flatten(0, 1)[given["slots"]], values.bfloat16())


@pytest.mark.parametrize("form", [reference, cpu])
def test_padding_is_written_nowhere(form: Any, generator: torch.Generator) -> None:
    given = inputs(6, 3, 2, 8, torch.float32, generator)
    given["slots"][[1, 4]] = -1
    kept = given["slots"] >= 0
    values = given["qkv"][kept, 5:].clone()
    form.rotary_kv(**given, q_norm=None, k_norm=None, eps=0)
    for cache in (given["k_cache"], given["v_cache"]):
        assert int(cache.flatten(0, 1).isfinite().any(dim=-1).any(dim=-1).sum()) == 4
    assert torch.equal(given["v_cache"].flatten(0, 1)[given["slots"][kept]], values)
