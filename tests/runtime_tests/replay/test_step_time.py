"""How long a step takes."""

from __future__ import annotations

import pytest

from octavo_runtime.domain import BlockCopy, CopyKind, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.replay import StepTimeModel

MODEL = StepTimeModel(base=1.0, per_token=0.1, per_context=0.001, link_bytes_per_second=1000.0, kv_bytes_per_token=10)
SAMPLING = SamplingParams(max_tokens=8, seed=0)


def sequence(count: int, num_computed: int) -> ScheduledSequence:
    return ScheduledSequence("r", 0, (5,) * count, num_computed, (), 1, 0, SAMPLING)


def copies(**kinds: int) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(CopyKind[kind], 0, 0) for kind, count in kinds.items() for _ in range(count))


def test_seconds_prefill_has_tokens_and_no_context() -> None:
    assert MODEL.seconds(StepPlan((sequence(30, 500),)), 16) == pytest.approx(1 + 3)


def test_seconds_decodes_read_their_context() -> None:
    assert MODEL.seconds(StepPlan((sequence(1, 500), sequence(1, 300))), 16) == pytest.approx(1 + 0.2 + 0.8)


def test_seconds_empty_plan_takes_none() -> None:
    assert MODEL.seconds(StepPlan(), 16) == 0


def test_seconds_blocks_come_back_before_the_computation() -> None:
    plan = StepPlan((sequence(1, 0),), copies(IN=2))
    assert MODEL.seconds(plan, 16) == pytest.approx(1.1 + 2 * 0.16)


def test_seconds_blocks_go_out_beside_the_computation() -> None:
    assert MODEL.seconds(StepPlan((sequence(1, 0),), copies(OUT=2)), 16) == pytest.approx(1.1)
    assert MODEL.seconds(StepPlan((sequence(1, 0),), copies(OUT=20)), 16) == pytest.approx(20 * 0.16)


def test_seconds_copies_on_the_device_cost_nothing() -> None:
    assert MODEL.seconds(StepPlan((sequence(1, 0),), copies(DEVICE=9)), 16) == pytest.approx(1.1)


def test_seconds_per_block_at_20_gb_per_second() -> None:
    assert StepTimeModel().seconds_per_block(16) == pytest.approx(16 * 131_072 / 20e9)


@pytest.mark.parametrize(
    ("base", "per_token", "link", "said"),
    [(-1.0, 1.0, 1.0, "negative"), (0.0, 0.0, 1.0, "both zero"), (1.0, 0.0, 0.0, "link")],
)
def test_model_refuses_what_makes_no_sense(base: float, per_token: float, link: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StepTimeModel(base=base, per_token=per_token, link_bytes_per_second=link)
