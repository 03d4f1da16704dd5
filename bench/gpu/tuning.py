"""Offline: with which tiles, warps and stages attention is quickest on this GPU, as lines for its table.

A line is of one target, width of a head, type of the cache and phase. Every candidate is timed; of those whose machine
code is as it must be (no spills, the instruction that is meant) the quickest wins. Nothing is written: whoever takes a
line over into gpu_configurations.py compiles it anew with `make bench-kernels UPDATE=1` for both versions of Triton.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from bench.gpu.machine import Machine
from bench.gpu.results import Results
from bench.report import say
from octavo_kernels.gpu import KernelFailed, target_of
from octavo_kernels.gpu.ahead import compile_ahead, faults
from octavo_kernels.paged_attention import PagedBatch
from octavo_kernels.paged_attention import gpu_configurations as tables
from octavo_kernels.paged_attention import triton as attention
from octavo_kernels.paged_attention.gpu_configurations import Shape
from octavo_kernels.paged_attention.rows import row_width

__all__ = ["run"]

Candidate = tuple[int, ...]
Line = tuple[int, int]

_PREFILLS: list[Candidate] = list(itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)))
"""Rows of a tile, positions of a tile, warps, stages."""
_DECODES: list[Candidate] = list(itertools.product((16, 32, 64, 128), (2, 4, 8), (2, 3, 4, 5)))
"""The same without rows."""
_GROUP, _KV_HEADS = 4, 8
_NOISE = 0.02
"""Share of the time by which a candidate must be quicker than the table's line to take its place."""


def run(machine: Machine, results: Results) -> None:
    """What is used most comes first, so that little time tells most."""
    for eight_bits, head_dim in ((False, 64),) if machine.dry else itertools.product((False, True), (128, 64, 256)):
        for phase in ("decode", "prefill"):
            _tune(machine, results, phase, Shape(head_dim, _GROUP, 16, eight_bits=eight_bits))


def _tune(machine: Machine, results: Results, phase: str, shape: Shape) -> None:
    """One line of a table."""
    table = {
        ("prefill", False): tables.PREFILL,
        ("prefill", True): tables.PREFILL_OF_EIGHT_BITS,
        ("decode", False): tables.DECODE,
        ("decode", True): tables.DECODE_OF_EIGHT_BITS,
    }[phase, shape.eight_bits]
    target = target_of(machine.device)
    line = target, max(64, shape.block_d)
    name = f"{phase}_d{shape.head_dim}{'_int8' if shape.eight_bits else ''}"
    results.fact("case", name)
    work = _work(machine, phase, shape)
    before = table.get(line)
    shipped: Candidate = before or (tables.PREFILL if phase == "prefill" else tables.DECODE)[line]
    others = _PREFILLS if phase == "prefill" else _DECODES
    seconds: dict[Candidate, float] = {}
    wrong: dict[Candidate, str] = {}
    try:
        for candidate in [shipped, *(other for other in (others[:1] if machine.dry else others) if other != shipped)]:
            table[line] = candidate
            try:
                seconds[candidate] = machine.seconds([work])
            except KernelFailed as failed:
                if failed.by_device:
                    raise
                wrong[candidate] = failed.reason
        best = next(
            one for one in _by_time(seconds, shipped) if not _faults(machine, table, line, one, phase, shape, wrong)
        )
    finally:
        table.pop(line)
        if before is not None:
            table[line] = before
    results.add({f"tuned_{name}_us": 1e6 * seconds[best], f"shipped_{name}_us": 1e6 * seconds[shipped]})
    results.fact(f"tuned {name}", {str(one): 1e6 * taken for one, taken in seconds.items()} | {"wrong": len(wrong)})
    say(f"  {line}: {best},  # of {phase}; in the table: {shipped}")


def _by_time(seconds: dict[Candidate, float], shipped: Candidate) -> Iterator[Candidate]:
    """The quickest first; what is hardly quicker than the table's line comes behind it."""
    kept = seconds | {shipped: (1 - _NOISE) * seconds[shipped]}
    yield from sorted(kept, key=kept.__getitem__)


def _faults(
    machine: Machine,
    table: dict[Line, Candidate],
    line: Line,
    candidate: Candidate,
    phase: str,
    shape: Shape,
    wrong: dict[Candidate, str],
) -> bool:
    """Whether its machine code is not as it must be; noted, if so. The interpreter, of a dry run, has none."""
    if machine.dry:
        return False
    table[line] = candidate
    kv = "i8" if shape.eight_bits else None
    for shipped in tables.shipped_as(shape, "bf16", (line[0],), kv):
        if shipped.name.startswith(f"{phase} ") and (
            found := faults(shipped, compile_ahead(shipped, line[0], "paged_attention"))
        ):
            wrong[candidate] = found[0]
            return True
    return False


def _work(machine: Machine, phase: str, shape: Shape) -> Callable[[], object]:
    """Attention as it is used much: a full batch of decodes, or a long prompt."""
    device, dim = machine.device, shape.head_dim
    sequences, new, context = (64, 1, 4096) if phase == "decode" else (2, 4096, 4096)
    if machine.dry:
        sequences, new, context = 1, min(new, 3), 20
    blocks = -(-context // shape.block_size)
    dtype = torch.int8 if shape.eight_bits else torch.bfloat16
    kv_heads = 1 if machine.dry else _KV_HEADS
    pool = sequences * blocks, shape.block_size, kv_heads, row_width(dim, dtype)
    # Zeros in eight bits are numbers and scales of 0: what is computed takes as long.
    keys, values = (torch.zeros(pool, dtype=dtype, device=device) for _ in "kv")
    if not shape.eight_bits:
        keys.normal_()
        values.normal_()
    order = torch.randperm(sequences * blocks).view(sequences, blocks).tolist()
    batch = PagedBatch(
        shape.block_size, (new,) * sequences, (context,) * sequences, tuple(tuple(table) for table in order)
    )
    prepared = attention.prepare(batch, device)
    q = torch.randn(new * sequences, kv_heads * shape.group, dim, device=device, dtype=torch.bfloat16)
    return lambda: attention.paged_attention(q, keys, values, prepared, dim**-0.5)
