"""One program for a token and a few of its heads, whether they are of queries, keys or values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu import TARGETS, Configuration, Shipped, launch
from octavo_kernels.paged_attention.rows import has_scales, head_dim_of

__all__ = ["rotary_kv", "shipped"]


@triton.jit
def _weighted(normed, q_norm_ptr, k_norm_ptr, is_query, HALF: tl.constexpr):
    """One half of the normed heads, [BLOCK_HEADS, BLOCK_HALF], times its weights, rounded where rms_norm rounds."""
    dtype = q_norm_ptr.dtype.element_ty
    dims = tl.arange(0, normed.shape[1])
    q_weight = tl.load(q_norm_ptr + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    k_weight = tl.load(k_norm_ptr + dims, mask=dims < HALF, other=0.0).to(tl.float32)
    weight = tl.where(is_query[:, None], q_weight[None, :], k_weight[None, :])
    return (normed.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)


@triton.jit
def _store_scaled(first, second, cache_ptr, scales_ptr, slot, heads, inside, wanted, DIM: tl.constexpr,
                  BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr):  # fmt: skip
    """Rows in eight bits, as octavo_kernels.paged_attention.rows rounds them, and their scales.

    A block is its numbers, [BLOCK_SIZE, KV_HEADS, DIM], and behind them its scales, [KV_HEADS, BLOCK_SIZE] of float32.
    """
    half: tl.constexpr = DIM // 2
    numbers: tl.constexpr = BLOCK_SIZE * KV_HEADS * DIM
    block_bytes: tl.constexpr = numbers + BLOCK_SIZE * KV_HEADS * 4
    dtype = cache_ptr.dtype.element_ty
    most: tl.constexpr = 127.0 if cache_ptr.dtype.element_ty == tl.int8 else 448.0
    sizes = tl.maximum(tl.abs(first), tl.abs(second))
    finite = (tl.abs(first) < float("inf")) & (tl.abs(second) < float("inf"))  # false of NaN, too
    scale = tl.where(tl.min(finite.to(tl.int32), axis=1) == 1, tl.max(sizes, axis=1) / most, float("nan"))
    block = slot // BLOCK_SIZE
    place = slot % BLOCK_SIZE
    ptrs = cache_ptr + block * block_bytes + (place * KV_HEADS + heads[:, None]) * DIM + tl.arange(0, first.shape[1])
    mask = inside & wanted[:, None]
    tl.store(ptrs, _rounded(first, scale, most).to(dtype), mask=mask)
    tl.store(ptrs + half, _rounded(second, scale, most).to(dtype), mask=mask)
    scale_ptrs = scales_ptr + block * (block_bytes // 4) + numbers // 4 + heads * BLOCK_SIZE + place
    tl.store(scale_ptrs, scale, mask=wanted)


@triton.jit
def _rounded(x, scale, most: tl.constexpr):
    """Numbers of up to `most`, whole ones for int8; 0 where the scale is 0 or no number."""
    divisor = tl.where(scale > 0, scale, 1.0)[:, None]
    steps = tl.where((scale > 0)[:, None], tl.minimum(tl.maximum(x / divisor, -most), most), 0.0)
    if most == 127.0:
        # Rounds to even: a float32 of this size has no room for a fraction.
        steps = (steps + 12582912.0) - 12582912.0
    return steps


@triton.jit
def rotary_kv_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_scales_ptr,  # the same memory as float32; None unless the cache is in eight bits
    v_scales_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    qkv_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # looked at in eight bits alone
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    # heads of a row of qkv:   | 0 … Q_HEADS | … + KV_HEADS | … + KV_HEADS |
    #                             queries        keys           values
    # A head lies in registers as two halves, [BLOCK_HEADS, BLOCK_HALF] each, which turn into one another.
    half: tl.constexpr = DIM // 2
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, BLOCK_HALF)
    is_query = heads < Q_HEADS
    is_value = heads >= Q_HEADS + KV_HEADS
    is_key = (heads >= Q_HEADS) & (heads < Q_HEADS + KV_HEADS)
    inside = (heads < Q_HEADS + 2 * KV_HEADS)[:, None] & (dims < half)[None, :]

    qkv_ptrs = qkv_ptr + token * qkv_stride + heads[:, None] * DIM + dims[None, :]
    first = tl.load(qkv_ptrs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv_ptrs + half, mask=inside, other=0.0).to(tl.float32)

    if q_norm_ptr is not None:
        square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        scale = tl.rsqrt(square / DIM + eps)[:, None]
        is_normed = ~is_value[:, None]
        first = tl.where(is_normed, _weighted(first * scale, q_norm_ptr, k_norm_ptr, is_query, half), first)
        second = tl.where(
            is_normed, _weighted(second * scale, q_norm_ptr + half, k_norm_ptr + half, is_query, half), second
        )

    cos = tl.load(cos_ptr + token * DIM + dims, mask=dims < half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + token * DIM + dims, mask=dims < half, other=0.0).to(tl.float32)[None, :]
    turned = tl.where(is_value[:, None], first, first * cos - second * sin)
    second = tl.where(is_value[:, None], second, second * cos + first * sin)

    q_ptrs = q_ptr + (token * Q_HEADS + heads[:, None]) * DIM + dims[None, :]
    q_mask = inside & is_query[:, None]
    tl.store(q_ptrs, turned.to(q_ptr.dtype.element_ty), mask=q_mask)
    tl.store(q_ptrs + half, second.to(q_ptr.dtype.element_ty), mask=q_mask)

    slot = tl.load(slots_ptr + token)  # int64, so that offsets into a large pool do not wrap
    if slot >= 0:
        k_heads = heads - Q_HEADS
        v_heads = k_heads - KV_HEADS
        if k_scales_ptr is not None:
            _store_scaled(turned, second, k_cache_ptr, k_scales_ptr, slot, k_heads, inside, is_key, DIM,
                          BLOCK_SIZE, KV_HEADS)  # fmt: skip
            _store_scaled(turned, second, v_cache_ptr, v_scales_ptr, slot, v_heads, inside,
                          is_value & (v_heads < KV_HEADS), DIM, BLOCK_SIZE, KV_HEADS)  # fmt: skip
        else:
            cache_type = k_cache_ptr.dtype.element_ty
            k_ptrs = k_cache_ptr + (slot * KV_HEADS + k_heads[:, None]) * DIM + dims[None, :]
            k_mask = inside & is_key[:, None]
            tl.store(k_ptrs, turned.to(cache_type), mask=k_mask)
            tl.store(k_ptrs + half, second.to(cache_type), mask=k_mask)
            v_ptrs = v_cache_ptr + (slot * KV_HEADS + v_heads[:, None]) * DIM + dims[None, :]
            v_mask = inside & is_value[:, None]
            tl.store(v_ptrs, turned.to(cache_type), mask=v_mask)
            tl.store(v_ptrs + half, second.to(cache_type), mask=v_mask)


def rotary_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """See octavo_kernels.rotary_kv."""
    tokens, heads, head_dim = qkv.shape
    block_size, kv_heads = k_cache.shape[1:3]
    q_heads = heads - 2 * kv_heads
    in_eight_bits = has_scales(k_cache.dtype)
    assert head_dim_of(k_cache) == head_dim
    assert qkv.stride()[1:] == (head_dim, 1)
    assert all(tensor.is_contiguous() for tensor in (cos, sin, k_cache, v_cache, slots))
    q = torch.empty((tokens, q_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    chosen = configuration(q_heads, kv_heads, head_dim, block_size if in_eight_bits else 0)
    launch(
        rotary_kv_kernel,
        (tokens, triton.cdiv(heads, chosen.constexprs["BLOCK_HEADS"])),
        chosen,
        qkv,
        cos,
        sin,
        k_cache,
        v_cache,
        k_cache.view(torch.float32) if in_eight_bits else None,
        v_cache.view(torch.float32) if in_eight_bits else None,
        slots,
        q_norm,
        k_norm,
        q,
        qkv.stride(0),
        eps,
    )
    return q


def configuration(q_heads: int, kv_heads: int, head_dim: int, block_size: int = 0) -> Configuration:
    """For a model's heads: about 1,024 numbers in two warps, so that a few tokens already fill a device.

    Args:
        q_heads: Of queries.
        kv_heads: Of keys, and as many of values.
        head_dim: Width of a head.
        block_size: Tokens of a block in eight bits; 0 for a cache of another type, where a slot is a place.
    """
    half = triton.next_power_of_2(head_dim // 2)
    return Configuration(
        {
            "Q_HEADS": q_heads,
            "KV_HEADS": kv_heads,
            "DIM": head_dim,
            "BLOCK_SIZE": block_size,
            "BLOCK_HEADS": min(triton.next_power_of_2(q_heads + 2 * kv_heads), max(512 // half, 1)),
            "BLOCK_HALF": half,
        },
        num_warps=2,
    )


def shipped() -> list[Shipped]:
    """Heads of SmolLM2-135M, Qwen3-0.6B and Llama-3.1-8B."""
    return [
        Shipped(
            name=f"{'norm ' if norm else ''}{dtype} h{q_heads}/{kv_heads} d{head_dim}{f' {kv[:3]}' if kv else ''}",
            kernel=rotary_kv_kernel,
            signature={
                "qkv_ptr": f"*{dtype}",
                "cos_ptr": f"*{dtype}",
                "sin_ptr": f"*{dtype}",
                "k_cache_ptr": f"*{kv or dtype}",
                "v_cache_ptr": f"*{kv or dtype}",
                "k_scales_ptr": "*fp32" if kv else "none",
                "v_scales_ptr": "*fp32" if kv else "none",
                "slots_ptr": "*i64",
                "q_norm_ptr": f"*{dtype}" if norm else "none",
                "k_norm_ptr": f"*{dtype}" if norm else "none",
                "q_ptr": f"*{dtype}",
                "qkv_stride": "i32",
                "eps": "fp32",
            },
            configuration=configuration(q_heads, kv_heads, head_dim, 16 if kv else 0),
            targets=tuple(target for target in TARGETS if kv != "fp8e4nv" or target > 80),
            divisible=("qkv_stride",),
            programs=8,
        )
        for q_heads, kv_heads, head_dim, norm in ((9, 3, 64, False), (16, 8, 128, True), (32, 8, 128, False))
        for dtype in ("bf16", "fp16")
        for kv in ("", "i8", "fp8e4nv")
        if dtype == "bf16" or norm
    ]
