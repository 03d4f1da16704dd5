"""Bytes and operations per second of each kernel, beside what the device does in a large copy and a large product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.gpu.machine import Machine
from bench.gpu.results import Results
from octavo_kernels.aligned import memory_width
from octavo_kernels.block_copy import triton as block_copy
from octavo_kernels.gated_activation import triton as gated_activation
from octavo_kernels.gpu import KernelFailed
from octavo_kernels.linear import triton as linear
from octavo_kernels.paged_attention import PagedBatch
from octavo_kernels.paged_attention import triton as attention
from octavo_kernels.rms_norm import triton as rms_norm
from octavo_kernels.rotary_kv import triton as rotary
from octavo_kernels.sampling import triton as sampling
from octavo_kernels.sampling.penalties import Penalties

__all__ = ["run"]

_DTYPE = torch.bfloat16
_ITEM = 2
_CACHE = 256 << 20  # bytes: more than any GPU's cache holds, so that weights come from memory


_FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "w8a16": linear.linear_w8a16,
    "w8a8": linear.linear_w8a8,
    "w4a16": linear.linear_w4a16,
    "torch_bf16": torch.nn.functional.linear,
}


@dataclass(frozen=True, slots=True)
class _Case:
    """Work, and what it must move or compute at least.

    Attributes:
        name: Of its figures.
        works: The same each, on memory of its own.
        bytes: That one of them must move; 0: arithmetic is what counts.
        operations: Of one of them.
        link: Whether the bytes go to the host.
    """

    name: str
    works: Sequence[Callable[[], object]]
    bytes: float = 0
    operations: float = 0
    link: bool = False


def run(machine: Machine, results: Results) -> None:
    """Measures the limits, then each case."""
    results.limit(machine.limits() | {"link_gb_s": machine.link / 1e9})
    for case in _cases(machine):
        results.fact("case", case.name)  # the last one, should the device or the time end all
        try:
            seconds = machine.seconds(case.works)
        except KernelFailed as failed:
            results.fault(f"{case.name}: {failed.reason}")
            if failed.by_device:
                raise
            continue
        if case.bytes:
            limit = machine.link if case.link else machine.bandwidth
            rate = case.bytes / seconds
            figures = {f"{case.name}_gb_s": rate / 1e9, f"{case.name}_bandwidth_share": rate / limit}
        else:
            rate = case.operations / seconds
            figures = {f"{case.name}_tflop_s": rate / 1e12, f"{case.name}_peak_share": rate / machine.peak}
        results.add(figures)


def _cases(machine: Machine) -> Iterator[_Case]:
    """Small memory first; each case's memory is free before the next one's is taken."""
    dry, device = machine.dry, machine.device
    generator = torch.Generator(device).manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=_DTYPE)

    rows, width = (4, 96) if dry else (65536, 4096)
    x, residual, weight = rand(rows, width), rand(rows, width), rand(width)
    yield _Case("rms_norm", [partial(rms_norm.rms_norm, x, weight, 1e-6)], bytes=2 * x.nbytes)
    yield _Case("add_rms_norm", [partial(rms_norm.add_rms_norm, x, residual, weight, 1e-6)], bytes=4 * x.nbytes)
    yield _Case("silu_mul", [partial(gated_activation.silu_mul, x)], bytes=1.5 * x.nbytes)
    del x, residual
    yield from _rotary(dry, device, rand)
    yield from _copies(dry, device)
    yield from _sampling(dry, device, rand)
    for form in _FORMS:
        yield from _linear(form, dry, device, rand)
    yield from _attention(dry, device, rand)


def _rotary(dry: bool, device: torch.device, rand: Callable[..., torch.Tensor]) -> Iterator[_Case]:
    tokens, q_heads, kv_heads, dim = (4, 2, 1, 64) if dry else (32768, 16, 8, 128)
    qkv, cos, sin = rand(tokens, q_heads + 2 * kv_heads, dim), rand(tokens, dim), rand(tokens, dim)
    keys, values = (rand(-(-tokens // 16), 16, kv_heads, dim) for _ in "kv")
    slots = torch.randperm(tokens, device=device)
    work = partial(rotary.rotary_kv, qkv, cos, sin, keys, values, slots, rand(dim), rand(dim), 1e-6)
    yield _Case("rotary_kv", [work], bytes=2 * qkv.nbytes + cos.nbytes + sin.nbytes)


def _copies(dry: bool, device: torch.device) -> Iterator[_Case]:
    layers, blocks = (2, 4) if dry else (28, 1024)
    pool = torch.zeros(layers, 2, 2 * blocks, 16, 8, 128, dtype=_DTYPE, device=device)
    pairs = torch.stack((torch.randperm(blocks), torch.randperm(blocks) + blocks), dim=1).to(device)
    size = pool.nbytes / 2
    yield _Case("block_copy", [partial(block_copy.copy_pairs, pool, pool, pairs)], bytes=2 * size)
    host = torch.zeros((layers, 2, blocks, 16, 8, 128), dtype=_DTYPE, pin_memory=not dry)
    out = torch.stack((pairs[:, 1], pairs[:, 0]), dim=1).contiguous()
    yield _Case("swap_out", [partial(block_copy.copy_pairs, pool, host, out)], bytes=size, link=True)
    yield _Case("swap_in", [partial(block_copy.copy_pairs, host, pool, pairs)], bytes=size, link=True)


def _sampling(dry: bool, device: torch.device, rand: Callable[..., torch.Tensor]) -> Iterator[_Case]:
    rows, vocabulary = (2, 500) if dry else (256, 151936)
    logits = rand(rows, vocabulary)
    yield _Case(f"sample_greedy_{rows}", [partial(sampling.greedy, logits)], bytes=logits.nbytes)
    for name, top_k, top_p in (("temperature", 0, 1.0), ("top_k_top_p", 50, 0.9)):
        columns = (
            torch.full((rows,), 0.8, device=device),
            torch.full((rows,), top_k, device=device),
            torch.full((rows,), top_p, device=device),
            torch.zeros(rows, device=device),
            torch.rand(rows, dtype=torch.float64, device=device),
        )
        # Its share is of a single pass over the logits.
        yield _Case(f"sample_{name}_{rows}", [partial(sampling.sample, logits, *columns)], bytes=logits.nbytes)
    seen = torch.zeros((rows, memory_width(vocabulary)), device=device, dtype=torch.int32)
    charges = (torch.full((rows,), each, device=device) for each in (1.2, 0.5, 0.5))
    penalties = Penalties(seen[:, :vocabulary], *charges)
    work = partial(sampling.sample, logits, *columns, penalties=penalties)
    yield _Case(f"sample_penalties_{rows}", [work], bytes=logits.nbytes + seen.nbytes)


def _linear(form: str, dry: bool, device: torch.device, rand: Callable[..., torch.Tensor]) -> Iterator[_Case]:
    """A layer of an 8B model and one of Qwen3-0.6B."""
    for width, outputs in ((128, 48),) if dry else ((4096, 4096), (1024, 6144)):
        size = width * outputs * {"w4a16": 0.625, "torch_bf16": 2}.get(form, 1)  # 4 bits and a word for 32 of them
        copies = 1 if dry else int(_CACHE // size)
        weights = [_weight(form, width, outputs, device) for _ in range(copies)]
        for rows in (2, 70) if dry else (1, 16, 64, 4096):
            x = rand(rows, width)
            few = rows <= 64
            works = [partial(_FORMS[form], x, *weight, None) for weight in (weights if few else weights[:1])]
            name = f"{form}_{width}x{outputs}_r{rows}"
            yield _Case(name, works, bytes=size if few else 0, operations=2 * rows * width * outputs)


def _weight(form: str, width: int, outputs: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    if form == "torch_bf16":
        return (torch.randn(outputs, width, device=device, dtype=_DTYPE),)
    if form == "w4a16":
        packed = torch.randint(256, (width // 64, outputs, 32), device=device, dtype=torch.uint8)
        # A scale and a minimum of 0.5 each, as two halves of a word.
        return packed, torch.full((width // 32, outputs), 0x38003800, device=device, dtype=torch.int32)
    scales = torch.rand(outputs, device=device)
    return torch.randint(-127, 128, (outputs, width), device=device, dtype=torch.int8), scales


def _attention(dry: bool, device: torch.device, rand: Callable[..., torch.Tensor]) -> Iterator[_Case]:
    """Heads of Qwen3-0.6B: 16 of queries, 8 of keys and values, 128 wide."""
    q_heads, kv_heads, dim, block_size = (2, 1, 64, 16) if dry else (16, 8, 128, 16)
    decodes = [(2, 40)] if dry else [(64, 4096), (256, 840), (8, 16384), (1, 65536)]
    prefills = [(1, 20, 0)] if dry else [(1, 8192, 0), (8, 2048, 0), (1, 2048, 14336)]
    tokens = max([count * context for count, context in decodes] + [n * (new + old) for n, new, old in prefills])
    num_blocks = -(-tokens // block_size) + 300
    keys, values = (rand(num_blocks, block_size, kv_heads, dim) for _ in "kv")
    order = torch.randperm(num_blocks).tolist()

    def prepared(new: int, contexts: list[int]) -> attention.DeviceBatch:
        tables, place = [], 0
        for context in contexts:
            count = -(-context // block_size)
            tables.append(tuple(order[place : place + count]))
            place += count
        return attention.prepare(PagedBatch(block_size, (new,) * len(contexts), tuple(contexts), tuple(tables)), device)

    def work(new: int, contexts: list[int]) -> Callable[[], object]:
        q = rand(new * len(contexts), q_heads, dim)
        return partial(attention.paged_attention, q, keys, values, prepared(new, contexts), dim**-0.5)

    for count, context in decodes:
        size = count * context * 2 * kv_heads * dim * _ITEM
        yield _Case(f"attention_decode_{count}x{context}", [work(1, [context] * count)], bytes=size)
    # As a batch is in service: a few long ones among short ones.
    ragged = [5, 40] if dry else [128 * (1 + number % 4) + 8192 * (number % 16 == 0) for number in range(64)]
    size = sum(ragged) * 2 * kv_heads * dim * _ITEM
    yield _Case("attention_decode_ragged", [work(1, ragged)], bytes=size)
    for count, new, old in prefills:
        visible = count * (new * old + new * (new + 1) / 2)
        name = f"attention_prefill_{count}x{new}" + (f"_after_{old}" if old else "")
        yield _Case(name, [work(new, [new + old] * count)], operations=4 * q_heads * dim * visible)
