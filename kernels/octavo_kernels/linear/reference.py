"""The truth: widened, multiplied, in float32."""

from __future__ import annotations

import torch

from octavo_kernels.linear.pairs import unpacked_rows

__all__ = [
    "dequantised",
    "dequantised_groups",
    "from_groups",
    "linear",
    "linear_w4a16",
    "linear_w8a8",
    "linear_w8a16",
    "quantised",
    "rounded_groups",
    "rounded_rows",
]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product x @ weight.T + bias.

    Args:
        x: [tokens, in], float32.
        weight: [out, in], in any type.
        bias: [out], or None.

    Returns:
        [tokens, out], float32.
    """
    return torch.nn.functional.linear(x, weight.float(), None if bias is None else bias.float())


def dequantised_groups(quants: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """A weight in groups of 32 inputs that share a scale and a minimum.

    Args:
        quants: [out, in], uint8, from 0 to 15.
        scales: [out, in / 32], float16.
        minima: The same.

    Returns:
        [out, in], float32: quant * scale + minimum.
    """
    groups = quants.view(*scales.shape, 32).float()
    return (groups * scales.float()[..., None] + minima.float()[..., None]).flatten(1)


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each output's weights to whole numbers from -127 to 127 times a scale of their own.

    Args:
        weight: [out, in], in any type.

    Returns:
        [out, in], int8, and [out], float32. An output of zeros has the scale 0; one that is not finite has a scale
        that is not.
    """
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / 127
    steps = wide / torch.where(scales == 0, 1, scales)[:, None]
    return steps.round_().clamp_(-127, 127).to(torch.int8), scales


def dequantised(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What `quantised` made of a weight, in float32 again."""
    return weight.float() * scales[:, None]


def rounded_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each 32 inputs of each output to whole numbers from -127 to 127 times a scale of its own.

    Args:
        weight: [out, in], in any type.

    Returns:
        What `from_groups` takes: [out, in], int8, and [out, in / 32], float16. A group of zeros, or of numbers for
        whose scale float16 is too coarse, has the scale 0; one that is not finite has a scale that is not.
    """
    groups = weight.float().view(len(weight), -1, 32)
    scales = (groups.abs().amax(dim=2) / 127).half()
    steps = groups / torch.where(scales == 0, 1, scales.float())[..., None]
    return steps.round_().clamp_(-127, 127).to(torch.int8).view(weight.shape), scales


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Rounds each row to whole numbers from -127 to 127 times a step of its own.

    Args:
        x: [rows, in], in a floating type.

    Returns:
        [rows, in], float32. A row below 1e-30 throughout is zeros; one that is not finite is NaN throughout.
    """
    wide = x.float()
    largest = wide.abs().amax(dim=1, keepdim=True)
    steps = (wide * torch.where(largest > 1e-30, 127 / largest, 0)).round_()
    return steps * (largest / 127)


def from_groups(quants: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None) -> torch.Tensor:
    """The weight that is stored in groups of 32 inputs.

    Args:
        quants: [out, in], int8; or with minima [out, in / 2], uint8: byte i of a group of 16 holds the input i in its
            lower four bits and the input i + 16 in its upper ones, as GGUF's Q4_0 and Q4_1 do.
        scales: [out, in / 32], float16.
        minima: The same, or None.

    Returns:
        [out, in], float32: scale * quant + minimum, where the sum alone is rounded.
    """
    out, groups = scales.shape
    if minima is None:
        return (quants.view(out, groups, -1).float() * scales.float()[..., None]).view(out, -1)
    packed = quants.view(out, groups, -1)
    return dequantised_groups(torch.cat((packed & 15, packed >> 4), dim=2).flatten(1), scales, minima)


def linear_w8a16(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See octavo_kernels.linear."""
    return linear(x.float(), dequantised(weight, scales), bias).to(x.dtype)


def linear_w8a8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See octavo_kernels.linear."""
    return linear(rounded_rows(x), dequantised(weight, scales), bias).to(x.dtype)


def linear_w4a16(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See octavo_kernels.linear."""
    return linear(x.float(), unpacked_rows(weight, groups), bias).to(x.dtype)
