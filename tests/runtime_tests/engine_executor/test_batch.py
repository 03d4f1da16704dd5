from __future__ import annotations

import torch

from octavo_runtime.domain import SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.batch import build_batch

GREEDY = SamplingParams(temperature=0, seed=0)


def test_build_batch_mixed() -> None:
    plan = StepPlan(
        (
            ScheduledSequence("chunk", (11, 12, 13), 7, (4, 9), False, 0, GREEDY),
            ScheduledSequence("decode", (21,), 16, (1, 0, 5), True, 3, GREEDY),
            ScheduledSequence("prompt", (31, 32), 0, (7,), True, 0, GREEDY),
        )
    )
    batch = build_batch(plan, 8, torch.device("cpu"))
    assert batch.token_ids.tolist() == [11, 12, 13, 21, 31, 32]
    assert batch.positions.tolist() == [7, 8, 9, 16, 0, 1]
    assert batch.slots.tolist() == [4 * 8 + 7, 9 * 8, 9 * 8 + 1, 5 * 8, 7 * 8, 7 * 8 + 1]
    assert batch.paged.query_lens == (3, 1, 2)
    assert batch.paged.context_lens == (10, 17, 2)
    assert batch.paged.block_tables == ((4, 9), (1, 0, 5), (7,))
    assert [sequence.request_id for sequence in batch.sampling] == ["decode", "prompt"]
    assert batch.sampling_rows.tolist() == [3, 5]


def test_build_batch_nothing_sampled() -> None:
    plan = StepPlan((ScheduledSequence("chunk", (1, 2), 0, (0,), False, 0, GREEDY),))
    batch = build_batch(plan, 16, torch.device("cpu"))
    assert batch.sampling == ()
    assert batch.sampling_rows.shape == (0,)
