"""What the benches of the core share: the pinned machine, our scheduler and the baselines on it, and the judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.report import say
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import SchedulerConfig, SchedulerStats, StepPlan
from octavo_runtime.replay import (
    EOS,
    Core,
    Measured,
    OpenLoop,
    ReplayRequest,
    SimulatedExecutor,
    StepTimeModel,
    simulate,
)
from octavo_runtime.replay.load import Load

__all__ = ["BLOCK_SIZE", "KV_TOKENS", "STEP_TIME", "Target", "judge", "limits", "our_scheduler", "run"]

BLOCK_SIZE = 16
KV_TOKENS = 60_000
STEP_TIME = StepTimeModel()

Target = tuple[str, float]
""""at least" or "at most", and the number."""


def our_scheduler(
    config: SchedulerConfig,
    *,
    max_model_len: int,
    num_blocks: int = KV_TOKENS // BLOCK_SIZE,
    block_size: int = BLOCK_SIZE,
    num_host_blocks: int = 0,
) -> Scheduler:
    """The scheduler that serves, told what it would have measured on the pinned machine."""
    return Scheduler(
        config,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
        num_host_blocks=num_host_blocks,
        swap_seconds_per_block=STEP_TIME.seconds_per_block(block_size),
        prefill_seconds_per_token=STEP_TIME.per_token,
    )


def run(
    core: Core,
    requests: Sequence[ReplayRequest],
    *,
    load: Load | None = None,
    executor: SimulatedExecutor | None = None,
    observe: Callable[[StepPlan, SchedulerStats], None] = lambda _plan, _stats: None,
) -> Measured:
    """Replays requests, as they arrive unless a load says otherwise, steps planned ahead where the settings say so."""
    plan_ahead = isinstance(core, Scheduler) and core.config.async_scheduling
    executor = executor or SimulatedExecutor(requests, STEP_TIME, BLOCK_SIZE)
    return simulate(core, executor, load or OpenLoop(requests), plan_ahead=plan_ahead, observe=observe)


def limits(targets: Mapping[str, Target]) -> dict[str, float]:
    """The targets' numbers, for the report."""
    return {name: number for name, (_, number) in targets.items()}


def judge(figures: Mapping[str, float], targets: Mapping[str, Target]) -> None:
    """Tells which figures keep their targets."""
    for name, (relation, number) in targets.items():
        value = figures[name]
        met = value >= number if relation == "at least" else value <= number
        say(f"  {'ok   ' if met else 'SHORT'} {name} {value:.4g}, {relation} {number:g}")
