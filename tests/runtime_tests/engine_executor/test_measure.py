"""What the scheduler is told about speed, on an executor whose time is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo_runtime.domain import CopyKind, EngineInfo, StepPlan, StepResult
from octavo_runtime.engine.measure import prefill_seconds_per_token, swap_seconds_per_block
from octavo_runtime.testing import Script, ScriptedExecutor

INFO = replace(
    ScriptedExecutor(Script(reply=(1,))).info,
    max_model_len=4096,
    num_blocks=256,
    num_host_blocks=100,
    block_bytes=1 << 20,
)


class Made:
    """A step takes some time, each of its tokens and copies some more, and what has not been done before a lot."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        fixed: float = 0.0,
        token: float = 0.0,
        copy: float = 0.0,
        info: EngineInfo = INFO,
    ) -> None:
        self.info = info
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self._costs = (fixed, token, copy)
        self._done: set[tuple[int, int]] = set()
        patch.setattr("octavo_runtime.engine.measure.time.perf_counter", lambda: self.now)

    def execute(self, plan: StepPlan) -> StepResult:
        fixed, token, copy = self._costs
        size = (plan.num_tokens, len(plan.copies))
        self.now += fixed * bool(plan.sequences) + token * plan.num_tokens + copy * len(plan.copies)
        self.now += 0 if size in self._done else 0.01
        self._done.add(size)
        self.plans.append(plan)
        return StepResult([0] * len(plan.sequences))

    def longest(self) -> int:
        return max(plan.num_tokens for plan in self.plans)


def test_prefill_where_each_token_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, fixed=0.040, token=0.003)
    # A decode takes 43 ms, of which 3 are its token's.
    assert prefill_seconds_per_token(executor, 2048) == pytest.approx(0.003, rel=0.04)
    assert executor.longest() == 32, "no longer than it must be"


def test_prefill_grows_where_a_short_one_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, fixed=0.005, token=0.00002)
    assert prefill_seconds_per_token(executor, 2048) == pytest.approx(0.00002, rel=0.02)
    assert executor.longest() == 256


def test_prefill_stays_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, info in (
        (100, INFO),
        (4096, replace(INFO, max_model_len=100)),
        (4096, replace(INFO, num_blocks=6)),
    ):
        executor = Made(monkeypatch, fixed=1.0, token=0.00001, info=info)
        assert prefill_seconds_per_token(executor, limit) > 0, "even where it does not show"
        for plan in executor.plans:
            (sequence,) = plan.sequences
            assert sequence.num_computed + plan.num_tokens <= 100
            assert max(sequence.block_table) < info.num_blocks


def test_prefill_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, info=replace(INFO, max_model_len=1))
    assert prefill_seconds_per_token(executor, 2048) == 0


def test_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, copy=0.0001)
    assert swap_seconds_per_block(executor) == pytest.approx(0.0001)
    assert {copy.kind for plan in executor.plans for copy in plan.copies} == {CopyKind.OUT, CopyKind.IN}
    assert {len(plan.copies) for plan in executor.plans} == {8}, "8 MiB"


@pytest.mark.parametrize(("device", "host", "copies"), [(256, 3, 3), (2, 100, 2)])
def test_swap_of_small_tiers(device: int, host: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, copy=0.001, info=replace(INFO, num_blocks=device, num_host_blocks=host))
    assert swap_seconds_per_block(executor) == pytest.approx(0.001)
    assert {len(plan.copies) for plan in executor.plans} == {copies}


def test_swap_of_large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Made(monkeypatch, copy=0.1, info=replace(INFO, block_bytes=1 << 30))
    assert swap_seconds_per_block(executor) == pytest.approx(0.1)


def test_swap_without_a_host_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swap_seconds_per_block(Made(monkeypatch, info=replace(INFO, num_host_blocks=0))) == 0
