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
    k_scales,  # likewise, as v_scales; None unless keys and values are in eight bits
    v_scales,
    table,  # of the program's sequence
    begin,  # first position
    end,  # behind the last
    first_loaded,  # what lies before is not loaded; not looked at without a WINDOW
    last_seen,  # [M]: last position that a row sees; not looked at unless MASKED
    log2_scale,
    stride_block,
    stride_slot,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Adds the positions begin … end to a softmax that is under way.

    Unless MASKED, all of them are in the context and seen by every row, and `end - begin` is a multiple of TILE_KV.
    A row sees WINDOW positions up to its last, or all of them where that is 0.
    """
    lanes = tl.arange(0, TILE_KV)
    dims = tl.arange(0, BLOCK_D)
    block = tl.load(table + (begin + lanes) // BLOCK_SIZE, mask=begin + lanes < end, other=0)
    for first in range(begin, end, TILE_KV):
        positions = first + lanes
        inside = positions < end
        if MASKED and WINDOW > 0:
            inside = inside & (positions >= first_loaded)
        # What lies behind the context may be NaN, and NaN times a weight of 0 is NaN: it must not be loaded.
        if MASKED:
            loaded = inside[:, None] & (dims < HEAD_DIM)[None, :]
        else:
            loaded = None if HEAD_DIM == BLOCK_D else (dims < HEAD_DIM)[None, :]
        slot = block.to(tl.int64) * stride_block + (positions % BLOCK_SIZE) * stride_slot
        scale_block = block.to(tl.int64) * (stride_block // 4)
        # The next tile's blocks, in this iteration: keys and values that wait for a load of their own are not pipelined.
        following = positions + TILE_KV
        block = tl.load(table + following // BLOCK_SIZE, mask=following < end, other=0)
        k = tl.load(k_cache + slot[:, None] + dims[None, :], mask=loaded, other=None if loaded is None else 0.0)
        v = tl.load(v_cache + slot[:, None] + dims[None, :], mask=loaded, other=None if loaded is None else 0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        if k_scales is not None:
            # Eight bits are exact in 16; values in bfloat16, in which no weight times a scale becomes 0 or infinite.
            k = k.to(q.dtype)
            # Behind the numbers of a block, BLOCK_SIZE scales of each kv head.
            scale_at = scale_block + positions % BLOCK_SIZE
            k_scale = tl.load(k_scales + scale_at, mask=inside if MASKED else None, other=0.0 if MASKED else None)
            if q.shape[0] < 64:
                v_scale = tl.load(v_scales + scale_at, mask=inside if MASKED else None, other=0.0 if MASKED else None)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log2_scale
        if k_scales is not None:
            scores *= k_scale[None, :]
        if SOFT_CAP > 0:
            # cap · tanh(score / cap), all in units of log 2
            cap: tl.constexpr = SOFT_CAP * 1.4426950408889634
            scores = cap - 2 * cap / (tl.exp2(scores * (2 / SOFT_CAP)) + 1)
        if MASKED:
            seen = positions[None, :] <= last_seen[:, None]
            if WINDOW > 0:
                seen = seen & (positions[None, :] > last_seen[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # Behind a window's edge a row may see nothing yet, and infinity less infinity is no number.
        base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED and WINDOW > 0 else higher
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        if k_scales is not None:
            # Widened, and in the large tiles of a prefill scaled, as late as can be: registers are scarce before.
            v = v.to(tl.float32 if UPCAST else tl.bfloat16)
            if q.shape[0] >= 64:
                v_scale = tl.load(v_scales + scale_at, mask=inside if MASKED else None, other=0.0 if MASKED else None)
            # A scale that is no number shows in the rows that see it, and in no other.
            weights = tl.where(weights == 0, 0.0, weights * v_scale[None, :]) if MASKED else weights * v_scale[None, :]
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        largest = higher
    return acc, largest, total


@triton.jit(do_not_specialize=_VARYING)
def prefill_kernel(
    out,  # [tokens, q heads, HEAD_DIM]
    q,  # [tokens, q heads, HEAD_DIM]
    k_cache,  # [blocks, BLOCK_SIZE, kv heads, HEAD_DIM]; in eight bits README.md has a block's layout
    v_cache,
    k_scales,  # the same memory as float32; None unless in eight bits
    v_scales,
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
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of TILE_Q tokens of one sequence, with all query heads of one kv head.

    Sequences of one token are left out unless it is for ALL.

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
    if first_token >= query_len or (query_len == 1 and not ALL):
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
    # With a window of W: tiles are those of a whole context, so that a row's sums have one order in any chunk.
    #
    #     first row    ----------[=========W==========]
    #     last row     -------------------[=========W==========]
    #     tiles        |----.----|----.----|----.----|----.----|
    #                              first_whole …  seen_by_all … end
    first_loaded = 0
    first_whole = 0
    if WINDOW > 0:
        first_loaded = tl.maximum(first_position - WINDOW + 1, 0)
        first_whole = tl.minimum(tl.cdiv(tl.maximum(end - WINDOW, 0), TILE_KV) * TILE_KV, seen_by_all)

    acc = tl.zeros([ROWS, BLOCK_D], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    k_cache += head * HEAD_DIM
    v_cache += head * HEAD_DIM
    if k_scales is not None:
        k_scales += BLOCK_SIZE * stride_slot // 4 + head * BLOCK_SIZE
        v_scales += BLOCK_SIZE * stride_slot // 4 + head * BLOCK_SIZE
    table = tables + low * stride_table.to(tl.int64)
    if WINDOW > 0:
        acc, largest, total = _attend(
            acc, largest, total, query, k_cache, v_cache, k_scales, v_scales, table, first_loaded // TILE_KV * TILE_KV,
            first_whole, first_loaded, position, log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, True, WINDOW,
            SOFT_CAP, UPCAST,
        )  # fmt: skip
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, k_scales, v_scales, table, first_whole, seen_by_all, first_loaded,
        position, log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, False, WINDOW,
        SOFT_CAP, UPCAST,
    )  # fmt: skip
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, k_scales, v_scales, table, seen_by_all, end, first_loaded,
        position, log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, True, WINDOW,
        SOFT_CAP, UPCAST,
    )  # fmt: skip
    if ALL:  # padding of a captured graph has no context
        acc = tl.where(context_len > 0, acc, 0.0)
        total = tl.where(context_len > 0, total, 1.0)
    # What says where the result goes is read once more, so that it takes no registers until here: the widest tiles over a
    # cache in eight bits have none to spare.
    start = tl.load(query_starts + low, volatile=True)
    query_len = tl.load(query_starts + low + 1, volatile=True) - start
    token = (tile - start // TILE_Q - low) * TILE_Q + rows // GROUP
    there = ((rows < TILE_Q * GROUP) & (token < query_len))[:, None] & (dims < HEAD_DIM)[None, :]
    q_row = (start + token).to(tl.int64)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    out_row = q_row * (tl.num_programs(1) * GROUP) + q_head
    tl.store(out + (out_row * HEAD_DIM)[:, None] + dims[None, :], result, mask=there)


@triton.jit
def _pieces(
    context_len,
    all_context,  # of all decodes
    kv_heads,
    splits,
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Positions of this context before the window, in it, and in a piece of it.

    A piece has as many as make PROGRAMS pieces of all that is seen, of all heads together; a multiple of MIN_PIECE, and
    so large that there are at most `splits` pieces.
    """
    seen = context_len
    if WINDOW > 0:
        seen = tl.minimum(context_len, WINDOW)
        all_context = tl.minimum(all_context, tl.num_programs(0).to(tl.int64) * WINDOW)
    even = tl.cdiv(all_context * kv_heads, PROGRAMS).to(tl.int32)
    piece = tl.maximum(even, tl.cdiv(seen, splits))
    return context_len - seen, seen, tl.maximum(tl.cdiv(piece, MIN_PIECE), 1) * MIN_PIECE


