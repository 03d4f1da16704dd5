from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from octavo_runtime.domain import ScheduledSequence, StepPlan
from octavo_runtime.engine.batch import build_batch

BuildSequence = Callable[..., ScheduledSequence]


def test_build_batch_mixed(sequence: BuildSequence) -> None:
    plan = StepPlan(
        (
            sequence("chunk", [11, 12, 13], 7, (4, 9), num_samples=0),
            sequence("decode", [21], 16, (1, 0, 5)),
            sequence("prompt", [31, 32], 0, (7,), num_samples=3),
        )
    )
    batch = build_batch(plan, {}, 8)
    token_ids, positions, slots = batch.tokens.tolist()
    assert token_ids == [11, 12, 13, 21, 31, 32]
    assert positions == [7, 8, 9, 16, 0, 1]
    assert slots == [4 * 8 + 7, 9 * 8, 9 * 8 + 1, 5 * 8, 7 * 8, 7 * 8 + 1]
    assert batch.paged.query_lens == (3, 1, 2)
    assert batch.paged.context_lens == (10, 17, 2)
    assert batch.paged.block_tables == ((4, 9), (1, 0, 5), (7,))
    assert batch.sampling_rows.tolist() == [3, 5]


def test_build_batch_nothing_sampled(sequence: BuildSequence) -> None:
    plan = StepPlan((sequence("chunk", [1, 2], 0, (0,), num_samples=0),))
    assert build_batch(plan, {}, 16).sampling_rows.shape == (0,)


def test_build_batch_fills_placeholders(sequence: BuildSequence) -> None:
    plan = StepPlan(
        (
            sequence("fed", [0], 4, (0,), number=7, feeds=True),
            sequence("known", [5], 4, (1,), number=8),
            sequence("fed too", [0], 9, (2,), number=9, feeds=True),
        )
    )
    assert build_batch(plan, {9: 21, 8: 22, 7: 23}, 16).tokens[0].tolist() == [23, 5, 21]
    with pytest.raises(KeyError):
        build_batch(plan, {7: 23}, 16)


def test_build_batch_table_longer_than_needed(sequence: BuildSequence) -> None:
    plan = StepPlan((sequence("a", [1, 2, 3], 7, (4, 9, 2, 3)),))
    plan = StepPlan((plan.sequences[0]._replace(token_ids=array("i", [1, 2, 3])),))  # as the scheduler keeps them
    batch = build_batch(plan, {}, 8)
    assert batch.tokens[0].tolist() == [1, 2, 3]
    assert batch.tokens[2].tolist() == [4 * 8 + 7, 9 * 8, 9 * 8 + 1]
