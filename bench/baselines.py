"""Schedulers to compare with: real ones, small, driven by the same replay as ours.

All of them know one answer per request, put decodes before prefills and fill a step's token budget with chunks of
prompts in order of arrival, as ours does under fcfs. They differ in when a request may start and in what happens when
memory is short:

    Reserving       a request starts when one contiguous range for all it may come to hold is free; nothing is ever
                    taken from it
    StaticBatching  a batch starts when the batch before has ended altogether
    LastRecompute   blocks; a request starts when blocks for its prompt are free; when none is left for the next
                    token, the request that started last gives up its blocks and is computed again (vLLM's rule), as
                    far as they are not still there as cache
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.allocators import Allocator
from octavo_runtime.domain import Event, FinishReason, Request, ScheduledSequence, SchedulerStats, StepPlan, StepResult
from octavo_runtime.replay import EOS

__all__ = ["LastRecompute", "Reserving", "StaticBatching"]


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request on its way: `computed` of its tokens are in memory, `generated` are output."""

    number: int
    request: Request
    length: int  # of prompt and output
    computed: int = 0
    generated: int = 0
    runs: bool = False


class _Baseline:
    """What they have in common; memory is what the subclasses add.

    Args:
        slots: Most sequences at once.
        budget: Most tokens in a step.
    """

    can_plan_ahead = False

    def __init__(self, *, slots: int, budget: int) -> None:
        self.slots = slots
        self.budget = budget
        self.num_preemptions = 0
        self.waiting: deque[_Sequence] = deque()
        self.running: list[_Sequence] = []
        self._count = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def live_tokens(self) -> int:
        """Tokens whose state is in memory."""
        return sum(sequence.computed for sequence in self.running)

    @property
    def held_tokens(self) -> int:
        """Tokens of memory that nobody else can have."""
        return self.live_tokens

    @property
    def usage(self) -> float:
        """Share of the memory that is held, 0-1."""
        return 0.0

    def add(self, request: Request) -> None:
        self.waiting.append(_Sequence(self._count, request, len(request.prompt_token_ids)))
        self._count += 1

    def schedule(self, now: float) -> StepPlan:  # noqa: ARG002 - ours needs the time
        plan: list[ScheduledSequence] = []
        prefills = []
        preemptions = self.num_preemptions
        for sequence in list(self.running):
            if not sequence.runs:  # preempted for one before it
                continue
            if sequence.length - sequence.computed > 1:
                prefills.append(sequence)
            elif self.grow(sequence):
                plan.append(_entry(sequence, 1))
        budget = self.budget - len(plan)
        if self.num_preemptions == preemptions:
            prefills += self.start_more(budget - sum(each.length - each.computed for each in prefills))
        for sequence in prefills:
            count = min(sequence.length - sequence.computed, budget)
            if sequence.runs and count > 0:
                plan.append(_entry(sequence, count))
                budget -= count
        return StepPlan(tuple(plan))

    def start_more(self, budget: int) -> list[_Sequence]:
        """Lets requests that wait start, as long as budget is left for their prompts; returns them."""
        started = []
        while self.waiting and budget > 0 and len(self.running) < self.slots and self.start(self.waiting[0]):
            sequence = self.waiting.popleft()
            sequence.runs = True
            self.running.append(sequence)
            started.append(sequence)
            budget -= sequence.length - sequence.computed
        return started

    def apply(self, plan: StepPlan, result: StepResult) -> list[Event]:
        running = {sequence.number: sequence for sequence in self.running}
        tokens = iter(result.tokens)
        events = []
        for scheduled in plan.sequences:
            sequence = running[scheduled.number]
            sequence.computed += len(scheduled.token_ids)
            if not scheduled.num_samples:
                continue
            token = next(tokens)
            sequence.generated += 1
            sequence.length += 1
            reason = None
            if token == EOS:
                reason = FinishReason.STOP
            elif sequence.generated == sequence.request.sampling.max_tokens:
                reason = FinishReason.LENGTH
            events.append(Event(sequence.request.request_id, (token,), reason))
            if reason is not None:
                self.running.remove(sequence)
                sequence.runs = False
                self.end(sequence)
        return events

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.usage,
            num_preemptions=self.num_preemptions,
        )

    def start(self, sequence: _Sequence) -> bool:  # noqa: ARG002 - for those with memory
        """Takes memory for a request; False when it must wait."""
        return True

    def grow(self, sequence: _Sequence) -> bool:  # noqa: ARG002 - for those with memory
        """Takes memory for the next token; False when the request was preempted itself."""
        return True

    def end(self, sequence: _Sequence) -> None:
        """Gives memory back."""