@triton.jit(do_not_specialize=_VARYING)
def decode_kernel(
    out,  # [tokens, q heads, HEAD_DIM]
    partial,  # [sequences, q heads, splits, HEAD_DIM] float32: `acc` of each piece
    partial_largest,  # [sequences, q heads, splits] float32
    partial_total,  # [sequences, q heads, splits] float32
    q,  # [tokens, q heads, HEAD_DIM]
    k_cache,  # [blocks, BLOCK_SIZE, kv heads, HEAD_DIM]; in eight bits README.md has a block's layout
    v_cache,
    k_scales,  # the same memory as float32; None unless in eight bits
    v_scales,
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
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The one token of a sequence against a piece of its context. Sequences of several tokens are left out.

    Grid: (sequences, kv heads, splits). Of a sequence in one piece this is the result; otherwise merge_kernel makes it.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    kv_heads = tl.num_programs(1)
    splits = tl.num_programs(2)
    context_len = tl.load(context_lens + sequence)
    before, seen, piece = _pieces(context_len, tl.load(all_context), kv_heads, splits, MIN_PIECE, PROGRAMS, WINDOW)
    if split > 0 and split * piece >= seen:
        return
    begin = before + split * piece

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
    if k_scales is not None:
        k_scales += BLOCK_SIZE * stride_slot // 4 + head * BLOCK_SIZE
        v_scales += BLOCK_SIZE * stride_slot // 4 + head * BLOCK_SIZE
    table = tables + sequence * stride_table.to(tl.int64)
    # Masked all the way: the arithmetic is idle anyway, and a second loop would wait for the first one's loads.
    acc, largest, total = _attend(
        acc, largest, total, query, k_cache, v_cache, k_scales, v_scales, table, begin, end, begin,
        last_seen, log2_scale, stride_block, stride_slot, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE_KV, True, 0,
        SOFT_CAP, UPCAST,
    )  # fmt: skip
    if piece >= seen:
        # Padding of a captured graph has no context: its row becomes 0, not 0 / 0.
        result = tl.where(context_len > 0, acc / tl.where(context_len > 0, total, 1.0)[:, None], 0.0)
        place = out + row * (kv_heads * GROUP * HEAD_DIM) + (q_head * HEAD_DIM)[:, None] + dims[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=there)
    else:
        part = (sequence.to(tl.int64) * (kv_heads * GROUP) + q_head) * splits + split
        tl.store(partial + (part * HEAD_DIM)[:, None] + dims[None, :], acc, mask=there)
        tl.store(partial_largest + part, largest, mask=rows < GROUP)
        tl.store(partial_total + part, total, mask=rows < GROUP)


@triton.jit(do_not_specialize=["kv_heads", "splits"])
def merge_kernel(
    out,  # as in decode_kernel, like all that follow
    partial,
    partial_largest,
    partial_total,
    query_starts,
    context_lens,
    all_context,
    kv_heads,
    splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_PIECE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Puts the pieces of a sequence's context together, for one query head. Grid: (sequences, q heads)."""
    sequence = tl.program_id(0)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    context_len = tl.load(context_lens + sequence)
    _, seen, piece = _pieces(context_len, tl.load(all_context), kv_heads, splits, MIN_PIECE, PROGRAMS, WINDOW)
    if piece >= seen:
        return
    split = tl.arange(0, MAX_SPLITS)
    dims = tl.arange(0, BLOCK_D)
    written = split * piece < seen
    there = written[:, None] & (dims < HEAD_DIM)[None, :]
    row = sequence.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    part = row * splits + split
    largest = tl.load(partial_largest + part, mask=written, other=float("-inf"))
    total = tl.load(partial_total + part, mask=written, other=0.0)
    acc = tl.load(partial + (part * HEAD_DIM)[:, None] + dims[None, :], mask=there, other=0.0)
    share = tl.exp2(largest - tl.max(largest, 0))
    result = tl.sum(acc * share[:, None], 0) / tl.sum(total * share, 0)
    place = out + (start.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * HEAD_DIM + dims
    tl.store(place, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
