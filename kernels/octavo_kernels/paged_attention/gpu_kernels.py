"""The Triton kernels of paged attention. README.md has the grids and the drawing of a tile."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["decode_kernel", "merge_kernel", "prefill_kernel"]

# Numbers that vary from step to step. Triton would compile anew for a 1 and for multiples of 16.
_VARYING = ["sequences", "stride_table"]


@triton.jit
def _attend(
    acc,  # [M, BLOCK_D] float32: values, weighted, not yet divided by `total`
    largest,  # [M]: largest score so far, in units of log 2
    total,  # [M]: sum of weights so far
    q,  # [M, BLOCK_D]
    k_cache,  # of the program's kv head, as v_cache
    v_cache,
    table,  # of the program's sequence
    begin,  # first position
    end,  # behind the last
    last_seen,  # [M]: last position that a row sees; not looked at unless MASKED
    log2_scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Adds the positions begin … end to a softmax that is under way.

    Unless MASKED, all of them are in the context and seen by every row, and `end - begin` is a multiple of TILE_KV.
    """
    lanes = tl.arange(0, TILE_KV)
    dims = tl.arange(0, BLOCK_D)
    block = tl.load(table + (begin + lanes) // BLOCK_SIZE, mask=begin + lanes < end, other=0)
    for first in range(begin, end, TILE_KV):
        positions = first + lanes
        # What lies behind the context may be NaN, and NaN times a weight of 0 is NaN: it must not be loaded.
        if MASKED:
            loaded = (positions < end)[:, None] & (dims < HEAD_DIM)[None, :]
        else:
            loaded = None if HEAD_DIM == BLOCK_D else (dims < HEAD_DIM)[None, :]
        slot = block.to(tl.int64) * stride_block + (positions % BLOCK_SIZE) * stride_slot
        # The next tile's blocks, in this iteration: keys and values that wait for a load of their own are not pipelined.
        following = positions + TILE_KV
        block = tl.load(table + following // BLOCK_SIZE, mask=following < end, other=0)
        k = tl.load(k_cache + slot[:, None] + dims[None, :], mask=loaded, other=None if loaded is None else 0.0)
        v = tl.load(v_cache + slot[:, None] + dims[None, :], mask=loaded, other=None if loaded is None else 0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log2_scale
        if MASKED:
            scores = tl.where(positions[None, :] <= last_seen[:, None], scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        largest = higher
    return acc, largest, total


@triton.jit(do_not_specialize=_VARYING)
def prefill_kernel(
    out,  # [tokens, q heads, HEAD_DIM]
    q,  # [tokens, q heads, HEAD_DIM]
    k_cache,  # [blocks, BLOCK_SIZE, kv heads, HEAD_DIM]
    v_cache,
    tables,  # [sequences, blocks]
    query_starts,  # [sequences + 1]
    context_lens,  # [sequences]
    log2_scale,
    sequences,
    stride_row,  # of q
    stride_block,
    stride_slot,
    stride_table,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of TILE_Q tokens of one sequence, with all query heads of one kv head. Sequences of one token are left out.

    Grid: (tokens // TILE_Q + sequences, kv heads). Sequence i owns tiles from `query_starts[i] // TILE_Q + i` on:
    as many as it can need, so that no program must know the others' lengths.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    low = 0
    high = sequences
    while high - low > 1:  # the last sequence whose first tile is not behind this one
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // TILE_Q + middle <= tile:
            low = middle
        else:
            high = middle
    start = tl.load(query_starts + low)
    query_len = tl.load(query_starts + low + 1) - start
    first_token = (tile - start // TILE_Q - low) * TILE_Q
    if query_len == 1 or first_token >= query_len:
        return
    context_len = tl.load(context_lens + low)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    token = first_token + rows // GROUP
    used = (rows < TILE_Q * GROUP) & (token < query_len)
    there = used[:, None] & (dims < HEAD_DIM)[None, :]
    q_head = head * GROUP + rows % GROUP
    q_row = (start + token).to(tl.int64)
    query = tl.load(q + (q_row * stride_row + q_head * HEAD_DIM)[:, None] + dims[None, :], mask=there, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)
    first_position = context_len - query_len + first_token
    position = first_position + rows // GROUP
    end = tl.minimum(first_position + TILE_Q, context_len)
    seen_by_all = (first_position + 1) // TILE_KV * TILE_KV

    acc = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    k_cache += head * HEAD_DIM
    v_cache += head * HEAD_DIM
    table = tables + low * stride_table.to(tl.int64)
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, table, 0, seen_by_all, position,
        log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, False, UPCAST,
    )  # fmt: skip
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, table, seen_by_all, end, position,
        log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, True, UPCAST,
    )  # fmt: skip
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    out_row = q_row * (tl.num_programs(1) * GROUP) + q_head
    tl.store(out + (out_row * HEAD_DIM)[:, None] + dims[None, :], result, mask=there)


@triton.jit
def _piece(
    context_len,
    all_context,  # of all decodes
    kv_heads,
    SPLITS: tl.constexpr,
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Positions in a piece of this context: as many as make PROGRAMS pieces of all contexts and heads together.

    A multiple of MIN_PIECE, and so large that there are at most SPLITS pieces.
    """
    even = tl.cdiv(all_context * kv_heads, PROGRAMS).to(tl.int32)
    piece = tl.maximum(even, tl.cdiv(context_len, SPLITS))
    return tl.maximum(tl.cdiv(piece, MIN_PIECE), 1) * MIN_PIECE


@triton.jit(do_not_specialize=_VARYING)
def decode_kernel(
    out,  # [tokens, q heads, HEAD_DIM]
    partial,  # [sequences, q heads, SPLITS, HEAD_DIM] float32: `acc` of each piece
    partial_largest,  # [sequences, q heads, SPLITS] float32
    partial_total,  # [sequences, q heads, SPLITS] float32
    q,  # [tokens, q heads, HEAD_DIM]
    k_cache,  # [blocks, BLOCK_SIZE, kv heads, HEAD_DIM]
    v_cache,
    tables,  # [sequences, blocks]
    query_starts,  # [sequences + 1]
    context_lens,  # [sequences]
    all_context,  # [1] int64
    log2_scale,
    stride_row,  # of q
    stride_block,
    stride_slot,
    stride_table,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_KV: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The one token of a sequence against a piece of its context. Sequences of several tokens are left out.

    Grid: (sequences, kv heads, SPLITS). Of a sequence in one piece this is the result; otherwise merge_kernel makes it.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    kv_heads = tl.num_programs(1)
    context_len = tl.load(context_lens + sequence)
    piece = _piece(context_len, tl.load(all_context), kv_heads, SPLITS, MIN_PIECE, PROGRAMS)
    begin = split * piece
    if split > 0 and begin >= context_len:
        return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    there = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q_head = head * GROUP + rows
    row = start.to(tl.int64)
    query = tl.load(q + row * stride_row + (q_head * HEAD_DIM)[:, None] + dims[None, :], mask=there, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)
    end = tl.minimum(begin + piece, context_len)

    acc = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    last_seen = tl.zeros([ROWS], dtype=tl.int32) + (end - 1)
    k_cache += head * HEAD_DIM
    v_cache += head * HEAD_DIM
    table = tables + sequence * stride_table.to(tl.int64)
    # Masked all the way: the arithmetic is idle anyway, and a second loop would wait for the first one's loads.
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, table, begin, end, last_seen,
        log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, True, UPCAST,
    )  # fmt: skip
    if piece >= context_len:
        # Padding of a captured graph has no context: its row becomes 0, not 0 / 0.
        result = tl.where(context_len > 0, acc / tl.where(context_len > 0, total, 1.0)[:, None], 0.0)
        place = out + row * (kv_heads * GROUP * HEAD_DIM) + (q_head * HEAD_DIM)[:, None] + dims[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=there)
    else:
        part = (sequence.to(tl.int64) * (kv_heads * GROUP) + q_head) * SPLITS + split
        tl.store(partial + (part * HEAD_DIM)[:, None] + dims[None, :], acc, mask=there)
        tl.store(partial_largest + part, largest, mask=rows < GROUP)
        tl.store(partial_total + part, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["kv_heads"])
def merge_kernel(
    out,  # as in decode_kernel, like all that follow
    partial,
    partial_largest,
    partial_total,
    query_starts,
    context_lens,
    all_context,
    kv_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Puts the pieces of a sequence's context together, for one query head. Grid: (sequences, q heads)."""
    sequence = tl.program_id(0)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    context_len = tl.load(context_lens + sequence)
    piece = _piece(context_len, tl.load(all_context), kv_heads, SPLITS, MIN_PIECE, PROGRAMS)
    if piece >= context_len:
        return
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, BLOCK_D)
    written = splits * piece < context_len
    there = written[:, None] & (dims < HEAD_DIM)[None, :]
    row = sequence.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    part = row * SPLITS + splits
    largest = tl.load(partial_largest + part, mask=written, other=float("-inf"))
    total = tl.load(partial_total + part, mask=written, other=0.0)
    acc = tl.load(partial + (part * HEAD_DIM)[:, None] + dims[None, :], mask=there, other=0.0)
    share = tl.exp2(largest - tl.max(largest, 0))
    result = tl.sum(acc * share[:, None], 0) / tl.sum(total * share, 0)
    place = out + (start.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * HEAD_DIM + dims
    tl.store(place, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
