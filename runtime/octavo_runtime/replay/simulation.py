"""Drives a scheduler through a load in virtual time: nothing sleeps, and the same input gives the same output.

    one after the other     plan 0 [ step 0 ] apply 0, plan 1 [ step 1 ] apply 1, plan 2 …
    planned ahead           plan 0 [ step 0 … plan 1 ][ apply 0, step 1 … plan 2 ][ apply 1, step 2 …

The time that scheduling itself takes is not part of virtual time, so planning ahead shows here what it costs (who comes
after the plan waits for one more step, a finished sequence is computed once more) and not the host time that it hides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from octavo_runtime.domain import Event, Request, SchedulerStats, StepPlan, StepResult
from octavo_runtime.replay.executor import SimulatedExecutor
from octavo_runtime.replay.load import Load
from octavo_runtime.replay.metrics import EngineUse, Measured, RequestTimes
from octavo_runtime.replay.requests import ReplayRequest

__all__ = ["Core", "simulate"]

_PLANNED_AT = 0.9
"""Share of a step after which the engine plans the next one: late, so that it sees who has come meanwhile."""


class Core(Protocol):
    """What is driven: `octavo_runtime.core.Scheduler`, or a baseline to compare it with."""

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""
        ...

    @property
    def can_plan_ahead(self) -> bool:
        """Whether `schedule` may be called before the last plan is applied."""
        ...

    def add(self, request: Request) -> None:
        """Queues a request."""
        ...

    def schedule(self, now: float, /) -> StepPlan:
        """Plans a step."""
        ...

    def apply(self, plan: StepPlan, result: StepResult, /) -> list[Event]:
        """Takes in what a step brought."""
        ...

    def stats(self) -> SchedulerStats:
        """The state now."""
        ...


def simulate(
    core: Core,
    executor: SimulatedExecutor,
    load: Load,
    *,
    plan_ahead: bool = False,
    progress: Callable[[int], None] = lambda _finished: None,
    observe: Callable[[StepPlan, SchedulerStats], None] = lambda _plan, _stats: None,
) -> Measured:
    """Runs a load to its end.

    Args:
        core: Fresh.
        executor: Knows the answers to all requests of the load.
        load: Whose requests come when.
        plan_ahead: Plan step n+1 while step n runs, where the core can.
        progress: Called after each step with the number of requests that have ended.
        observe: Called for each step before it is applied.

    Raises:
        RuntimeError: Requests wait, and the core plans nothing for them.
    """
    recorder = _Recorder()
    now = 0.0
    ahead: StepPlan | None = None

    def admit(now: float) -> None:
        for replay in load.due(now):
            recorder.begin(replay)
            core.add(replay.request)

    while True:
        admit(now)
        plan = ahead if ahead is not None and ahead.has_work else core.schedule(now)
        ahead = None
        if not plan.has_work:
            if (at := load.next_at) is not None:
                now = max(now, at)
                continue
            if core.has_work:
                raise RuntimeError(f"{len(recorder.open)} requests wait for ever: the scheduler plans nothing")
            break
        result = executor.execute(plan)
        if plan_ahead and core.can_plan_ahead:
            late = now + _PLANNED_AT * result.seconds
            admit(late)
            ahead = core.schedule(late)
        stats = core.stats()
        observe(plan, stats)
        now += result.seconds
        events = core.apply(plan, result)
        for _ in range(recorder.step(events, stats, result.seconds, now)):
            load.answered()
        progress(len(recorder.times) - len(recorder.open))
    stats = core.stats()
    return Measured(
        requests=tuple(recorder.times),
        use=recorder.use,
        num_preemptions=stats.num_preemptions,
        recomputed_tokens=executor.recomputed_tokens,
        swapped_blocks=executor.swapped_blocks,
        prefix_hit_rate=stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0,
    )


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    times: RequestTimes
    left: int  # answers that have not ended
    last: list[float]  # when the last token of each answer came; negative: none has


class _Recorder:
    """Writes down what each step brought."""

    def __init__(self) -> None:
        self.use = EngineUse()
        self.times: list[RequestTimes] = []
        self.open: dict[str, _Open] = {}

    def begin(self, replay: ReplayRequest) -> None:
        request = replay.request
        times = RequestTimes(replay.label, request.arrival)
        self.times.append(times)
        answers = request.sampling.n
        self.open[request.request_id] = _Open(times, answers, [-1.0] * answers)

    def step(self, events: list[Event], stats: SchedulerStats, seconds: float, now: float) -> int:
        """Returns how many requests have ended in this step."""
        tokens = ended = 0
        for event in events:
            known = self.open[event.request_id]
            times = known.times
            count = len(event.token_ids)
            if count:
                tokens += count
                times.num_tokens += count
                last = known.last[event.choice]
                if last >= 0:
                    times.gaps.append(now - last)
                elif times.first_token is None:
                    times.first_token = now
                known.last[event.choice] = now
                if count > 1:
                    times.gaps.extend([0.0] * (count - 1))
            if event.finish_reason is not None:
                known.left -= 1
                if not known.left:
                    times.finished = now
                    del self.open[event.request_id]
                    ended += 1
        use = self.use
        use.steps += 1
        use.seconds += seconds
        use.tokens += tokens
        use.sequence_seconds += stats.num_running * seconds
        use.usage_seconds += stats.kv_cache_usage * seconds
        use.peak_usage = max(use.peak_usage, stats.kv_cache_usage)
        if stats.num_waiting:
            use.waiting_steps += 1
            use.waiting_tokens += tokens
            use.waiting_sequences += stats.num_running
        return ended
