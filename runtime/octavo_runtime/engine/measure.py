"""A loaded executor's first steps: what cannot run fails now, and the scheduler learns how long things take.

They write to the first blocks, which nobody reads before writing them anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from octavo_runtime.domain import BlockCopy, CopyKind, EngineInfo, SamplingParams, ScheduledSequence, StepPlan

if TYPE_CHECKING:
    from octavo_runtime.engine.executor import Executor

__all__ = ["one_sequence", "prefill_seconds_per_token", "swap_seconds_per_block"]

_SHORTEST_PREFILL = 32  # tokens
_SWAPPED_BYTES = 8 << 20
_SHORT = 0.05  # seconds


def prefill_seconds_per_token(executor: Executor, max_tokens: int) -> float:
    """What a token of a long prefill adds to a step; 0 where there is no room for a prefill.

    A step has a fixed part, such as reading the weights once, and on a GPU that is all of a short one. So the prefill
    grows until it takes twice as long as a decode, and what the decode takes does not count.

    Args:
        executor: Loaded.
        max_tokens: Longest prefill that may be tried.
    """
    limit = min(max_tokens, executor.info.max_model_len, executor.info.num_blocks * executor.info.block_size) - 1
    if limit < 1:
        return 0.0
    tokens = min(_SHORTEST_PREFILL, limit)
    prefill = one_sequence(executor.info, tokens, 0, SamplingParams(temperature=0, seed=0))
    decode = one_sequence(executor.info, 1, tokens, SamplingParams(top_k=8, top_p=0.9, seed=0))
    executor.execute(prefill)  # what is done once is done now
    executor.execute(decode)
    fixed = _seconds(lambda: executor.execute(decode))
    while True:
        seconds = _seconds(partial(executor.execute, prefill))
        if seconds >= 2 * fixed or tokens == limit:
            return max(seconds - fixed, 0.01 * seconds) / tokens
        tokens = min(2 * tokens, limit)
        prefill = one_sequence(executor.info, tokens, 0, SamplingParams(temperature=0, seed=0))


def swap_seconds_per_block(executor: Executor) -> float:
    """How long the copy of a block between the tiers takes; 0 without a host tier."""
    info = executor.info
    count = min(info.num_blocks, info.num_host_blocks, max(1, _SWAPPED_BYTES // info.block_bytes))
    if count == 0:
        return 0.0
    ways = [StepPlan(copies=tuple(BlockCopy(kind, n, n) for n in range(count))) for kind in (CopyKind.OUT, CopyKind.IN)]

    def swap() -> None:
        for plan in ways:
            executor.execute(plan)

    swap()  # maps the memory of both tiers
    return _seconds(swap) / (2 * count)


def one_sequence(info: EngineInfo, num_tokens: int, num_computed: int, sampling: SamplingParams) -> StepPlan:
    """A step of one made-up sequence in the first blocks."""
    return StepPlan(
        (
            ScheduledSequence(
                request_id="warm-up",
                number=-1,
                token_ids=(0,) * num_tokens,
                num_computed=num_computed,
                block_table=range(-(-(num_computed + num_tokens) // info.block_size)),
                num_samples=1,
                num_generated=0,
                sampling=sampling,
            ),
        )
    )


def _seconds(work: Callable[[], object]) -> float:
    """How long it takes; of two rounds the quicker, where they are so short that anything disturbs them."""
    seconds: list[float] = []
    while len(seconds) < 2 and (not seconds or seconds[0] < _SHORT):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
