"""One program for each row, which it keeps in registers: a row is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu import Configuration, Shipped, launch

__all__ = ["add_rms_norm", "rms_norm", "shipped"]

MAX_WIDTH = 16384
"""The widest row that 16 warps keep in registers."""


@triton.jit
def rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, out_ptr, x_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    if residual_ptr is not None:
        residual_ptrs = residual_ptr + row * WIDTH + columns
        residual = tl.load(residual_ptrs, mask=inside, other=0.0)
        # What is normalised is what the residual stream keeps, so rounded to its type.
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptrs, x, mask=inside)
    wide = x.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide) / WIDTH + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    result = normed.to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, result.to(x.dtype), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    return _launch(x.reshape(-1, x.shape[-1]), None, weight, eps).view(x.shape)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See octavo_kernels.rms_norm."""
    return _launch(x, residual, weight, eps)


def configuration(width: int) -> Configuration:
    """For rows of this width: eight numbers a thread, until there are 16 warps.

    Raises:
        ValueError: The width is more than MAX_WIDTH.
    """
    if width > MAX_WIDTH:
        raise ValueError(f"rms_norm: rows of {width} numbers; on a GPU at most {MAX_WIDTH} are supported")
    block = triton.next_power_of_2(width)
    return Configuration({"WIDTH": width, "BLOCK": block}, num_warps=min(max(block // 256, 1), 16))


def _launch(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows, width = x.shape
    assert x.stride(1) == 1
    assert residual is None or residual.is_contiguous()
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    launch(rms_norm_kernel, (rows,), configuration(width), x, residual, weight, out, x.stride(0), eps)
    return out


def shipped() -> list[Shipped]:
    """Widths of SmolLM2-135M, Qwen3-0.6B, an 8B and a 405B model."""
    return [
        Shipped(
            name=f"{'add ' if add else ''}{dtype} w{width}",
            kernel=rms_norm_kernel,
            signature={
                "x_ptr": f"*{dtype}",
                "residual_ptr": f"*{dtype}" if add else "none",
                "weight_ptr": f"*{dtype}",
                "out_ptr": f"*{dtype}",
                "x_stride": "i32",
                "eps": "fp32",
            },
            configuration=configuration(width),
            divisible=("x_stride",),
            programs=2,
        )
        for dtype in ("bf16", "fp16")
        for width in (576, 1024, 4096, 16384)
        for add in (False, True)
        if dtype == "bf16" or width == 1024
    ]
