"""Matrix products with quantised weights, as a decoder's operations on a GPU call them. README.md has the layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_kernels.dispatch import form

if TYPE_CHECKING:
    import torch

__all__ = ["linear_invariant", "linear_w4a16", "linear_w8a8", "linear_w8a8_invariant", "linear_w8a16"]


def linear_w8a16(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product x @ (weight * scales).T + bias.

    Args:
        x: [tokens, in], in a floating type.
        weight: [out, in], int8, contiguous: `reference.quantised`.
        scales: [out], float32.
        bias: [out], or None.

    Returns:
        [tokens, out], in x's type.
    """
    result: torch.Tensor = form("linear", x.device.type).linear_w8a16(x, weight, scales, bias)
    return result


def linear_w8a8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As linear_w8a16, with each row of x rounded to whole numbers from -127 to 127 times a step of its own first."""
    result: torch.Tensor = form("linear", x.device.type).linear_w8a8(x, weight, scales, bias)
    return result


def linear_w8a8_invariant(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The same on a GPU, in which a row has the same bits whatever rows are beside it."""
    result: torch.Tensor = form("linear", x.device.type).linear_w8a8_invariant(x, weight, scales, bias)
    return result


def linear_w4a16(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product of x and a weight of four bits in groups of 32 inputs.

    Args:
        x: [tokens, in], in a floating type.
        weight: [in / 64, out, 32], uint8, as `pairs.pack_pairs` makes it.
        groups: [in / 32, out], int32, likewise.
        bias: [out], or None.

    Returns:
        [tokens, out], in x's type.
    """
    result: torch.Tensor = form("linear", x.device.type).linear_w4a16(x, weight, groups, bias)
    return result


def linear_invariant(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product x @ weight.T + bias on a GPU, in which a row has the same bits whatever rows are beside it.

    Args:
        x: [tokens, in].
        weight: [out, in], as stored.
        bias: [out], or None.
    """
    result: torch.Tensor = form("linear", x.device.type).linear_invariant(x, weight, bias)
    return result
