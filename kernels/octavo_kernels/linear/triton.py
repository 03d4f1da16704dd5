"""Linear layers of quantised weights on a GPU: few rows split the inputs among programs, many rows do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton

from octavo_kernels.aligned import aligned_rows, memory_width
from octavo_kernels.gpu import TARGETS, Configuration, Shipped, launch
from octavo_kernels.linear.gpu_kernels import groups_kernel, int8_kernel, quantise_kernel, sum_kernel
from octavo_kernels.linear.invariant import linear_invariant, shipped_invariant
from octavo_kernels.linear.pairs import GROUP

__all__ = [
    "linear_invariant",
    "linear_w4a16",
    "linear_w8a8",
    "linear_w8a8_invariant",
    "linear_w8a16",
    "shipped",
]

# Programs that the decode of few rows shall be at least, for the 108 to 148 multiprocessors of the GPUs compiled for.
_PROGRAMS = 256
_MAX_SPLITS = 8
_MAX_IN = 32768  # of rows that are rounded in one program's registers

_MMA = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}
_OLDER = triton.__version__.startswith("3.6.")
"""Triton 3.6 multiplies whole numbers on compute capability 10.0 as on 8.0: rightly, and more slowly."""


def linear_w8a16(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See octavo_kernels.linear."""
    chosen = configuration("w8a16", len(x), x.shape[1], len(weight), upcast=_upcast(x))
    return _int8(chosen, x, None, weight, scales, bias, aligned_rows(len(x), len(weight), x))


