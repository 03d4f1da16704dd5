"""Linear layers of stored weights on a GPU, each row with the same bits in any batch.

A vendor's library chooses a kernel, and with it the order of a row's sums, by the number of rows. Here all products have
one configuration: a row's sum goes over tiles of inputs from the first to the last, and columns of a tile's product do
not touch each other. README.md has what that costs.
"""

from __future__ import annotations

import torch
import triton

from octavo_kernels.aligned import aligned_rows
from octavo_kernels.gpu import TARGETS, Configuration, Shipped, launch
from octavo_kernels.linear.gpu_kernels import invariant_kernel

__all__ = ["linear_invariant", "shipped_invariant"]


def linear_invariant(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product x @ weight.T + bias, in which a row has the same bits whatever rows are beside it.

    Args:
        x: [tokens, in].
        weight: [out, in], of the same type, contiguous.
        bias: [out], or None.

    Returns:
        [tokens, out], in x's type and in aligned rows (octavo_kernels.aligned).

    Raises:
        KernelFailed: The kernel does not compile for this GPU.
    """
    rows, width = x.shape
    outputs = weight.shape[0]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    upcast = x.device.type == "cpu" and x.dtype == torch.bfloat16  # Triton's interpreter cannot multiply it
    chosen = configuration(width, outputs, upcast=upcast)
    out = aligned_rows(rows, outputs, x)
    grid = triton.cdiv(rows, chosen.constexprs["BLOCK_ROWS"]), triton.cdiv(outputs, chosen.constexprs["BLOCK_OUT"])
    launch(invariant_kernel, grid, chosen, x, weight, bias, out, rows, x.stride(0))
    return out


def configuration(width: int, outputs: int, *, upcast: bool = False) -> Configuration:
    """For a weight of [outputs, width], whatever the rows: 64 of them, which wastes little of a decode's reading."""
    constexprs = {"IN": width, "OUT": outputs, "BLOCK_ROWS": 64, "BLOCK_OUT": 64, "BLOCK_IN": 64, "UPCAST": upcast}
    return Configuration(constexprs, num_warps=4, num_stages=4)


def shipped_invariant() -> list[Shipped]:
    """The widest layer of Qwen3-0.6B and one of an 8B model."""
    return [
        Shipped(
            name=f"invariant {dtype} {width}x{outputs}",
            kernel=invariant_kernel,
            signature={
                "x_ptr": f"*{dtype}",
                "weight_ptr": f"*{dtype}",
                "bias_ptr": "none",
                "out_ptr": f"*{dtype}",
                "ROWS": "i32",
                "x_stride": "i32",
            },
            configuration=configuration(width, outputs),
            targets=(target,),
            divisible=("x_stride",),
            mma={80: "mma.sync", 90: "wgmma", 100: "tcgen05"}[target],
            programs=2,
        )
        for dtype, width, outputs in (("bf16", 1024, 6144), ("bf16", 4096, 4096), ("fp16", 4096, 4096))
        for target in TARGETS
    ]
