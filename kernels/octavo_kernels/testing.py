"""For tests of kernels and of what is built on them: tolerances, comparison, poisoned memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from octavo_kernels.linear.reference import from_groups
from octavo_kernels.paged_attention.rows import has_scales, head_dim_of, row_width, stored

__all__ = [
    "TOLERANCES",
    "Guards",
    "assert_close",
    "paged_pool",
    "random_groups",
    "relative_error",
    "scales_behind_blocks",
    "scales_behind_rows",
]

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Largest RMS of the error, as a share of the RMS of the truth, for each dtype."""


def assert_close(got: torch.Tensor, truth: torch.Tensor, ratio: float | None = None) -> None:
    """Compares the RMS of the error with that of the truth; NaN anywhere fails first.

    Args:
        got: What is tested.
        truth: What it should be.
        ratio: Largest error; the dtype's of TOLERANCES when None.
    """
    error = relative_error(got, truth)
    allowed = TOLERANCES[got.dtype] if ratio is None else ratio
    assert error <= allowed, f"the error's RMS is {error:.3g} of the truth's; allowed is {allowed:.3g}"


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """RMS of the error by that of the truth; shape, type or a number that is not finite fails first."""
    assert got.shape == truth.shape, f"shape {tuple(got.shape)}, not {tuple(truth.shape)}"
    assert got.dtype == truth.dtype, f"dtype {got.dtype}, not {truth.dtype}"
    missing = int((~got.isfinite()).sum())
    assert not missing, f"{missing} of {got.numel()} numbers are not finite"
    if got.numel() == 0:
        return 0.0
    error = float((got.double() - truth.double()).square().mean().sqrt())
    return error / max(float(truth.double().square().mean().sqrt()), 1e-6)


def paged_pool(
    context_lens: Sequence[int],
    *,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor, tuple[tuple[int, ...], ...]]:
    """A pool in which sequences of these lengths lie in blocks of random order; every other slot holds NaN.

    Returns:
        Keys and values, [blocks, block size, kv heads, row] each (paged_attention/rows.py), and the block tables.
    """
    counts = [-(-length // block_size) for length in context_lens]
    spare = 3
    order = torch.randperm(sum(counts) + spare, generator=generator).tolist()
    row = row_width(head_dim, dtype)
    shape = (len(order), block_size, kv_heads, row)
    # Four bytes of -1 are a scale of NaN, and one is NaN in fp8.
    pools = [
        torch.full(shape, -1, dtype=torch.int8).view(dtype)
        if has_scales(dtype)
        else torch.full(shape, torch.nan, dtype=dtype)
        for _ in ("keys", "values")
    ]
    tables: list[tuple[int, ...]] = []
    for length, count in zip(context_lens, counts, strict=True):
        table = tuple(order.pop() for _ in range(count))
        tables.append(table)
        slots = torch.tensor([table[i // block_size] * block_size + i % block_size for i in range(length)]).long()
        for pool in pools:
            values = torch.randn(length, kv_heads, head_dim, generator=generator)
            pool.view(-1, kv_heads, row)[slots] = stored(values, dtype)
    return pools[0], pools[1], tuple(tables)


def scales_behind_blocks(cache: torch.Tensor) -> torch.Tensor:
    """A cache of rows in eight bits as the Triton kernels want it: a block's numbers, then [kv heads, block size] scales.

    The same shape, other places in a block. Other types stay as they are.
    """
    blocks, dim = cache.shape[0], head_dim_of(cache)
    scales = cache[..., dim:].transpose(1, 2)
    return torch.cat((cache[..., :dim].reshape(blocks, -1), scales.reshape(blocks, -1)), dim=1).view(cache.shape)


def scales_behind_rows(cache: torch.Tensor) -> torch.Tensor:
    """The way back from `scales_behind_blocks`."""
    blocks, size, heads, row = cache.shape
    dim = head_dim_of(cache)
    if dim == row:
        return cache
    flat = cache.reshape(blocks, -1)
    numbers = flat[:, : size * heads * dim].reshape(blocks, size, heads, dim)
    scales = flat[:, size * heads * dim :].reshape(blocks, heads, size, row - dim).transpose(1, 2)
    return torch.cat((numbers, scales), dim=-1)


class Guards:
    """Tensors for a kernel, each in the middle of a poisoned buffer.

    What a kernel reads beside a tensor is NaN, or for whole numbers so large that an address made with it is nobody's;
    what it writes there, `check` finds.
    """

    _LENGTH = 4096  # elements on each side at least; a multiple of every alignment that counts

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # buffer, length of a guard, the tensor

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy between guards as long as itself, or longer."""
        length = max(self._LENGTH, -(-tensor.numel() // 64) * 64)
        poison = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
        buffer = torch.full((tensor.numel() + 2 * length,), poison, dtype=tensor.dtype, device=tensor.device)
        placed = buffer[length : length + tensor.numel()].view(tensor.shape)
        placed.copy_(tensor)
        self._buffers.append((buffer, length, placed))
        return placed

    def check(self) -> None:
        """Fails when a guard is not as it was."""
        for buffer, length, placed in self._buffers:
            for side, guard in (("before", buffer[:length]), ("behind", buffer[length + placed.numel() :])):
                poisoned = guard.isnan() if guard.is_floating_point() else guard == torch.iinfo(guard.dtype).max
                assert poisoned.all(), f"{int((~poisoned).sum())} numbers were written {side} a tensor {placed.shape}"


def random_groups(
    tensors: Mapping[str, torch.Tensor], eight_bits: Sequence[str], generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A checkpoint whose matrices are random ones in groups, as `octavo convert --quantization keep` stores them.

    Args:
        tensors: Whose names and shapes it has; vectors stay as they are.
        eight_bits: Parts of the names of those in eight bits; the others have four.
        generator: Of the numbers.

    Returns:
        What is stored, and the same as floats, by the names that were given.
    """
    stored_parts: dict[str, torch.Tensor] = {}
    floats: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 1:
            stored_parts[name] = floats[name] = tensor
            continue
        out, columns = tensor.shape
        base = name.removesuffix(".weight")
        quants = torch.randint(256, (out, columns), dtype=torch.uint8, generator=generator)
        scales = (torch.rand(out, columns // 32, generator=generator) * 0.04 + 0.01).half()
        minima = None
        if any(part in name for part in eight_bits):
            quants, scales = quants.view(torch.int8), scales / 16
        else:
            quants, minima = quants[:, : columns // 2].contiguous(), scales * -7.4
            stored_parts[f"{base}.minima"] = minima
        stored_parts[f"{base}.qweight"], stored_parts[f"{base}.scales"] = quants, scales
        floats[name] = from_groups(quants, scales, minima)
    return stored_parts, floats
