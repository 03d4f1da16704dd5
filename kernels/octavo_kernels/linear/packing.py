"""Weights in panels of 16 outputs, as the native form reads them; native.h draws the layout."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from octavo_kernels.native import abi

__all__ = ["PANEL", "PackedLinear", "pack_linear", "pack_panels", "unpack_panels"]

PANEL = 16


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """x @ weight.T + bias.

    Attributes:
        panels: [panels, in, 16], in a type of abi.TYPES.
        bias: [out], float32, or None.
        out: Outputs.
    """

    panels: torch.Tensor
    bias: torch.Tensor | None
    out: int

    def struct(self) -> abi.Linear:
        """What the library takes; valid as long as this object lives."""
        return abi.Linear(
            weight=self.panels.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            out=self.out,
            in_=self.panels.shape[1],
            type=abi.TYPES[str(self.panels.dtype)],
        )


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
    """Packs [out, in] with its bias, [out]."""
    return PackedLinear(pack_panels(weight), None if bias is None else bias.float().contiguous(), weight.shape[0])


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [panels, in, 16], rows beyond the last one zero; on memory of its own, in huge pages if possible."""
    out, columns = weight.shape
    panels = -(-out // PANEL)
    memory = mmap.mmap(-1, panels * PANEL * columns * weight.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    packed = torch.frombuffer(memory, dtype=weight.dtype).view(panels, columns, PANEL)
    whole = out // PANEL
    packed[:whole] = weight[: whole * PANEL].view(whole, PANEL, columns).transpose(1, 2)
    if whole < panels:
        packed[whole, :, : out - whole * PANEL] = weight[whole * PANEL :].T
    return packed


def unpack_panels(packed: torch.Tensor, out: int) -> torch.Tensor:
    """The weight, [out, in], again."""
    return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:out]
