"""Steps that make a GPU's kernels be compiled and launched once before anybody waits for an answer.

They are ordinary steps, so that whatever a model's layers launch is found without a list of it. What a kernel is
compiled for beside the model is how many rows it is given: the quantised linear layers have a configuration for each
of _ROWS. Rows of the layers are tokens, rows of the head are sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo_runtime.domain import BlockCopy, CopyKind, SamplingParams, ScheduledSequence, StepPlan

if TYPE_CHECKING:
    from octavo_runtime.engine.executor import Executor

__all__ = ["MAX_SEQUENCES", "copy_a_block", "warm_up"]

_ROWS = (1, 17, 33, 65)
"""The fewest rows of each configuration."""
MAX_SEQUENCES = _ROWS[-1]
"""Most sequences in a step of `warm_up`, each with a block."""

_SAMPLING = SamplingParams(top_k=8, top_p=0.9, seed=0)


def warm_up(
    executor: Executor, *, max_tokens: int, max_sequences: int, report: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Runs a decode and a prefill for each configuration that a step can meet.

    Args:
        executor: With a block for each of MAX_SEQUENCES, or of max_sequences if these are fewer.
        max_tokens: Of a step.
        max_sequences: Likewise.
        report: Called with the steps done and all of them, before the first and after each.

    Raises:
        DeviceUnavailable: A kernel does not compile; it is named, with the way round it.
    """
    steps = [
        *(_step(executor, rows, 1) for rows in _ROWS if rows <= min(max_tokens, max_sequences)),
        *(_step(executor, 1, max(rows, 2)) for rows in _ROWS if rows <= max_tokens and max_tokens > 1),
    ]
    report(0, len(steps))
    for done, step in enumerate(steps, start=1):
        executor.execute(step)
        report(done, len(steps))


def copy_a_block(executor: Executor) -> None:
    """Copies one block, where there are two: the kernel is compiled for the number of blocks."""
    if executor.info.num_blocks > 1:
        executor.execute(StepPlan(copies=(BlockCopy(CopyKind.DEVICE, 0, 1),)))


def _step(executor: Executor, sequences: int, tokens: int) -> StepPlan:
    """Sequences of so many tokens each, none of which was computed before."""
    blocks = -(-tokens // executor.info.block_size)
    return StepPlan(
        tuple(
            ScheduledSequence(
                request_id="warm-up",
                number=-1 - number,
                token_ids=(0,) * tokens,
                num_computed=0,
                block_table=range(number * blocks, (number + 1) * blocks),
                num_samples=1,
                num_generated=0,
                sampling=_SAMPLING,
            )
            for number in range(sequences)
        )
    )
