"""On a GPU: tiles of queries against tiles of the cache, and one query against pieces of a long context.

A program takes the query heads of one kv head together, as rows of a tile, so that each key and value is read once for
all of them. README.md has the two grids, the drawing of a tile and the sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from octavo_kernels.gpu import launch, target_of
from octavo_kernels.paged_attention.batch import PagedBatch
from octavo_kernels.paged_attention.gpu_configurations import Shape, decode, merge, num_splits, prefill, shipped
from octavo_kernels.paged_attention.gpu_kernels import decode_kernel, merge_kernel, prefill_kernel
from octavo_kernels.paged_attention.rows import has_scales, head_dim_of

__all__ = ["DeviceBatch", "paged_attention", "prepare", "prepare_rows", "shipped", "unsupported", "without_fp8"]

_DTYPES = ("float16", "bfloat16")
_HEAD_DIMS = (64, 80, 96, 128, 256)
_EIGHT_BITS = ("int8", "fp8")
_FP8_CAPABILITY = (8, 9)
_MAX_GROUP = 64  # query heads of a kv head: rows of the smallest prefill tile


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A step's batch on the device.

    A sequence of one token and a context of 0 is padding, for a captured graph: its row of the output becomes 0.

    Attributes:
        block_size: Tokens per block.
        prefills: Whether there are sequences of several tokens.
        decodes: Whether there are sequences of one token.
        query_starts: [sequences + 1], int32: each sequence's first row of the queries, and the number of rows.
        context_lens: [sequences], int32.
        tables: [sequences, longest table], int32; what is behind a sequence's own blocks is not looked at.
        decode_context: [1], int64: the context of all sequences of one token, which says how finely they are split.
    """

    block_size: int
    prefills: bool
    decodes: bool
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    tables: torch.Tensor
    decode_context: torch.Tensor


def unsupported(dtype: str, kv_dtype: str, head_dim: int, group: int) -> str | None:
    """Why these kernels cannot run a model; None when they can.

    Args:
        dtype: Of queries and activations, as torch names it.
        kv_dtype: Of the cache; also int8, or fp8 (e4m3).
        head_dim: Width of a head.
        group: Query heads per kv head.
    """
    if dtype not in _DTYPES:
        return f"the dtype is {dtype}, and the Triton kernels compute in {' or '.join(_DTYPES)}"
    if kv_dtype not in {dtype, *_EIGHT_BITS}:
        return (
            f"the KV cache is in {kv_dtype} and the model in {dtype}, and paged attention in Triton wants both the same, "
            f"or a cache in {' or '.join(_EIGHT_BITS)}"
        )
    if head_dim not in _HEAD_DIMS:
        widths = ", ".join(str(width) for width in _HEAD_DIMS)
        return f"the model's heads are {head_dim} wide, and paged attention in Triton takes {widths}"
    if group > _MAX_GROUP:
        return f"{group} query heads share a kv head, and paged attention in Triton takes at most {_MAX_GROUP}"
    return None


def without_fp8(capability: tuple[int, int]) -> str | None:
    """Why there is no cache in fp8 on GPUs of this compute capability (major, minor); None where there is."""
    if capability < _FP8_CAPABILITY:
        has, wanted = (".".join(map(str, version)) for version in (capability, _FP8_CAPABILITY))
        return f"the GPU has compute capability {has}, and e4m3 needs {wanted} or later"
    return None


