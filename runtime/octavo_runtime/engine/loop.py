"""One engine: requests in, steps of schedule, execute and apply, events out. Without process or socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import EngineConfig, EngineInfo, Request
from octavo_runtime.errors import BadFlags
from octavo_runtime.ipc.messages import Step

if TYPE_CHECKING:  # the executor brings torch; the loop runs any executor
    from octavo_runtime.engine.executor import Executor

__all__ = ["EngineCore"]


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
        info = executor.info
        try:
            self._scheduler = Scheduler(
                num_blocks=info.num_blocks,
                block_size=info.block_size,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=info.max_model_len,
                enable_prefix_caching=config.enable_prefix_caching,
                eos_token_ids=info.eos_token_ids,
            )
        except ValueError as error:
            raise BadFlags(str(error)) from error

    @property
    def info(self) -> EngineInfo:
        """The executor's limits."""
        return self._executor.info

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            InvalidRequest: It could never run; `admit` at the door refuses the same.
        """
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its blocks; no event comes of it. Unknown ids are of requests that ended."""
        self._scheduler.abort(request_id)

    def step(self) -> Step:
        """Computes one step of what there is to do."""
        plan = self._scheduler.schedule()
        events = self._scheduler.apply(plan, self._executor.execute(plan)) if plan.sequences else []
        return Step(events, plan.num_tokens, self._scheduler.stats())

    def idle(self) -> Step:
        """A step that computes nothing and tells the state."""
        return Step([], 0, self._scheduler.stats())
