"""One engine: requests in, steps of schedule, execute and apply, events out. Without process or socket.

With asynchronous scheduling the executor works in a thread of its own, and the next step is planned before the running
one ends, so that the executor never waits for the scheduler, nor for whoever gets the events:

    executor    [ step n ───────────────────── ][ step n+1 ─────────────────── ][ step n+2
    this        take in arrivals …  [ plan n+1 ]  [ apply n, events ] … [ plan n+2 ]

The plan is made late, when the running step is about to end: what arrives before can still be part of it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import EngineConfig, EngineInfo, Request, StepPlan, StepResult
from octavo_runtime.engine.executor_thread import ExecutorThread
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.errors import BadFlags
from octavo_runtime.ipc.messages import Step

if TYPE_CHECKING:  # the executor brings torch; the loop runs any executor
    from octavo_runtime.engine.executor import Executor

__all__ = ["EngineCore"]

_MARGIN = 0.1
"""Share of a step's expected time that planning the next one begins before its end, besides what planning takes."""


class EngineCore:
    """The scheduler and its executor.

    Args:
        executor: Loaded.
        config: What the executor was loaded with.

    Raises:
        BadFlags: The settings contradict each other.
    """

    def __init__(self, executor: Executor, config: EngineConfig) -> None:
        self._executor = executor
        self._info = info = executor.info
        try:
            self._scheduler = Scheduler(
                config.scheduler,
                num_blocks=info.num_blocks,
                block_size=info.block_size,
                max_model_len=info.max_model_len,
                eos_token_ids=info.eos_token_ids,
                num_host_blocks=info.num_host_blocks,
                max_num_blocks=info.max_num_blocks or None,
                swap_seconds_per_block=info.swap_seconds_per_block,
                prefill_seconds_per_token=info.prefill_seconds_per_token,
            )
        except ValueError as error:
            raise BadFlags(str(error)) from error
        self._thread = ExecutorThread(executor) if config.scheduler.async_scheduling else None
        # Plans that are not applied yet: of the step that runs, or is to run next, and of the one after it.
        self._plans: deque[StepPlan] = deque()
        self._num_started = 0  # of them, by the thread
        self._began = 0.0  # when the first of them did, about
        self._step_seconds: dict[int, float] = {}  # by the order of magnitude of the step's tokens
        self._planning_seconds = 0.0

    @property
    def info(self) -> EngineInfo:
        """The executor's limits, with the size that the KV pool has now or will have with the next step."""
        return self._info

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._plans) or self._scheduler.has_work

    @property
    def step_ended(self) -> int | None:
        """A file descriptor that is readable when the running step has ended; None without asynchronous scheduling."""
        return self._thread.ended if self._thread else None

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            InvalidRequest: It could never run; `admit` at the door refuses the same.
        """
        self._scheduler.add(request)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Forgets a request, or one of its answers, and frees the blocks; no event comes of it.

        Unknown ids are of requests that ended.
        """
        self._scheduler.abort(request_id, choice)

    def resize(self, num_blocks: int) -> EngineInfo:
        """Changes the size of the KV pool with the next step.

        Returns:
            The new `info`: the longest request may be another as well.

        Raises:
            ValueError: Out of bounds, too few for a request that is here, or more than there is memory for.
        """
        growth = (num_blocks - self._info.num_blocks) * self._info.block_bytes
        if growth > 0 and self._info.device == "cpu" and growth > (available := available_memory()):
            raise ValueError(f"the KV pool would take {growth} bytes more, and {available} are available")
        self._scheduler.resize(num_blocks)
        longest = min(self._executor.info.max_model_len, num_blocks * self._info.block_size)
        self._info = replace(self._info, num_blocks=num_blocks, max_model_len=longest)
        return self._info

    def begin(self) -> None:
        """Starts the next step, unless one runs or there is nothing to do. Without asynchronous scheduling: plans it."""
        if not self._plans:
            self._plan()
        if self._plans and self._thread and not self._num_started:
            self._began = time.monotonic()
            self._start(self._thread)

    def seconds_to_plan(self) -> float:
        """How long requests can still arrive and be part of the next step; infinite while nothing is known."""
        if not self._num_started:
            return 0.0
        expected = self._step_seconds.get(self._plans[0].num_tokens.bit_length(), float("inf"))
        return self._began + (1 - _MARGIN) * expected - self._planning_seconds - time.monotonic()

    def step(self) -> Step:
        """Computes one step of what there is to do. Where it can be planned ahead, the next one then runs already.

        What the executor raises is raised here. The step is then still to be computed: the next call tries again.
        """
        self.begin()
        if not self._plans:
            return self._done(StepPlan(), StepResult())
        if self._thread is None:
            result = self._executor.execute(self._plans[0])
        else:
            if len(self._plans) == 1 and self._scheduler.can_plan_ahead:
                self._plan()
            self._start(self._thread)
            outcome = self._thread.result()  # Ctrl-C while it waits changes nothing
            if isinstance(outcome, BaseException):
                self._num_started = 0
                raise outcome
            self._num_started -= 1
            self._began = time.monotonic()
            result = outcome
        return self._done(self._plans.popleft(), result)

    def idle(self) -> Step:
        """A step that computes nothing and tells the state."""
        return Step([], 0, self._scheduler.stats())

    def _start(self, thread: ExecutorThread) -> None:
        for plan in itertools.islice(self._plans, self._num_started, None):
            thread.start(plan)
            self._num_started += 1

    def _plan(self) -> None:
        began = time.monotonic()
        plan = self._scheduler.schedule(began)
        if plan.has_work:
            self._plans.append(plan)
        self._planning_seconds = time.monotonic() - began

    def _done(self, plan: StepPlan, result: StepResult) -> Step:
        if result.seconds:
            self._step_seconds[plan.num_tokens.bit_length()] = result.seconds
        return Step(self._scheduler.apply(plan, result), plan.num_tokens, self._scheduler.stats())