class Reserving(_Baseline):
    """Reserves contiguous memory for a whole request.

    Args:
        allocator: Of the memory.
        memory: Token slots in all.
        wants: How many of them a request wants.
        slots: Most sequences at once.
        budget: Most tokens in a step.
    """

    def __init__(
        self, allocator: Allocator, *, memory: int, wants: Callable[[Request], int], slots: int, budget: int
    ) -> None:
        super().__init__(slots=slots, budget=budget)
        self._allocator = allocator
        self._memory = memory
        self._wants = wants
        self._starts: dict[int, int] = {}

    @property
    def held_tokens(self) -> int:
        return self._allocator.held

    @property
    def usage(self) -> float:
        return self._allocator.held / self._memory

    def start(self, sequence: _Sequence) -> bool:
        start = self._allocator.allocate(self._wants(sequence.request))
        if start is None:
            return False
        self._starts[sequence.number] = start
        return True

    def end(self, sequence: _Sequence) -> None:
        self._allocator.free(self._starts.pop(sequence.number))


class StaticBatching(_Baseline):
    """Runs batches of requests one after the other; memory is no concern."""

    def start_more(self, budget: int) -> list[_Sequence]:  # noqa: ARG002 - a batch is what there are slots for
        return [] if self.running else super().start_more(sys.maxsize)


class LastRecompute(_Baseline):
    """Blocks on demand; the request that started last is preempted and computed again.

    Args:
        num_blocks: In the pool.
        block_size: Tokens per block.
        slots: Most sequences at once.
        budget: Most tokens in a step.
    """

    def __init__(self, *, num_blocks: int, block_size: int, slots: int, budget: int) -> None:
        super().__init__(slots=slots, budget=budget)
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._blank = num_blocks
        self._cached: OrderedDict[tuple[int, int], None] = OrderedDict()  # (request, block), the next to go first
        self._held: dict[int, int] = {}

    @property
    def held_tokens(self) -> int:
        return sum(self._held.values()) * self._block_size

    @property
    def usage(self) -> float:
        return 1 - (self._blank + len(self._cached)) / self._num_blocks

    def start(self, sequence: _Sequence) -> bool:
        needed = -(-sequence.length // self._block_size)
        if needed > self._blank + len(self._cached):
            return False
        hits = 0
        while hits < (sequence.length - 1) // self._block_size and (sequence.number, hits) in self._cached:
            del self._cached[sequence.number, hits]
            hits += 1
        self._held[sequence.number] = hits
        for _ in range(needed - hits):
            self._take(sequence)
        sequence.computed = hits * self._block_size
        return True

    def grow(self, sequence: _Sequence) -> bool:
        while self._held[sequence.number] * self._block_size < sequence.length:
            if self._blank or self._cached:
                self._take(sequence)
                continue
            victim = self.running.pop()
            victim.runs = False
            self.end(victim)
            victim.computed = 0
            self.waiting.appendleft(victim)
            self.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def end(self, sequence: _Sequence) -> None:
        full = sequence.computed // self._block_size
        self._blank += self._held.pop(sequence.number) - full
        for block in reversed(range(full)):
            self._cached[sequence.number, block] = None

    def _take(self, sequence: _Sequence) -> None:
        if self._blank:
            self._blank -= 1
        else:
            self._cached.popitem(last=False)
        self._held[sequence.number] += 1


def _entry(sequence: _Sequence, count: int) -> ScheduledSequence:
    request = sequence.request
    return ScheduledSequence(
        request_id=request.request_id,
        number=sequence.number,
        token_ids=range(count),
        num_computed=sequence.computed,
        block_table=(),
        num_samples=int(sequence.computed + count == sequence.length),
        num_generated=sequence.generated,
        sampling=request.sampling,
    )