def prepare(batch: PagedBatch, device: torch.device) -> DeviceBatch:
    """Copies lengths and block tables to the device, in one piece."""
    sequences = len(batch.query_lens)
    lengths = [-(-context // batch.block_size) for context in batch.context_lens]
    # Each part begins at a multiple of 16 bytes, which the kernels are compiled for.
    columns = _rounded(max(lengths, default=0), 4)
    starts_at = _rounded(sequences, 4)
    tables_at = starts_at + _rounded(sequences + 1, 4)
    host = np.zeros(tables_at + sequences * columns, dtype=np.int32)
    host[:sequences] = batch.context_lens
    np.cumsum(batch.query_lens, out=host[starts_at + 1 : starts_at + 1 + sequences])
    tables = host[tables_at:].reshape(sequences, columns)
    for row, (table, length) in enumerate(zip(batch.block_tables, lengths, strict=True)):
        tables[row, :length] = table[:length]
    on_device = torch.from_numpy(host).to(device)
    context_lens, query_starts = on_device[:sequences], on_device[starts_at : starts_at + sequences + 1]
    return DeviceBatch(
        block_size=batch.block_size,
        prefills=any(length > 1 for length in batch.query_lens),
        decodes=1 in batch.query_lens,
        query_starts=query_starts,
        context_lens=context_lens,
        tables=on_device[tables_at:].view(sequences, columns),
        decode_context=(context_lens * (query_starts.diff() == 1)).sum(dtype=torch.int64)[None],
    )


def prepare_rows(block_tables: torch.Tensor, context_lens: torch.Tensor, block_size: int) -> DeviceBatch:
    """See octavo_kernels.paged_attention."""
    return DeviceBatch(
        block_size=block_size,
        prefills=False,
        decodes=True,
        query_starts=torch.arange(len(context_lens) + 1, dtype=torch.int32, device=context_lens.device),
        context_lens=context_lens,
        tables=block_tables,
        decode_context=context_lens.sum(dtype=torch.int64)[None],
    )


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    prepared: DeviceBatch,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    *,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """See octavo_kernels.paged_attention.

    Args:
        q: As there, like all that follow.
        k_cache: In eight bits a block is its numbers, [block size, kv heads, head_dim], and behind them its scales,
            [kv heads, block size].
        v_cache: The same.
        prepared: From `prepare`.
        scale: As there.
        window: As there.
        soft_cap: As there.
        batch_invariant: Whether a row's result is the same, to the last bit, in any batch and chunk: one kernel for all
            sequences, and no context in pieces.

    Raises:
        KernelFailed: A kernel does not compile for this GPU.
    """
    tokens, q_heads, head_dim = q.shape
    kv_heads = k_cache.shape[2]
    assert q.stride(1) == head_dim_of(k_cache) == head_dim, "a token's heads lie side by side"
    assert k_cache.stride(1) == kv_heads * k_cache.stride(2) == kv_heads * k_cache.shape[3], "a block is one piece"
    assert q.stride(2) == k_cache.stride(3) == 1
    assert k_cache.stride() == v_cache.stride()
    in_eight_bits = has_scales(k_cache.dtype)
    shape = Shape(
        head_dim=head_dim,
        group=q_heads // kv_heads,
        block_size=prepared.block_size,
        window=window or 0,
        soft_cap=soft_cap or 0.0,
        eight_bits=in_eight_bits,
        # The interpreter cannot multiply bfloat16.
        upcast=q.device.type == "cpu" and (q.dtype == torch.bfloat16 or in_eight_bits),
    )
    target = target_of(q.device)
    sequences = prepared.context_lens.shape[0]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lengths = (prepared.query_starts, prepared.context_lens)
    scales = (k_cache.view(torch.float32), v_cache.view(torch.float32)) if in_eight_bits else (None, None)
    sources = (q, k_cache, v_cache, *scales, prepared.tables, *lengths)
    strides = (q.stride(0), k_cache.stride(0), kv_heads * head_dim, prepared.tables.stride(0))
    log2_scale = scale / math.log(2)
    if prepared.prefills or batch_invariant:
        configuration = prefill(shape, target, every=batch_invariant)
        # A sequence's last tile need not be full. Which tile is whose, the programs find by themselves.
        tiles = tokens // configuration.constexprs["TILE_Q"] + sequences
        launch(prefill_kernel, (tiles, kv_heads), configuration, out, *sources, log2_scale, sequences, *strides)
    if prepared.decodes and not batch_invariant:
        splits = num_splits(sequences * kv_heads)
        partial = q.new_empty((sequences, q_heads, splits, head_dim), dtype=torch.float32)
        largest = q.new_empty((sequences, q_heads, splits), dtype=torch.float32)
        total = torch.empty_like(largest)
        results = (out, partial, largest, total)
        launch(
            decode_kernel,
            (sequences, kv_heads, splits),
            decode(shape, target),
            *(*results, *sources, prepared.decode_context, log2_scale, *strides),
        )
        launch(
            merge_kernel,
            (sequences, q_heads),
            merge(shape),
            *(*results, *lengths, prepared.decode_context, kv_heads, splits),
        )
    return out
