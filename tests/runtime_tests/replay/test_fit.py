"""Fitting the step-time model to the times of a trace."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from bench.replays import our_scheduler
from bench.workloads import workload
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import Event, Request, SchedulerConfig, SchedulerStats, StepPlan, StepResult
from octavo_runtime.replay import (
    OpenLoop,
    SimulatedExecutor,
    StepTimeModel,
    Trace,
    TraceHeader,
    TraceWriter,
    fit_step_time,
    read_trace,
    simulate,
)

CONFIG = SchedulerConfig(async_scheduling=False)


class Recorded:
    """A scheduler whose requests and events are written to a trace."""

    can_plan_ahead = False

    def __init__(self, core: Scheduler, writer: TraceWriter) -> None:
        self.core = core
        self.writer = writer
        self.began = 0.0

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    def add(self, request: Request) -> None:
        self.writer.begin(request)
        self.core.add(request)

    def schedule(self, now: float, /) -> StepPlan:
        self.began = now
        return self.core.schedule(now)

    def apply(self, plan: StepPlan, result: StepResult, /) -> list[Event]:
        events = self.core.apply(plan, result)
        for event in events:
            self.writer.event(event, self.began + result.seconds)
        return events

    def stats(self) -> SchedulerStats:
        return self.core.stats()


def record(folder: Path, step_time: StepTimeModel, *, rate: float, count: int) -> Trace:
    requests = workload("sharegpt-like").requests(max_model_len=2048, rate=rate, count=count)
    file = io.StringIO()
    header = TraceHeader(octavo_trace=1, block_size=16, num_blocks=3750, max_model_len=2048, scheduler=CONFIG)
    core = Recorded(our_scheduler(CONFIG, max_model_len=2048), TraceWriter(file, header, 0.0))
    simulate(core, SimulatedExecutor(requests, step_time, 16), OpenLoop(requests))
    path = folder / "trace.jsonl"
    path.write_text(file.getvalue())
    return read_trace(path)


@pytest.mark.parametrize("step_time", [StepTimeModel(), StepTimeModel(base=0.03, per_token=0.002, per_context=2e-6)])
def test_fit_step_time_finds_the_model_again(tmp_path: Path, step_time: StepTimeModel) -> None:
    rate = 0.02 / step_time.per_token**0.5 * 3
    fitted = fit_step_time(record(tmp_path, step_time, rate=rate, count=150))
    assert fitted is not None
    # What counts is the time of steps as they were, more than each coefficient.
    for tokens, context in ((20, 8_000), (40, 16_000), (60, 30_000), (100, 16_000)):
        expected = step_time.base + step_time.per_token * tokens + step_time.per_context * context
        found = fitted.base + fitted.per_token * tokens + fitted.per_context * context
        assert found == pytest.approx(expected, rel=0.15)


def test_fit_step_time_needs_times(tmp_path: Path) -> None:
    trace = record(tmp_path, StepTimeModel(), rate=5.0, count=40)
    lines = tuple(
        type(line)(**{**{name: getattr(line, name) for name in line.__struct_fields__}, "first_token": None})
        for line in trace.lines
    )
    assert fit_step_time(dataclasses.replace(trace, lines=lines)) is None
    assert fit_step_time(dataclasses.replace(trace, lines=trace.lines[:10])) is None
