"""The products in Triton. README.md has the layouts.

A tile of the weight is the left operand of each product and the rows are the right one: the instructions want 16 rows
on the right at least and 64 on the left, which a decode of few rows does not have, and widened weights may stay in
registers on the left only.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["groups_kernel", "int8_kernel", "invariant_kernel", "quantise_kernel", "sum_kernel"]


@triton.jit
def _rows(x_ptr, rows, inputs, ROWS, x_stride, IN: tl.constexpr):
    """A tile of the rows, turned: [inputs, rows]."""
    mask = (rows < ROWS)[None, :] & (inputs < IN)[:, None]
    return tl.load(x_ptr + rows[None, :].to(tl.int64) * x_stride + inputs[:, None], mask=mask, other=0)


@triton.jit
def _store(result, rows, outputs, split, bias_ptr, out_ptr, ROWS, OUT: tl.constexpr, SPLITS: tl.constexpr):
    """A tile of the result, [outputs, rows], into [SPLITS, ROWS, OUT]; the bias is the last kernel's to add.

    Rows are aligned (octavo_kernels.aligned), and what lies behind them is written as well: a mask that ended at any
    number would make each store one of a single number.
    """
    memory: tl.constexpr = (OUT + 15) // 16 * 16
    if SPLITS == 1 and bias_ptr is not None:
        result += tl.load(bias_ptr + outputs, mask=outputs < OUT, other=0.0).to(tl.float32)[:, None]
    mask = (rows < ROWS)[None, :] & (outputs < memory)[:, None]
    at = (split * ROWS + rows[None, :]).to(tl.int64) * memory + outputs[:, None]
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["ROWS"])
def int8_kernel(
    x_ptr,  # [ROWS, IN]: whole numbers, or of any floating type
    x_scales_ptr,  # [ROWS], float32, of whole numbers
    weight_ptr,  # [OUT, IN], int8
    scales_ptr,  # [OUT], float32
    bias_ptr,  # [OUT], or None
    out_ptr,  # [SPLITS, ROWS, OUT], in aligned rows
    ROWS,
    x_stride,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SPLITS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of x @ weight.T, of one part of the inputs."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outputs = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    split = tl.program_id(2)
    length: tl.constexpr = tl.cdiv(tl.cdiv(IN, BLOCK_IN), SPLITS) * BLOCK_IN
    whole: tl.constexpr = x_ptr.dtype.element_ty == tl.int8
    weight_ptrs = weight_ptr + outputs[:, None].to(tl.int64) * IN
    sums = tl.zeros((BLOCK_OUT, BLOCK_ROWS), tl.int32 if whole else tl.float32)
    for start in range(split * length, tl.minimum((split + 1) * length, IN), BLOCK_IN):
        inputs = start + tl.arange(0, BLOCK_IN)
        mask = (outputs < OUT)[:, None] & (inputs < IN)[None, :]
        weight = tl.load(weight_ptrs + inputs[None, :], mask=mask, other=0)
        x = _rows(x_ptr, rows, inputs, ROWS, x_stride, IN)
        if whole:
            sums = tl.dot(weight, x, sums, out_dtype=tl.int32)
        elif UPCAST:
            sums = tl.dot(weight.to(tl.float32), x.to(tl.float32), sums, input_precision="ieee")
        else:
            sums = tl.dot(weight.to(x.dtype), x, sums, input_precision="ieee")
    result = sums.to(tl.float32) * tl.load(scales_ptr + outputs, mask=outputs < OUT, other=0.0)[:, None]
    if whole:
        result *= tl.load(x_scales_ptr + rows, mask=rows < ROWS, other=0.0)[None, :]
    _store(result, rows, outputs, split, bias_ptr, out_ptr, ROWS, OUT, SPLITS)


@triton.jit(do_not_specialize=["ROWS"])
def groups_kernel(
    x_ptr,  # [ROWS, IN]
    weight_ptr,  # [IN / 64, OUT, 32], uint8
    groups_ptr,  # [IN / 32, OUT], int32: two float16, the scale in the lower half and the minimum in the upper one
    bias_ptr,  # [OUT], or None
    out_ptr,  # [SPLITS, ROWS, OUT], in aligned rows
    ROWS,
    x_stride,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    SPLITS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The same for a weight of four bits, two groups of inputs at a time."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outputs = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    split = tl.program_id(2)
    pairs: tl.constexpr = IN // 64
    length: tl.constexpr = tl.cdiv(pairs, SPLITS)
    dtype: tl.constexpr = tl.float32 if UPCAST else x_ptr.dtype.element_ty
    steps = tl.arange(0, 32)
    is_output = outputs < OUT
    weight_ptrs = weight_ptr + outputs[:, None] * 32 + steps[None, :]
    sums = tl.zeros((BLOCK_OUT, BLOCK_ROWS), tl.float32)
    for pair in range(split * length, tl.minimum((split + 1) * length, pairs)):
        packed_ptrs = weight_ptrs + tl.cast(pair, tl.int64) * (OUT * 32)
        packed = tl.load(packed_ptrs, mask=is_output[:, None], other=0)
        for half in tl.static_range(2):
            # One load of four bytes, as little as can be fetched ahead of its use.
            group = tl.load(groups_ptr + (2 * pair + half) * OUT + outputs, mask=is_output, other=0)
            scale = group.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            minimum = (group >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            quants = (packed >> 4) if half == 1 else (packed & 15)
            weight = quants.to(tl.float32) * scale[:, None] + minimum[:, None]
            x = _rows(x_ptr, rows, pair * 64 + half * 32 + steps, ROWS, x_stride, IN)
            sums = tl.dot(weight.to(dtype), x.to(dtype), sums, input_precision="ieee")
    _store(sums, rows, outputs, split, bias_ptr, out_ptr, ROWS, OUT, SPLITS)


@triton.jit(do_not_specialize=["ROWS"])
def invariant_kernel(
    x_ptr,  # [ROWS, IN]
    weight_ptr,  # [OUT, IN]
    bias_ptr,  # [OUT], or None
    out_ptr,  # [ROWS, OUT], in aligned rows
    ROWS,
    x_stride,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of x @ weight.T of stored weights, all inputs in order."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    outputs = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    weight_ptrs = weight_ptr + outputs[:, None].to(tl.int64) * IN
    x_ptrs = x_ptr + rows[None, :].to(tl.int64) * x_stride
    sums = tl.zeros((BLOCK_OUT, BLOCK_ROWS), tl.float32)
    for start in range(0, IN, BLOCK_IN):
        inputs = start + tl.arange(0, BLOCK_IN)
        weight = tl.load(
            weight_ptrs + inputs[None, :], mask=(outputs < OUT)[:, None] & (inputs < IN)[None, :], other=0.0
        )
        x = tl.load(x_ptrs + inputs[:, None], mask=(rows < ROWS)[None, :] & (inputs < IN)[:, None], other=0.0)
        if UPCAST:
            weight = weight.to(tl.float32)
            x = x.to(tl.float32)
        sums = tl.dot(weight, x, sums, input_precision="ieee")
    _store(sums, rows, outputs, 0, bias_ptr, out_ptr, ROWS, OUT, 1)


@triton.jit(do_not_specialize=["ROWS"])
def sum_kernel(parts_ptr, bias_ptr, out_ptr, ROWS, OUT: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """The parts of one row, [SPLITS, ROWS, OUT] in aligned rows, in order, and the bias."""
    row = tl.program_id(0)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    memory: tl.constexpr = (OUT + 15) // 16 * 16
    inside = outputs < memory
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + (split * ROWS + row).to(tl.int64) * memory + outputs, mask=inside, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + outputs, mask=outputs < OUT, other=0.0).to(tl.float32)
    tl.store(out_ptr + row.to(tl.int64) * memory + outputs, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def quantise_kernel(x_ptr, quants_ptr, scales_ptr, x_stride, IN: tl.constexpr, BLOCK: tl.constexpr):
    """Rounds one row to whole numbers from -127 to 127 times a scale; a row that is not finite has a scale of NaN."""
    row = tl.program_id(0).to(tl.int64)
    inputs = tl.arange(0, BLOCK)
    inside = inputs < IN
    x = tl.load(x_ptr + row * x_stride + inputs, mask=inside, other=0.0).to(tl.float32)
    finite = tl.sum(x * 0.0)  # or NaN
    scale = tl.max(tl.abs(x)) / 127 + finite
    steps = x / tl.where(scale == 0, 1.0, scale)
    quants = tl.floor(tl.minimum(tl.maximum(steps, -127.0), 127.0) + 0.5)
    tl.store(quants_ptr + row * IN + inputs, quants.to(tl.int8), mask=inside)
    tl.store(scales_ptr + row, scale)
