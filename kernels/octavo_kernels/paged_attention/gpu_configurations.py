"""With which tiles, warps and stages the kernels run, by target, width of a head and phase; never tuned at run time.

The numbers follow from the tensor cores' shapes and from what fits (gpu/compiled-3.9.txt). No GPU has measured them yet:
`bench/gpu.sh tune` does, and prints the lines that are better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo_kernels.gpu import TARGETS, Configuration, Shipped
from octavo_kernels.paged_attention.gpu_kernels import decode_kernel, merge_kernel, prefill_kernel

__all__ = [
    "DECODE",
    "DECODE_OF_EIGHT_BITS",
    "MIN_PIECE",
    "PREFILL",
    "PREFILL_OF_EIGHT_BITS",
    "Shape",
    "decode",
    "merge",
    "num_splits",
    "prefill",
    "shipped",
    "shipped_as",
]

Table = dict[tuple[int, int], tuple[int, ...]]

# (target, width of a head as a power of two): rows of a tile, positions of a tile, warps, stages. wgmma and tcgen05 want
# 64 and 128 rows. What is meant for 80 also runs on GPUs with 99 KiB of shared memory for a program (8.6, 8.9, 12.0).
PREFILL: Table = {
    (80, 64): (128, 64, 8, 3),
    (80, 128): (128, 32, 8, 3),
    (80, 256): (64, 32, 8, 2),
    (90, 64): (128, 64, 8, 3),
    (90, 128): (128, 64, 8, 3),
    (90, 256): (128, 32, 8, 2),
    (100, 64): (128, 64, 4, 2),
    (100, 128): (128, 64, 8, 3),
    (100, 256): (128, 32, 8, 2),
}
# Where a cache in eight bits wants others: widening takes registers.
PREFILL_OF_EIGHT_BITS: Table = {(100, 64): (128, 64, 8, 3)}
# The same without rows, which are the group's. What counts is bytes on their way from memory: tiles times stages less one,
# times the programs of a multiprocessor.
DECODE: Table = {
    (80, 64): (64, 4, 3),
    (80, 128): (32, 4, 4),
    (80, 256): (32, 4, 3),
    (90, 64): (64, 4, 4),
    (90, 128): (32, 4, 4),
    (90, 256): (32, 4, 3),
    (100, 64): (64, 4, 4),
    (100, 128): (32, 4, 4),
    (100, 256): (32, 4, 3),
}
DECODE_OF_EIGHT_BITS: Table = {}
_MIN_ROWS = 16  # of an MMA instruction

# A decode's piece of context is a multiple of this many positions, itself one of every tile; and all pieces and kv heads
# together shall be so many programs, a few for each of the 108 to 148 multiprocessors.
MIN_PIECE = 128
_PROGRAMS = 512
_MIN_SPLITS, _MAX_SPLITS = 4, 32


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model and its cache fix.

    Attributes:
        head_dim: Width of a head.
        group: Query heads per kv head.
        block_size: Tokens per block.
        window: Positions that a token sees, itself included; 0: all up to itself.
        soft_cap: Scores are bent to stay below it; 0: they are not.
        eight_bits: Whether keys and values are in int8 or fp8.
        upcast: Whether products are made in float32, for Triton's interpreter, which cannot multiply bfloat16.
    """

    head_dim: int
    group: int
    block_size: int
    window: int = 0
    soft_cap: float = 0.0
    eight_bits: bool = False
    upcast: bool = False

    @property
    def block_d(self) -> int:
        """The width of a tile that holds a head."""
        return _power_of_two(self.head_dim)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def prefill(shape: Shape, target: int, *, every: bool = False) -> Configuration:
    """Of prefill_kernel.

    Args:
        shape: What the model fixes.
        target: Of TARGETS.
        every: Whether sequences of one token are its own too.
    """
    row = target, max(64, shape.block_d)
    tiles = PREFILL_OF_EIGHT_BITS.get(row) if shape.eight_bits else None
    rows, tile_kv, warps, stages = tiles or PREFILL[row]
    constexprs = {
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": shape.block_d,
        "GROUP": shape.group,
        "BLOCK_SIZE": shape.block_size,
        "ROWS": rows,
        "TILE_Q": rows // shape.group,
        "TILE_KV": tile_kv,
        "WINDOW": shape.window,
        "SOFT_CAP": shape.soft_cap,
        "ALL": every,
        "UPCAST": shape.upcast,
    }
    return Configuration(constexprs, warps, stages)


