"""Each Triton kernel against its reference, on the device, in bfloat16 and float16, between poisoned guards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.gpu.machine import Machine
from bench.gpu.results import Results
from octavo_kernels.aligned import memory_width
from octavo_kernels.block_copy import triton as block_copy
from octavo_kernels.gated_activation import reference as gated_activation_reference
from octavo_kernels.gated_activation import triton as gated_activation
from octavo_kernels.gpu import KernelFailed
from octavo_kernels.linear import pairs
from octavo_kernels.linear import reference as linear_reference
from octavo_kernels.linear import triton as linear
from octavo_kernels.paged_attention import PagedBatch
from octavo_kernels.paged_attention import reference as attention_reference
from octavo_kernels.paged_attention import triton as attention
from octavo_kernels.paged_attention.rows import has_scales, restored, row_width
from octavo_kernels.rms_norm import reference as rms_norm_reference
from octavo_kernels.rms_norm import triton as rms_norm
from octavo_kernels.rotary_kv import reference as rotary_reference
from octavo_kernels.rotary_kv import triton as rotary
from octavo_kernels.sampling import reference as sampling_reference
from octavo_kernels.sampling import triton as sampling
from octavo_kernels.sampling.penalties import Penalties
from octavo_kernels.testing import (
    TOLERANCES,
    Guards,
    paged_pool,
    relative_error,
    scales_behind_blocks,
    scales_behind_rows,
)

__all__ = ["run"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}

_LEAST_TOLERANCES = {
    "w8a8": 5e-3,  # rows are rounded first, and a number in the middle of two steps to either
    "int8": TOLERANCES[torch.bfloat16],  # values are multiplied in bfloat16 whatever the model's type
    "fp8": TOLERANCES[torch.bfloat16],
}
"""By parts of a check's name, where a type's own tolerance is too little."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""What the kernel gave, and the truth."""
Check = Callable[[], list[Pair]]


def run(machine: Machine, results: Results, dtype_name: str) -> None:
    """For each kernel and shape the RMS of the error as a share of the truth's, and whether that is allowed.

    Args:
        machine: Where.
        results: Takes what is found.
        dtype_name: bf16 or fp16.
    """
    dtype = _DTYPES[dtype_name]
    checks = _Checks(machine, dtype)
    for name, check in checks.all():
        figure = f"{name}_{dtype_name}_error"
        results.fact("check", figure)  # the last one, should the device or the time end all
        try:
            pairs = check()
            checks.guards.check()
            error = max(relative_error(got, truth) for got, truth in pairs)
        except AssertionError as wrong:
            results.fault(f"{figure}: {wrong}")
            continue
        except KernelFailed as failed:
            results.fault(f"{figure}: {failed.reason}")
            if failed.by_device:
                raise
            continue
        results.add({figure: error})
        allowed = max(TOLERANCES[dtype], *(least for part, least in _LEAST_TOLERANCES.items() if part in name), 0)
        if error > allowed:
            results.fault(f"{figure} is {error:.3g}, and {allowed:.3g} is allowed")
    for name, share, wanted in checks.draws():
        results.add({f"{name}_{dtype_name}_equal": share})
        if share < wanted:
            results.fault(f"{name}_{dtype_name}: {share:.1%} of the tokens are the reference's, not {wanted:.0%}")


