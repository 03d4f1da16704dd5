"""Weights in panels of 16 outputs, as the native forms read them; native.h and quads.h draw the layouts."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch

from octavo_kernels.linear.reference import quantised
from octavo_kernels.native import abi

__all__ = ["MOST_QUANTISED_INPUTS", "PANEL", "PackedLinear", "pack_linear", "pack_panels", "pack_quantised"]

PANEL = 16
_QUAD = 4
_ROWS_AT_ONCE = 64 * PANEL  # in float32 beside the packed weight, while it is quantised

MOST_QUANTISED_INPUTS = 2**31 // (128 * 127)
"""Whole numbers of 32 bits hold no longer sums; no model comes near."""


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """x @ weight.T + bias.

    Attributes:
        panels: [panels, in, 16], in a type of abi.TYPES; or in quads, [panels, in / 4, 16, 4], int8.
        bias: [out], float32, or None.
        out: Outputs.
        columns: Inputs.
        scales: [panels * 16], float32, of an int8 weight; None otherwise.
        offsets: [panels * 16], int32, in quads: -128 times the sum of each output's weights; None otherwise.
    """

    panels: torch.Tensor
    bias: torch.Tensor | None
    out: int
    columns: int
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    def struct(self) -> abi.Linear:
        """What the library takes; valid as long as this object lives."""
        return abi.Linear(
            weight=self.panels.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            out=self.out,
            in_=self.columns,
            type=abi.TYPES[str(self.panels.dtype)] if self.offsets is None else abi.QUADS,
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
    panels = -(-out // PANEL)
    shape = (panels, -(-columns // _QUAD), PANEL, _QUAD) if quads else (panels, columns, PANEL)
    packed = _huge(shape, torch.int8)
    scales = torch.zeros(panels * PANEL)
    offsets = torch.zeros(panels * PANEL, dtype=torch.int32)
    for first in range(0, out, _ROWS_AT_ONCE):
        steps, scales_of_part = quantised(weight[first : first + _ROWS_AT_ONCE])
        rows = slice(first, first + steps.shape[0])
        scales[rows] = scales_of_part
        offsets[rows] = -128 * steps.sum(dim=1, dtype=torch.int32)
        part = packed[first // PANEL : -(-rows.stop // PANEL)]
        if quads:
            steps = torch.nn.functional.pad(steps, (0, -columns % _QUAD, 0, -steps.shape[0] % PANEL))
            part.copy_(steps.view(-1, PANEL, part.shape[1], _QUAD).transpose(1, 2))
        else:
            _fill(part, steps)
    return PackedLinear(packed, _bias(bias), out, columns, scales, offsets if quads else None)


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [panels, in, 16], rows beyond the last one zero; on memory of its own, in huge pages if possible."""
    out, columns = weight.shape
    packed = _huge((-(-out // PANEL), columns, PANEL), weight.dtype)
    _fill(packed, weight)
    return packed


def _fill(packed: torch.Tensor, weight: torch.Tensor) -> None:
    out, columns = weight.shape
    whole = out // PANEL
    packed[:whole] = weight[: whole * PANEL].view(whole, PANEL, columns).transpose(1, 2)
    if whole < packed.shape[0]:
        packed[whole, :, : out - whole * PANEL] = weight[whole * PANEL :].T


def _huge(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros on memory of their own, in huge pages if possible."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _bias(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.float().contiguous()