def num_splits(programs: int) -> int:
    """Pieces that one context may have: fewer the more sequences and kv heads there are.

    Args:
        programs: Sequences times kv heads.
    """
    return min(_MAX_SPLITS, max(_MIN_SPLITS, -(-_PROGRAMS // programs)))


def decode(shape: Shape, target: int) -> Configuration:
    """Of decode_kernel."""
    row = target, max(64, shape.block_d)
    tiles = DECODE_OF_EIGHT_BITS.get(row) if shape.eight_bits else None
    tile_kv, warps, stages = tiles or DECODE[row]
    constexprs = {
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": shape.block_d,
        "GROUP": shape.group,
        "BLOCK_SIZE": shape.block_size,
        "ROWS": max(_MIN_ROWS, _power_of_two(shape.group)),
        "TILE_KV": tile_kv,
        "MIN_PIECE": MIN_PIECE,
        "PROGRAMS": _PROGRAMS,
        "WINDOW": shape.window,
        "SOFT_CAP": shape.soft_cap,
        "UPCAST": shape.upcast,
    }
    return Configuration(constexprs, warps, stages)


def merge(shape: Shape) -> Configuration:
    """Of merge_kernel."""
    constexprs = {
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": shape.block_d,
        "MAX_SPLITS": _MAX_SPLITS,
        "MIN_PIECE": MIN_PIECE,
        "PROGRAMS": _PROGRAMS,
        "WINDOW": shape.window,
    }
    return Configuration(constexprs, 8 if shape.block_d == 256 else 4, 1)


def shipped() -> list[Shipped]:
    """What is compiled ahead: every width of a head for each target; all else for one of them.

    Group and block size only change how rows and positions become addresses.
    """
    widths = [shipped_as(Shape(head_dim, 4, 16), "bf16", TARGETS) for head_dim in (64, 80, 96, 128, 256)]
    groups = [shipped_as(Shape(128, group, 16), "bf16", (90,)) for group in (1, 7, 16)]
    blocks = [shipped_as(Shape(128, 4, block_size), "bf16", (90,)) for block_size in (8, 32)]
    narrow = [
        shipped_as(Shape(head_dim, 4, 16, eight_bits=True), "bf16", targets, kv)
        for kv, targets in (("i8", TARGETS), ("fp8", TARGETS[1:]))
        for head_dim in (64, 128, 256)
    ]
    # Gemma 2 has both, Mistral a window.
    windows = [
        shipped_as(Shape(head_dim, 4, 16, window=4096, soft_cap=soft_cap), "bf16", TARGETS)
        for head_dim, soft_cap in ((128, 0.0), (256, 50.0))
    ]
    halves = [
        shipped_as(Shape(128, 4, 16), "fp16", (90,)),
        shipped_as(Shape(128, 4, 16, eight_bits=True), "fp16", (90,), "i8"),
    ]
    return [one for some in (*widths, *groups, *blocks, *narrow, *windows, *halves) for one in some]


def shipped_as(shape: Shape, dtype: str, targets: tuple[int, ...], kv: str | None = None) -> Iterator[Shipped]:
    """The kernels of a shape.

    Args:
        shape: What a model fixes.
        dtype: Of queries and activations: bf16 or fp16.
        targets: Of TARGETS.
        kv: Of the cache where that is in eight bits: i8 or fp8.
    """
    name = f"{dtype} d{shape.head_dim} g{shape.group} b{shape.block_size}"
    if kv:
        name += f" {kv}"
    if shape.window:
        name += f" w{shape.window}"
    if shape.soft_cap:
        name += f" c{shape.soft_cap:g}"
    cache = {None: f"*{dtype}", "i8": "*i8", "fp8": "*fp8e4nv"}[kv]
    scales = "*fp32" if kv else "none"
    inputs = {"q": f"*{dtype}", "k_cache": cache, "v_cache": cache, "k_scales": scales, "v_scales": scales}
    inputs["tables"] = "*i32"
    lengths = {"query_starts": "*i32", "context_lens": "*i32"}
    scalars = {
        "log2_scale": "fp32",
        "stride_row": "i32",
        "stride_block": "i32",
        "stride_slot": "i32",
        "stride_table": "i32",
    }
    results = {"out": f"*{dtype}", "partial": "*fp32", "partial_largest": "*fp32", "partial_total": "*fp32"}
    strides = ("stride_row", "stride_block", "stride_slot")
    products = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}
    for target in targets:
        for every in (False, True) if (shape, dtype) == (Shape(128, 4, 16), "bf16") else (False,):
            yield Shipped(
                f"prefill {name}{' of all' if every else ''}",
                prefill_kernel,
                {"out": f"*{dtype}", **inputs, **lengths, **scalars, "sequences": "i32"},
                prefill(shape, target, every=every),
                targets=(target,),
                divisible=strides,
                mma=products[target],
            )
        yield Shipped(
            f"decode {name}",
            decode_kernel,
            {**results, **inputs, **lengths, "all_context": "*i64", **scalars},
            decode(shape, target),
            targets=(target,),
            divisible=strides,
            mma="mma.sync",
            programs=2,
        )
    if kv:  # pieces are float32 whatever the cache's type
        return
    yield Shipped(
        f"merge {name}",
        merge_kernel,
        {**results, **lengths, "all_context": "*i64", "kv_heads": "i32", "splits": "i32"},
        merge(shape),
        targets=targets,
        programs=2,
    )