class _Checks:
    """Inputs and what is made of them."""

    def __init__(self, machine: Machine, dtype: torch.dtype) -> None:
        self._dry = machine.dry
        self._device = machine.device
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(0)
        self.guards = Guards()

    def all(self) -> Iterator[tuple[str, Check]]:
        """Name and check of each; the guards are new for each."""
        for name, check in self._named():
            self.guards = Guards()
            yield name, check

    def _named(self) -> Iterator[tuple[str, Check]]:
        models = [(2, 1, 64)] if self._dry else [(16, 8, 128), (9, 3, 64), (32, 8, 80), (8, 1, 256)]
        for heads in models:
            for block_size in (8, 16, 32) if heads[2] == 128 else (16,):
                for name, batch in self._batches().items():
                    yield (
                        f"attention_{name}_h{heads[0]}_d{heads[2]}_b{block_size}",
                        partial(self._attention, batch, heads, block_size),
                    )
        yield from self._bent_attention()
        for q_heads, kv_heads, dim, norm in (
            ((2, 1, 32, True),) if self._dry else ((16, 8, 128, True), (9, 3, 64, False), (32, 8, 80, False))
        ):
            yield f"rotary_kv_h{q_heads}_d{dim}", partial(self._rotary, q_heads, kv_heads, dim, norm=norm)
            for kv in self._eight_bits() if norm else ():
                if self._dry and kv == "fp8":
                    continue  # where rounding carries into a power of two, Triton's interpreter loses it
                yield f"rotary_kv_h{q_heads}_d{dim}_{kv}", partial(self._rotary, q_heads, kv_heads, dim, kv, norm=norm)
        for width in (96,) if self._dry else (576, 4096):
            yield f"rms_norm_{width}", partial(self._rms_norm, width)
            yield f"silu_mul_{width}", partial(self._silu_mul, width)
        for form in ("w8a16", "w8a8", "w8a8_invariant", "w4a16"):
            for rows in (3,) if self._dry else (1, 17, 64, 300):
                yield f"{form}_r{rows}", partial(self._linear, form, rows)
        yield "block_copy", self._block_copy

    def _eight_bits(self) -> list[str]:
        """The caches in eight bits that this GPU has."""
        capable = self._dry or attention.without_fp8(torch.cuda.get_device_capability(self._device)) is None
        return ["int8", "fp8"] if capable else ["int8"]

    def _bent_attention(self) -> Iterator[tuple[str, Check]]:
        """With a cache in eight bits, with a window and a soft cap, and with all of them; decodes and prefills at once."""
        heads, wide, window = ((2, 1, 64), (2, 1, 64), 17) if self._dry else ((16, 8, 128), (8, 1, 256), 600)
        narrow = [(shape, kv, None, None) for shape in dict.fromkeys((heads, wide)) for kv in self._eight_bits()]
        rest = [] if self._dry else [(heads, None, window, None), (heads, "int8", window, 5.0)]
        for shape, kv, width, cap in (*narrow, *rest, (wide, None, window, 5.0)):
            parts = [
                "attention_mixed",
                f"h{shape[0]}",
                f"d{shape[2]}",
                "b16",
                kv,
                width and f"w{width}",
                cap and f"c{cap:g}",
            ]
            yield (
                "_".join(part for part in parts if part),
                partial(self._attention, self._batches()["mixed"], shape, 16, kv, width, cap),
            )

    def _batches(self) -> dict[str, list[tuple[int, int]]]:
        """Name to (tokens of this step, context before them); a context below 0 is a row of nobody."""
        if self._dry:
            return {"decode": [(1, 20), (1, -1)], "mixed": [(1, 20), (9, 15)]}
        return {
            "decode": [(1, 0), (1, 15), (1, 16), (1, 500), (1, 9000), (1, -1)],
            "prefill": [(15, 0), (16, 0), (17, 0), (700, 0)],
            "mixed": [(1, 2000), (130, 47), (1, 3), (33, 2049)],
        }

    def _rand(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self._device, self._dtype)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.guards.place(tensor.to(self._device))

    def _place_cache(self, cache: torch.Tensor) -> torch.Tensor:
        """Nobody can look for NaN in fp8, so its guards are of int8."""
        return self._place(cache.view(torch.int8)).view(cache.dtype) if has_scales(cache.dtype) else self._place(cache)

    def _rms_norm(self, width: int) -> list[Pair]:
        x, residual, weight = self._rand(5, width), self._rand(5, width), self._rand(width)
        placed, own = self._place(residual), residual.clone()
        got = rms_norm.add_rms_norm(self._place(x), placed, self._place(weight), 1e-6)
        truth = rms_norm_reference.add_rms_norm(x, own, weight, 1e-6)
        alone = rms_norm.rms_norm(self._place(x), self._place(weight), 1e-6)
        return [(got, truth), (placed, own), (alone, rms_norm_reference.rms_norm(x, weight, 1e-6))]

    def _silu_mul(self, width: int) -> list[Pair]:
        x = self._rand(5, 2 * width)
        return [(gated_activation.silu_mul(self._place(x)), gated_activation_reference.silu_mul(x))]

    def _rotary(self, q_heads: int, kv_heads: int, dim: int, kv: str | None = None, *, norm: bool) -> list[Pair]:
        tokens = 4 if self._dry else 33
        qkv = self._rand(tokens, q_heads + 2 * kv_heads, dim)
        angles = (torch.rand(tokens, dim // 2, generator=self._generator) * 6).repeat(1, 2)
        cos, sin = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        slots = torch.randperm(16 * 8, generator=self._generator)[:tokens]
        slots[1] = -1  # a row of nobody
        q_norm, k_norm = (self._rand(dim) if norm else None for _ in "qk")
        kv_dtype = _EIGHT_BITS[kv] if kv else self._dtype
        caches = [torch.zeros(8, 16, kv_heads, row_width(dim, kv_dtype), dtype=kv_dtype) for _ in "kv"]
        placed = [self._place_cache(cache) for cache in caches]
        given = self._place(qkv), self._place(cos), self._place(sin), placed[0], placed[1], self._place(slots)
        q = rotary.rotary_kv(*given, q_norm, k_norm, 1e-6)
        # On the CPU, which can do anything with any type.
        norms = [None if weight is None else weight.cpu() for weight in (q_norm, k_norm)]
        truth = rotary_reference.rotary_kv(qkv.cpu(), cos, sin, caches[0], caches[1], slots, norms[0], norms[1], 1e-6)
        written = [(scales_behind_rows(got.cpu()), wanted) for got, wanted in zip(placed, caches, strict=True)]
        return [(q.cpu(), truth), *((restored(got), restored(wanted)) for got, wanted in written)]

    def _attention(
        self,
        batch: list[tuple[int, int]],
        heads: tuple[int, int, int],
        block_size: int,
        kv: str | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> list[Pair]:
        q_heads, kv_heads, dim = heads
        contexts = [max(new + before, 0) for new, before in batch]
        k, v, tables = paged_pool(
            contexts,
            block_size=block_size,
            kv_heads=kv_heads,
            head_dim=dim,
            dtype=_EIGHT_BITS[kv] if kv else self._dtype,
            generator=self._generator,
        )
        if window is not None:  # blocks before it may be anybody's: here one that holds NaN
            spare = next(iter(set(range(len(k))) - {block for table in tables for block in table}))
            hidden = [max(before + 1 - window, 0) // block_size for _, before in batch]
            tables = tuple((spare,) * count + table[count:] for count, table in zip(hidden, tables, strict=True))
        paged = PagedBatch(block_size, tuple(new for new, _ in batch), tuple(contexts), tables)
        q = self._rand(sum(paged.query_lens), q_heads, dim)
        bends = window, soft_cap
        wide_k, wide_v = (restored(cache).to(self._device) for cache in (k, v))
        truth = attention_reference.paged_attention(q, wide_k, wide_v, paged, dim**-0.5, *bends)
        k, v = self._place_cache(scales_behind_blocks(k)), self._place_cache(scales_behind_blocks(v))
        prepared = attention.prepare(paged, self._device)
        return [(attention.paged_attention(q, k, v, prepared, dim**-0.5, *bends), truth)]

    def _linear(self, form: str, rows: int) -> list[Pair]:
        width, outputs = (128, 40) if self._dry else (1024, 1000)
        x, bias = self._rand(rows, width), self._rand(outputs)
        wide = torch.randn(outputs, width, generator=self._generator).to(self._device)
        if form == "w4a16":
            quants = torch.randint(16, (outputs, width), generator=self._generator, dtype=torch.uint8)
            scales = (torch.rand(outputs, width // 32, generator=self._generator) + 0.1).half()
            quants, scales = quants.to(self._device), scales.to(self._device)
            minima = -8 * scales
            weight, groups = (self._place(part) for part in pairs.pack_pairs(quants, scales, minima))
            truth = linear_reference.linear(
                x.float(), linear_reference.dequantised_groups(quants, scales, minima), bias
            )
            return [(linear.linear_w4a16(self._place(x), weight, groups, bias), truth.to(self._dtype))]
        weight, scales = linear_reference.quantised(wide)
        rounded = x.float() if form == "w8a16" else linear_reference.rounded_rows(x)
        truth = linear_reference.linear(rounded, linear_reference.dequantised(weight, scales), bias)
        function = getattr(linear, f"linear_{form}")
        return [(function(self._place(x), self._place(weight), self._place(scales), bias), truth.to(self._dtype))]

    def _block_copy(self) -> list[Pair]:
        pool = self._rand(2, 2, 8, 16, 2, 64)
        host = torch.zeros((2, 2, 4, 16, 2, 64), dtype=self._dtype, pin_memory=not self._dry)
        truth = pool.clone()
        truth[:, :, [5, 0]] = pool[:, :, [1, 7]]
        placed = self._place(pool)
        block_copy.copy_blocks(placed, placed, [1, 7], [5, 0])
        block_copy.copy_blocks(placed, host, [5], [3])
        if not self._dry:
            torch.cuda.synchronize()
        return [(placed, truth), (host[:, :, 3].to(self._device), truth[:, :, 5].contiguous())]

    def draws(self) -> Iterator[tuple[str, float, float]]:
        """Name, share of the tokens that are the reference's, and what it must be: exp may differ in its last bit."""
        rows, vocabulary = (6, 5001) if self._dry else (24, 50_001)
        logits = self._rand(rows, vocabulary) * 3
        truth = sampling_reference.greedy(logits)
        yield "greedy", float((sampling.greedy(logits) == truth).float().mean()), 1.0
        settings = list(itertools.islice(itertools.cycle(itertools.product([0, 5, 40], [0.9, 1.0], [0.0, 0.05])), rows))
        top_k, top_p, min_p = (torch.tensor(column).to(self._device) for column in zip(*settings, strict=True))
        uniform = torch.rand(rows, generator=self._generator, dtype=torch.float64).to(self._device)
        columns = (torch.full((rows,), 0.8, device=self._device), top_k, top_p, min_p, uniform)
        equal = sampling.sample(logits, *columns) == sampling_reference.sample(logits, *columns)
        yield "sample", float(equal.float().mean()), 0.9
        seen = torch.randint(-9, 8, (rows, memory_width(vocabulary)), generator=self._generator).clamp(min=0)
        charges = (torch.tensor([each] * rows).to(self._device) for each in (1.3, 0.5, 0.2))
        penalties = Penalties(seen.int().to(self._device)[:, :vocabulary], *charges)
        equal = sampling.sample(logits, *columns, penalties=penalties) == sampling_reference.sample(
            logits, *columns, penalties=penalties
        )
        yield "sample_with_penalties", float(equal.float().mean()), 0.9
