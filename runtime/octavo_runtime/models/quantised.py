"""Quantised weights as the GPU's kernels take them, packed on the device.

    as loaded                              packed
    X.weight, in w8a16                     X.weight int8, X.scales                    octavo_kernels.linear.linear_w8a16
    X.weight, in w8a8                      the same                                   octavo_kernels.linear.linear_w8a8
    X.qweight U8, X.scales, X.minima       X.packed, X.groups                         octavo_kernels.linear.linear_w4a16
    X.qweight I8, X.scales                 X.weight, widened: there is no kernel for groups of eight bits

The head and the embedding have no `.weight` behind their names; in w8a16 and w8a8 they stay as they are here (ADR 40); on a
CPU the head does not (ADR 46).
"""

from __future__ import annotations

import torch

from octavo_kernels.linear.pairs import GROUP, pack_pairs
from octavo_kernels.linear.reference import from_groups, quantised

__all__ = ["pack_groups", "quantise"]

_ROWS_AT_ONCE = 1024  # in float32 beside the weight, while it is quantised or widened


def quantise(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """What takes the place of a parameter in w8a16 and w8a8: of a linear layer's weight int8 and a scale for each output.

    Args:
        name: As `loading.weight_map` names it.
        weight: In a floating type.
    """
    if not name.endswith(".weight"):
        return {name: weight}
    quants = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        quants[rows], scales[rows] = quantised(weight[rows])
    return {name: quants, f"{name.removesuffix('.weight')}.scales": scales}


def pack_groups(parameters: dict[str, torch.Tensor], *, vocab_size: int, dtype: torch.dtype) -> None:
    """Packs weights in groups once a model is loaded, weight after weight.

    Args:
        parameters: Name to tensor, as `loading.weight_map` names them; a tied head in groups has the embedding's parts.
        vocab_size: Rows of the head that are wanted.
        dtype: Of what is widened.
    """
    tied = "head.qweight" in parameters and parameters["head.qweight"] is parameters.get("embedding.qweight")
    if tied:
        for part in [name for name in parameters if name.startswith("embedding.")]:
            del parameters[part]
    for stem in [name.removesuffix(".qweight") for name in parameters if name.endswith(".qweight")]:
        rows = vocab_size if stem == "head" else None
        quants = parameters.pop(f"{stem}.qweight")[:rows]
        scales = parameters.pop(f"{stem}.scales")[:rows]
        if f"{stem}.minima" in parameters:
            low_high = quants.view(len(quants), -1, 1, GROUP // 2)
            by_input = torch.cat((low_high & 15, low_high >> 4), dim=2).view(len(quants), -1)
            minima = parameters.pop(f"{stem}.minima")[:rows]
            parameters[f"{stem}.packed"], parameters[f"{stem}.groups"] = pack_pairs(by_input, scales, minima)
        else:
            name = stem if stem in {"head", "embedding"} else f"{stem}.weight"
            parameters[name] = _widened(quants, scales, dtype)
    if tied:
        parameters |= {
            name.replace("head", "embedding"): parameters[name]
            for name in ("head", "head.packed", "head.groups")
            if name in parameters
        }


def _widened(quants: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.empty(quants.shape, dtype=dtype, device=quants.device)
    for start in range(0, len(quants), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        wide[rows] = from_groups(quants[rows], scales[rows], None)
    return wide
