"""Weights in panels of 16 outputs, as the native forms read them; native.h, quads.h and groups.h draw the layouts."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from octavo_kernels.linear.reference import quantised
from octavo_kernels.native import abi

__all__ = [
    "GROUP",
    "MOST_QUANTISED_INPUTS",
    "PANEL",
    "PackedLinear",
    "pack_groups",
    "pack_linear",
    "pack_panels",
    "pack_quantised",
]

PANEL = 16
_QUAD = 4
GROUP = 32
"""Inputs that share a scale, in weights that are stored in groups."""
_PANELS_AT_ONCE = 64
_ROWS_AT_ONCE = _PANELS_AT_ONCE * PANEL  # in float32 beside the packed weight, while it is quantised

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
    """

    panels: torch.Tensor
    bias: torch.Tensor | None
    out: int
    columns: int
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    group_bits: int | None = None

    @property
    def type(self) -> int:
        """As the library numbers it."""
        if self.group_bits is not None:
            return abi.GROUPS[self.group_bits]
        return abi.TYPES[str(self.panels.dtype)] if self.offsets is None else abi.QUADS

    def struct(self) -> abi.Linear:
        """What the library takes; valid as long as this object lives."""
        return abi.Linear(
            weight=self.panels.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            out=self.out,
            in_=self.columns,
            type=self.type,
            scales=None if self.scales is None else self.scales.data_ptr(),
            offsets=None if self.offsets is None else self.offsets.data_ptr(),
        )


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """Packs [out, in] with its bias, [out]."""
    return PackedLinear(pack_panels(weight), _bias(bias), *weight.shape)


def pack_quantised(weight: torch.Tensor, bias: torch.Tensor | None = None, *, quads: bool) -> PackedLinear:
    """Packs [out, in], rounded as the reference does, with its bias, [out].

    Args:
        weight: In any type.
        bias: The same.
        quads: As `Context.quads` says.
    """
    out, columns = weight.shape
    assert columns <= MOST_QUANTISED_INPUTS, f"{columns} inputs"
    packed = _panels(out, columns, torch.int8, _QUAD if quads else 1)
    panels = packed.shape[0]
    scales = torch.zeros(panels * PANEL)
    offsets = torch.zeros(panels * PANEL, dtype=torch.int32)
    for first in range(0, out, _ROWS_AT_ONCE):
        steps, scales_of_part = quantised(weight[first : first + _ROWS_AT_ONCE])
        rows = slice(first, first + steps.shape[0])
        scales[rows] = scales_of_part
        offsets[rows] = -128 * steps.sum(dim=1, dtype=torch.int32)
        _fill(packed[first // PANEL :], steps)
    return PackedLinear(packed, _bias(bias), out, columns, scales, offsets if quads else None)


def pack_groups(
    quants: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None, bias: torch.Tensor | None = None
) -> PackedLinear:
    """Packs a weight in groups, in the form that `reference.from_groups` takes, with its bias, [out]."""
    out, groups = scales.shape
    panels = -(-out // PANEL)
    bits = 8 if minima is None else 4
    in_quants = PANEL * GROUP * bits // 8
    numbers = [scales] if minima is None else [scales, minima]
    packed = _huge((panels, groups, in_quants + 2 * PANEL * len(numbers)), torch.uint8)
    for first in range(0, panels, _PANELS_AT_ONCE):
        rows = slice(first * PANEL, (first + _PANELS_AT_ONCE) * PANEL)
        part = packed[first : first + _PANELS_AT_ONCE]
        steps = quants[rows].view(torch.uint8).view(-1, groups, GROUP * bits // 8)
        if bits == 4:
            steps = torch.cat((steps & 15, steps >> 4), dim=2)
        # [panels, outputs, groups, pairs, 2] -> [panels, groups, pairs, outputs, 2]
        pairs = _whole_panels(steps).view(-1, PANEL, groups, GROUP // 2, 2).permute(0, 2, 3, 1, 4)
        if bits == 4:
            # A number of 16 bits holds four pairs: its lower byte the first of each two inputs, its upper byte the other.
            of_vector = pairs.reshape(-1, groups, 4, 4, PANEL, 2).to(torch.int16)
            shifts = torch.tensor([0, 4, 8, 12], dtype=torch.int16).view(4, 1, 1)
            words = (of_vector << shifts).sum(dim=3, dtype=torch.int16)
            part[..., :in_quants] = words.flatten(2).view(torch.uint8)
        else:
            part[..., :in_quants] = pairs.flatten(2)
        for number, values in enumerate(numbers):
            begin = in_quants + 2 * PANEL * number
            by_group = _whole_panels(values[rows]).view(-1, PANEL, groups).transpose(1, 2).contiguous()
            part[..., begin : begin + 2 * PANEL] = by_group.view(torch.uint8)
    return PackedLinear(packed, _bias(bias), out, groups * GROUP, group_bits=bits)


def _whole_panels(rows: torch.Tensor) -> torch.Tensor:
    """With rows of zeros behind, to a multiple of 16."""
    missing = -rows.shape[0] % PANEL
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] in panels, rows beyond the last one zero; on memory of its own, in huge pages if possible."""
    out, columns = weight.shape
    packed = _panels(out, columns, weight.dtype, 2 if weight.dtype == torch.bfloat16 else 1)
    _fill(packed, weight)
    return packed


def _panels(out: int, columns: int, dtype: torch.dtype, together: int) -> torch.Tensor:
    """Zeros; an even number of panels, since some tiles take two at a time."""
    return _huge((-(-out // (2 * PANEL)) * 2, -(-columns // together), PANEL, together), dtype)


def _fill(packed: torch.Tensor, weight: torch.Tensor) -> None:
    """Packs a weight into its first panels."""
    together = packed.shape[3]
    out, columns = weight.shape
    if columns % together:
        weight = pad(weight, (0, -columns % together))
    whole = out // PANEL

    def in_panels(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(-1, PANEL, packed.shape[1], together).transpose(1, 2)

    packed[:whole] = in_panels(weight[: whole * PANEL])
    if out % PANEL:
        packed[whole : whole + 1] = in_panels(pad(weight[whole * PANEL :], (0, 0, 0, -out % PANEL)))


def _huge(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on memory of their own, in huge pages if possible."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _bias(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.float().contiguous()
