from __future__ import annotations

import pytest
import torch

from octavo_kernels.paged_attention.rows import row_width
from octavo_kernels.rotary_kv import reference, triton
from octavo_kernels.testing import TOLERANCES, Guards, assert_close, scales_behind_blocks


def inputs(
    tokens: int, q_heads: int, kv_heads: int, dim: int, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    angles = torch.rand(tokens, dim // 2, generator=generator) * 6
    angles = torch.cat((angles, angles), dim=-1)
    return {
        "qkv": torch.randn(tokens, q_heads + 2 * kv_heads, dim, generator=generator).to(dtype),
        "cos": angles.cos().to(dtype),
        "sin": angles.sin().to(dtype),
        "k_cache": torch.full((5, 8, kv_heads, dim), torch.nan, dtype=dtype),
        "v_cache": torch.full((5, 8, kv_heads, dim), torch.nan, dtype=dtype),
        "slots": torch.randperm(5 * 8, generator=generator)[:tokens],
    }


def compare(given: dict[str, torch.Tensor], norms: list[torch.Tensor | None], guards: Guards) -> None:
    """Both forms on the same input: what they return, what they write, and that they write nothing else."""
    own = {name: guards.place(tensor) for name, tensor in given.items()}
    placed = [None if norm is None else guards.place(norm) for norm in norms]
    q_truth = reference.rotary_kv(**given, q_norm=norms[0], k_norm=norms[1], eps=1e-5)
    q = triton.rotary_kv(**own, q_norm=placed[0], k_norm=placed[1], eps=1e-5)
    tolerance = TOLERANCES[q.dtype]
    assert_close(q, q_truth, tolerance)
    for name in ("k_cache", "v_cache"):
        written = ~given[name].isnan()
        assert torch.equal(~own[name].isnan(), written), "other slots were written than this step's"
        assert_close(own[name][written], given[name][written], tolerance)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("tokens", "q_heads", "kv_heads", "dim"), [(1, 16, 8, 128), (15, 9, 3, 64), (16, 2, 2, 20), (17, 5, 1, 2)], ids=str
)
def test_rotary_kv(
    tokens: int,
    q_heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    norm: bool,
    generator: torch.Generator,
    guards: Guards,
) -> None:
    norms = [torch.randn(dim, generator=generator).to(dtype) if norm else None for _ in "qk"]
    compare(inputs(tokens, q_heads, kv_heads, dim, dtype, generator), norms, guards)


def test_rotary_kv_bfloat16(generator: torch.Generator, guards: Guards) -> None:
    norms: list[torch.Tensor | None] = [torch.randn(16, generator=generator).bfloat16() for _ in "qk"]
    compare(inputs(4, 3, 1, 16, torch.bfloat16, generator), norms, guards)


def test_rotary_kv_padding_is_written_nowhere(generator: torch.Generator, guards: Guards) -> None:
    given = inputs(5, 3, 1, 16, torch.float32, generator)
    given["slots"][[0, 3]] = -1
    compare(given, [None, None], guards)


def test_rotary_kv_cache_of_another_type(generator: torch.Generator, guards: Guards) -> None:
    given = inputs(3, 3, 1, 16, torch.float32, generator)
    given["k_cache"], given["v_cache"] = given["k_cache"].half(), given["v_cache"].half()
    compare(given, [None, None], guards)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    ("tokens", "q_heads", "kv_heads", "dim", "norm"), [(9, 9, 3, 64, False), (3, 2, 2, 20, True), (1, 1, 1, 4, False)]
)
def test_rotary_kv_in_eight_bits(
    dtype: torch.dtype,
    tokens: int,
    q_heads: int,
    kv_heads: int,
    dim: int,
    norm: bool,
    generator: torch.Generator,
    guards: Guards,
) -> None:
    given = inputs(tokens, q_heads, kv_heads, dim, torch.float32, generator)
    del given["k_cache"], given["v_cache"]
    given["qkv"][0, -1] = 0
    if tokens > 3:
        given["slots"][3] = -1
        given["qkv"][4, -1, 1] = torch.nan
        given["qkv"][5, q_heads, 0] = torch.inf
        given["qkv"][6, -1] *= 1e-44
        given["qkv"][7, -1] = torch.arange(-dim // 2, dim // 2) * 0.5 + 127 - dim / 4  # ties
    norms = [torch.randn(dim, generator=generator) if norm else None for _ in "qk"]
    cache = torch.full((5, 8, kv_heads, row_width(dim, dtype)), 7, dtype=torch.int8)
    truths = [cache.clone().view(dtype) for _ in "kv"]
    caches = [guards.place(scales_behind_blocks(cache.view(dtype)).view(torch.int8)).view(dtype) for _ in "kv"]
    own = {name: guards.place(tensor) for name, tensor in given.items()}
    q_truth = reference.rotary_kv(
        **given, k_cache=truths[0], v_cache=truths[1], q_norm=norms[0], k_norm=norms[1], eps=1e-5
    )
    q = triton.rotary_kv(**own, k_cache=caches[0], v_cache=caches[1], q_norm=norms[0], k_norm=norms[1], eps=1e-5)
    assert_close(q, q_truth)
    for got, truth in zip(caches, truths, strict=True):
        expected = scales_behind_blocks(truth)
        numbers, scales = (part(got, dim) for part in (numbers_of, scales_of))
        expected_numbers, expected_scales = (part(expected, dim) for part in (numbers_of, scales_of))
        assert torch.equal(scales.isnan(), expected_scales.isnan())
        assert torch.allclose(scales, expected_scales, rtol=1e-5, equal_nan=True)
        # A last bit may become a step. The interpreter loses the carry of what it rounds up to a power of two in fp8.
        error, size = (numbers.float() - expected_numbers.float()).abs(), expected_numbers.float().abs()
        if dtype == torch.int8:
            assert error.max() <= 1
            assert error.mean() < 0.01
        else:
            carry_lost = (size.log2() % 1 == 0) & (error == size / 2)
            assert (carry_lost | (error <= size / 8 + 2**-6)).all()


def numbers_of(cache: torch.Tensor, dim: int) -> torch.Tensor:
    return cache.flatten(1)[:, : cache.shape[1] * cache.shape[2] * dim]


def scales_of(cache: torch.Tensor, dim: int) -> torch.Tensor:
    return cache.flatten(1)[:, cache.shape[1] * cache.shape[2] * dim :].contiguous().view(torch.float32)


def test_rotary_kv_behind_two_to_the_31(generator: torch.Generator) -> None:
    # Offsets into a large pool need 64 bits. Memory of `empty` that nobody touches takes no room.
    given = inputs(1, 1, 1, 128, torch.float16, generator)
    given["k_cache"], given["v_cache"] = (torch.empty(2**31 // 2048 + 2, 16, 1, 128, dtype=torch.float16) for _ in "kv")
    given["slots"][0] = 2**31 // 128 + 5
    triton.rotary_kv(**given, q_norm=None, k_norm=None, eps=0)
    assert torch.equal(given["v_cache"].view(-1, 128)[given["slots"]], given["qkv"][:, 2])


def test_rotary_kv_no_tokens(generator: torch.Generator) -> None:
    given = inputs(0, 3, 1, 16, torch.float32, generator)
    assert triton.rotary_kv(**given, q_norm=None, k_norm=None, eps=0).shape == (0, 3, 16)
