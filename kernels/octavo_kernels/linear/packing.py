"""Weights in panels of 16 outputs, as the native forms read them; native.h, quads.h and groups.h draw the layouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo_kernels.native import abi
from octavo_kernels.native.arrays import BFLOAT16, Array, cast, dtype_name
from octavo_kernels.native.huge_pages import HugeZeros

__all__ = [
    "GROUP",
    "MOST_QUANTISED_INPUTS",
    "PANEL",
    "PackedLinear",
    "pack_groups",
    "pack_linear",
    "pack_panels",
    "pack_quantised",
    "pack_rounded",
    "quantised",
    "rounded_groups",
]

PANEL = 16
_QUAD = 4
GROUP = 32
"""Inputs that share a scale, in weights in groups."""
_PANELS_AT_ONCE = 64
_ROWS_AT_ONCE = _PANELS_AT_ONCE * PANEL  # in float32 beside the packed weight, while it is quantised

_ZEROS = HugeZeros()

MOST_QUANTISED_INPUTS = 2**31 // (128 * 127)
"""Whole numbers of 32 bits hold no longer sums; no model comes near."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """x @ weight.T + bias.

    Attributes:
        panels: [panels, in / together, 16, together], in a type of abi.TYPES: one number together, two of bfloat16, or
            four of int8 in quads; or in groups, [panels, in / 32, bytes], uint8.
        bias: [out], float32, or None.
        out: Outputs.
        columns: Inputs.
        scales: [panels * 16], float32, of an int8 weight; None otherwise.
        offsets: [panels * 16], int32, in quads: -128 times the sum of each output's weights; None otherwise.
        group_bits: 4 or 8, of a weight in groups; None otherwise.
        int8_rows: Of an int8 weight: whether rows of x are rounded to eight bits as well.
    """

    panels: Array
    bias: Array | None
    out: int
    columns: int
    scales: Array | None = None
    offsets: Array | None = None
    group_bits: int | None = None
    int8_rows: bool = False

    @property
    def type(self) -> int:
        """As the library numbers it."""
        if self.group_bits is not None:
            return abi.GROUPS[self.group_bits]
        return abi.TYPES[dtype_name(self.panels.dtype)] if self.offsets is None else abi.QUADS

    def struct(self) -> abi.Linear:
        """What the library takes; valid as long as this object lives."""
        return abi.Linear(
            weight=self.panels.ctypes.data,
            bias=None if self.bias is None else self.bias.ctypes.data,
            out=self.out,
            in_=self.columns,
            type=self.type,
            scales=None if self.scales is None else self.scales.ctypes.data,
            offsets=None if self.offsets is None else self.offsets.ctypes.data,
            int8_rows=self.int8_rows,
        )


def pack_linear(weight: Array, bias: Array | None = None) -> PackedLinear:
    """Packs [out, in] with its bias, [out]."""
    return PackedLinear(pack_panels(weight), _bias(bias), *weight.shape)


def pack_quantised(weight: Array, bias: Array | None = None, *, quads: bool, int8_rows: bool = False) -> PackedLinear:
    """Packs [out, in], rounded as the reference does, with its bias, [out].

    Args:
        weight: In any type.
        bias: The same.
        quads: As `Context.quads` says.
        int8_rows: As `PackedLinear` has it.
    """
    out, columns = weight.shape
    assert columns <= MOST_QUANTISED_INPUTS, f"{columns} inputs"
    packed = _panels(out, columns, np.dtype(np.int8), _QUAD if quads else 1)
    panels = packed.shape[0]
    scales = np.zeros(panels * PANEL, np.float32)
    offsets = np.zeros(panels * PANEL, np.int32)
    for first in range(0, out, _ROWS_AT_ONCE):
        steps, scales_of_part = quantised(weight[first : first + _ROWS_AT_ONCE])
        rows = slice(first, first + len(steps))
        scales[rows] = scales_of_part
        offsets[rows] = -128 * steps.sum(axis=1, dtype=np.int32)
        _fill(packed[first // PANEL :], steps)
    of_quads = offsets if quads else None
    return PackedLinear(packed, _bias(bias), out, columns, scales, of_quads, int8_rows=int8_rows)


def quantised(weight: Array) -> tuple[Array, Array]:
    """As `reference.quantised`, to the last bit: [out, in], int8, and [out], float32."""
    wide = cast(weight, np.dtype(np.float32))
    scales: Array = np.abs(wide).max(axis=1) / np.float32(127)
    with np.errstate(invalid="ignore"):  # of rows that are not finite, whose steps mean nothing
        steps = wide / np.where(scales == 0, np.float32(1), scales)[:, None]
        steps = np.clip(np.rint(steps, out=steps), -127, 127, out=steps).astype(np.int8)
    return steps, scales


def pack_rounded(weight: Array) -> PackedLinear:
    """Packs [out, in], in any type, in groups of GROUP inputs, rounded to eight bits as the reference does."""
    out, columns = weight.shape
    quants, scales = np.empty((out, columns), np.int8), np.empty((out, columns // GROUP), np.float16)
    for first in range(0, out, _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        quants[rows], scales[rows] = rounded_groups(weight[rows])
    return pack_groups(quants, scales, None)


def rounded_groups(weight: Array) -> tuple[Array, Array]:
    """As `reference.rounded_groups`, to the last bit: [out, in], int8, and [out, in / GROUP], float16."""
    groups = cast(weight, np.dtype(np.float32)).reshape(len(weight), -1, GROUP)
    with np.errstate(all="ignore"):  # of groups that are not finite, or out of float16's range
        scales: Array = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16)
        steps = groups / np.where(scales == 0, np.float32(1), scales.astype(np.float32))[..., None]
        steps = np.clip(np.rint(steps, out=steps), -127, 127, out=steps).astype(np.int8)
    return steps.reshape(weight.shape), scales


def pack_groups(quants: Array, scales: Array, minima: Array | None, bias: Array | None = None) -> PackedLinear:
    """Packs a weight in groups, in the form that `reference.from_groups` takes, with its bias, [out]."""
    out, groups = scales.shape
    panels = -(-out // PANEL)
    bits = 8 if minima is None else 4
    in_quants = PANEL * GROUP * bits // 8
    numbers = [scales] if minima is None else [scales, minima]
    packed = _ZEROS.array((panels, groups, in_quants + 2 * PANEL * len(numbers)), np.dtype(np.uint8))
    for first in range(0, panels, _PANELS_AT_ONCE):
        rows = slice(first * PANEL, (first + _PANELS_AT_ONCE) * PANEL)
        part = packed[first : first + _PANELS_AT_ONCE]
        steps = quants[rows].view(np.uint8).reshape(-1, groups, GROUP * bits // 8)
        if bits == 4:
            steps = np.concatenate((steps & 15, steps >> 4), axis=2)
        by_output = _whole_panels(steps)
        if bits == 4:
            # [panels, outputs, groups, pairs, 2] -> [panels, groups, pairs, outputs, 2]
            pairs = by_output.reshape(-1, PANEL, groups, GROUP // 2, 2).transpose(0, 2, 3, 1, 4)
            # A number of 16 bits holds four pairs: its lower byte the first of each two inputs, its upper byte the other.
            words = np.zeros((len(part), groups, 4, PANEL, 2), np.uint16)
            for pair in range(4):
                words |= pairs[:, :, pair::4].astype(np.uint16) << 4 * pair
            part[..., :in_quants] = words.reshape(len(part), groups, -1).view(np.uint8)
        else:
            # [panels, outputs, groups, quads, 2, 2] -> [panels, groups, quads, outputs, 2, 2], a quad's inner ones changed
            quads = by_output.reshape(-1, PANEL, groups, GROUP // _QUAD, 2, 2).transpose(0, 2, 3, 1, 5, 4)
            part[..., :in_quants] = quads.reshape(len(part), groups, -1)
        for number, values in enumerate(numbers):
            begin = in_quants + 2 * PANEL * number
            by_group = _whole_panels(values[rows]).reshape(-1, PANEL, groups).swapaxes(1, 2)
            part[..., begin : begin + 2 * PANEL] = np.ascontiguousarray(by_group).view(np.uint8)
    return PackedLinear(packed, _bias(bias), out, groups * GROUP, group_bits=bits)


def pack_panels(weight: Array) -> Array:
    """[out, in] in panels, rows beyond the last one zero; in huge pages if possible."""
    out, columns = weight.shape
    packed = _panels(out, columns, weight.dtype, 2 if weight.dtype == BFLOAT16 else 1)
    _fill(packed, weight)
    return packed


def _panels(out: int, columns: int, dtype: np.dtype, together: int) -> Array:
    """Zeros; an even number of panels, since some tiles take two at a time."""
    return _ZEROS.array((-(-out // (2 * PANEL)) * 2, -(-columns // together), PANEL, together), dtype)


def _fill(packed: Array, weight: Array) -> None:
    """Packs a weight into its first panels."""
    _, across, _, together = packed.shape
    missing = across * together - weight.shape[1]
    if missing:
        weight = np.concatenate((weight, np.zeros((len(weight), missing), weight.dtype)), axis=1)
    # What goes together moves as one number: [panel, output, across] -> [panel, across, output]
    number = np.dtype(f"u{packed.dtype.itemsize * together}")
    source, target = np.ascontiguousarray(weight).view(number), packed.view(number)[..., 0]
    whole, rest = divmod(len(weight), PANEL)
    target[:whole] = source[: whole * PANEL].reshape(whole, PANEL, across).swapaxes(1, 2)
    if rest:
        target[whole, :, :rest] = source[whole * PANEL :].T


def _whole_panels(rows: Array) -> Array:
    """With rows of zeros behind, to a multiple of 16."""
    missing = -len(rows) % PANEL
    return np.concatenate((rows, np.zeros((missing, *rows.shape[1:]), rows.dtype))) if missing else rows


def _bias(bias: Array | None) -> Array | None:
    return None if bias is None else np.ascontiguousarray(cast(bias, np.dtype(np.float32)))
