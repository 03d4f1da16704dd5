"""One program for each piece of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu import Configuration, Shipped, launch

__all__ = ["shipped", "silu_mul"]


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate_ptrs = gate_up_ptr + row * row_stride + columns
    gate = tl.load(gate_ptrs, mask=inside, other=0.0)
    up = tl.load(gate_ptrs + WIDTH, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    result = activated.to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, result.to(gate.dtype), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See octavo_kernels.gated_activation."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = _block(width)
    launch(silu_mul_kernel, (rows, triton.cdiv(width, block)), configuration(width), gate_up, out, gate_up.stride(0))
    return out


def configuration(width: int) -> Configuration:
    """For rows of this width: eight numbers a thread."""
    block = _block(width)
    return Configuration({"WIDTH": width, "BLOCK": block}, num_warps=max(block // 256, 1))


def _block(width: int) -> int:
    """Columns of a program. Small, so that a few tokens already fill a device."""
    return min(int(triton.next_power_of_2(width)), 1024)


def shipped() -> list[Shipped]:
    """Widths of SmolLM2-135M, Qwen3-0.6B and an 8B model."""
    return [
        Shipped(
            name=f"{dtype} w{width}",
            kernel=silu_mul_kernel,
            signature={"gate_up_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "row_stride": "i32"},
            configuration=configuration(width),
            divisible=("row_stride",),
            programs=8,
        )
        for dtype in ("bf16", "fp16")
        for width in (1536, 3072, 14336)
        if dtype == "bf16" or width == 3072
    ]