def linear_w8a8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As linear_w8a16, but each row of x is rounded to whole numbers first: products and sums of them are exact.

    Raises:
        ValueError: x is too wide.
    """
    chosen = configuration("w8a8", len(x), x.shape[1], len(weight))
    return _int8(chosen, *_rounded(x), weight, scales, bias, aligned_rows(len(x), len(weight), x))


def linear_w8a8_invariant(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """As linear_w8a8, and a row has the same bits whatever rows are beside it.

    Raises:
        ValueError: x is too wide.
    """
    chosen = invariant_configuration(x.shape[1], len(weight))
    return _int8(chosen, *_rounded(x), weight, scales, bias, aligned_rows(len(x), len(weight), x))


def linear_w4a16(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See octavo_kernels.linear."""
    rows, width = x.shape
    outputs = weight.shape[1]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    chosen = configuration("w4a16", rows, width, outputs, upcast=_upcast(x))
    return _product(groups_kernel, chosen, [x, weight, groups], bias, aligned_rows(rows, outputs, x), x.stride(0))


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers, int8, and a scale for each row, float32."""
    rows, width = x.shape
    if width > _MAX_IN:
        raise ValueError(f"w8a8: {width} inputs; on a GPU at most {_MAX_IN} are supported")
    assert x.stride(1) == 1
    quants = torch.empty((rows, width), dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    launch(quantise_kernel, (rows,), quantise_configuration(width), x, quants, scales, x.stride(0))
    return quants, scales


def _int8(
    chosen: Configuration,
    x: torch.Tensor,
    x_scales: torch.Tensor | None,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> torch.Tensor:
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    return _product(int8_kernel, chosen, [x, x_scales, weight, scales], bias, out, x.stride(0))


def _product(
    kernel: Any,
    chosen: Configuration,
    operands: list[torch.Tensor | None],
    bias: torch.Tensor | None,
    out: torch.Tensor,
    x_stride: int,
) -> torch.Tensor:
    """Launches a product into aligned rows, and the sum of its parts where there are several."""
    rows, outputs = out.shape
    splits = chosen.constexprs["SPLITS"]
    grid = (
        triton.cdiv(rows, chosen.constexprs["BLOCK_ROWS"]),
        triton.cdiv(outputs, chosen.constexprs["BLOCK_OUT"]),
        splits,
    )
    parts = out if splits == 1 else out.new_empty((splits, rows, memory_width(outputs)), dtype=torch.float32)
    launch(kernel, grid, chosen, *operands, bias, parts, rows, x_stride)
    if splits > 1:
        summing = sum_configuration(outputs, splits)
        launch(sum_kernel, (rows, triton.cdiv(outputs, summing.constexprs["BLOCK"])), summing, parts, bias, out, rows)
    return out


def _upcast(x: torch.Tensor) -> bool:
    """Whether products are in float32: Triton's interpreter, which alone runs on a CPU, cannot multiply bfloat16."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def configuration(form: str, rows: int, width: int, outputs: int, *, upcast: bool = False) -> Configuration:
    """For a product of so many rows.

    Args:
        form: w8a16, w8a8 or w4a16.
        rows: Of x. A decode of up to 64 has tiles of 16, 32 or 64 rows, a prefill of 128.
        width: Inputs.
        outputs: Of the weight.
        upcast: See `_upcast`.
    """
    decode = rows <= 64
    block_out = 64 if decode else 128
    constexprs = {
        "IN": width,
        "OUT": outputs,
        "BLOCK_ROWS": min(max(triton.next_power_of_2(rows), 16), 64) if decode else 128,
        "BLOCK_OUT": block_out,
        "SPLITS": 1,
        "UPCAST": upcast,
    }
    block_in = 2 * GROUP
    if form != "w4a16":
        constexprs["BLOCK_IN"] = block_in = 128 if decode or form == "w8a8" else 64
    if decode:
        # Each part is two blocks of inputs at least.
        most = min(_MAX_SPLITS, max(width // (2 * block_in), 1), _PROGRAMS // triton.cdiv(outputs, block_out))
        constexprs["SPLITS"] = 1 << (most.bit_length() - 1) if most > 1 else 1
    # A stage of w4a16 is small, so more of them are under way.
    stages = (6 if form == "w4a16" else 4) if decode else 3
    return Configuration(constexprs, num_warps=4 if decode else 8, num_stages=stages)


def invariant_configuration(width: int, outputs: int) -> Configuration:
    """Of w8a8, one for all numbers of rows: 64 at a time, with all inputs in one program."""
    chosen = configuration("w8a8", 64, width, outputs)
    return replace(chosen, constexprs={**chosen.constexprs, "SPLITS": 1})


def sum_configuration(outputs: int, splits: int) -> Configuration:
    """For the sum of the parts of a product."""
    block = min(triton.next_power_of_2(outputs), 512)
    return Configuration({"OUT": outputs, "SPLITS": splits, "BLOCK": block}, num_warps=max(block // 128, 1))


def quantise_configuration(width: int) -> Configuration:
    """For rows of this width: eight numbers a thread, until there are 16 warps."""
    block = triton.next_power_of_2(width)
    return Configuration({"IN": width, "BLOCK": block}, num_warps=min(max(block // 256, 1), 16))


def shipped() -> list[Shipped]:
    """The widest layer of Qwen3-0.6B and one of an 8B model, in decodes of up to 16 and of 64 rows and in a prefill."""
    shapes = ((1024, 6144), (4096, 4096))
    products = [
        _shipped_product(
            f"{form} {dtype} r{rows} {width}x{outputs}",
            form,
            dtype,
            configuration(form, rows, width, outputs),
            target,
            programs=2 if rows == 16 else 1,
        )
        for form in ("w8a16", "w8a8", "w4a16")
        for dtype in ("bf16", "fp16")
        for rows in (16, 64, 2048)
        for width, outputs in shapes
        for target in TARGETS
        if width == 4096 or dtype == "bf16"
        if form != "w8a8" or dtype == "bf16"
    ]
    products += [
        _shipped_product(
            f"w8a8 bf16 invariant {width}x{outputs}",
            "w8a8",
            "bf16",
            invariant_configuration(width, outputs),
            target,
            programs=1,
        )
        for width, outputs in shapes
        for target in TARGETS
    ]
    sums = Shipped(
        name="sum bf16 4096 of 4",
        kernel=sum_kernel,
        signature={"parts_ptr": "*fp32", "bias_ptr": "none", "out_ptr": "*bf16", "ROWS": "i32"},
        configuration=sum_configuration(4096, 4),
        programs=8,
    )
    quantise = [
        Shipped(
            name=f"quantise bf16 w{width}",
            kernel=quantise_kernel,
            signature={"x_ptr": "*bf16", "quants_ptr": "*i8", "scales_ptr": "*fp32", "x_stride": "i32"},
            configuration=quantise_configuration(width),
            divisible=("x_stride",),
        )
        for width in (1024, 4096, 14336)
    ]
    return [*products, sums, *quantise, *shipped_invariant()]


def _shipped_product(name: str, form: str, dtype: str, chosen: Configuration, target: int, *, programs: int) -> Shipped:
    if form == "w4a16":
        operands = {"x_ptr": f"*{dtype}", "weight_ptr": "*u8", "groups_ptr": "*i32"}
    else:
        operands = {
            "x_ptr": "*i8" if form == "w8a8" else f"*{dtype}",
            "x_scales_ptr": "*fp32" if form == "w8a8" else "none",
            "weight_ptr": "*i8",
            "scales_ptr": "*fp32",
        }
    return Shipped(
        name=name,
        kernel=groups_kernel if form == "w4a16" else int8_kernel,
        signature={
            **operands,
            "bias_ptr": "none",
            "out_ptr": f"*{dtype}" if chosen.constexprs["SPLITS"] == 1 else "*fp32",
            "ROWS": "i32",
            "x_stride": "i32",
        },
        configuration=chosen,
        targets=(target,),
        divisible=("x_stride",),
        # On sm_90 a stage of w4a16 with 16 rows is fetched with eight bytes a thread.
        vectors=not (form == "w4a16" and chosen.constexprs["BLOCK_ROWS"] == 16 and target == 90),
        mma="mma.sync" if form == "w8a8" and target == 100 and _OLDER else _MMA[target],
        programs=programs,
    )
