"""One replica: the pinned machine under a load, exact to the step, without going through each step.

A step takes `base + per_token x its tokens + per_context x context of the decoding sequences`, as in the replay of the
runtime's own scheduler. While nobody comes and nobody ends, n sequences decode: each step adds n to the context c, so k
steps take

    k x (base + per_token x n + per_context x c) + per_context x n x k(k-1)/2

seconds, and the step at which a moment falls is the root of a quadratic. Only the steps at which the set of sequences
changes are looked at, and a request costs a few heap operations.

The rules are those of the scheduler that serves, simplified where it matters little: first come, first served; decodes
first, then prompts in chunks, 2,048 tokens a step in all; a request starts when a slot is free and the memory has room
for its prompt and a reserve; when the memory cannot take the next step, whoever started last gives up its place and is
computed again when there is room. Memory is counted in tokens, with half a block for each sequence on top.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from bench.autoscaling.policy import Sample
from bench.replays import BLOCK_SIZE, KV_TOKENS, STEP_TIME

__all__ = ["Demand", "Machine", "Replica", "capacity"]

_NEVER = math.inf
_NEXT_STEP = 1 + BLOCK_SIZE // 2
"""Tokens of memory that a sequence takes for the next step, beyond its context."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica can do.

    Attributes:
        slots: Most sequences at once.
        budget: Most tokens in a step.
        kv_tokens: Tokens of context that the memory holds.
        reserve: Share of the memory that stays free when a request starts, so that those that run can grow.
        max_waiting: Requests beyond these are refused, as by the runtime.
        base: Seconds of every step.
        per_token: Seconds for each token of a step.
        per_context: Seconds for each token of context of each decoding sequence.
    """

    slots: int = 64
    budget: int = 2048
    kv_tokens: int = KV_TOKENS
    reserve: float = 0.08
    max_waiting: int = 1024
    base: float = STEP_TIME.base
    per_token: float = STEP_TIME.per_token
    per_context: float = STEP_TIME.per_context


class Demand:
    """The requests of a trace, and what became of each.

    Args:
        arrivals: Seconds, in order.
        prompts: Tokens.
        outputs: Tokens, at least one.

    Attributes:
        first_token: Seconds when the first token came; infinite before.
        ended: Seconds when the answer was complete; infinite before.
    """

    __slots__ = ("arrivals", "ended", "first_token", "outputs", "prompts")

    def __init__(self, arrivals: Sequence[float], prompts: Sequence[int], outputs: Sequence[int]) -> None:
        self.arrivals = arrivals
        self.prompts = prompts
        self.outputs = outputs
        self.first_token = [_NEVER] * len(arrivals)
        self.ended = [_NEVER] * len(arrivals)


class Replica:
    """A queue and a batch.

    The state is that of the boundary `_at`, at which `_step` steps were done; it may lie ahead of the time while a step
    with prompts runs, since nothing can change a step that has begun.

    Args:
        demand: Whose requests come here by their number.
        machine: What it can do.

    Attributes:
        next_at: When it must be advanced; infinite while it has no work.
        outstanding: Requests that came and have not ended.
    """

    __slots__ = (
        "_at",
        "_context",
        "_demand",
        "_ends",
        "_finished",
        "_generated",
        "_held",
        "_machine",
        "_partial",
        "_preemptions",
        "_prompt_tokens",
        "_queue",
        "_refused",
        "_resumed",
        "_room",
        "_running",
        "_step",
        "_steps_ahead",
        "next_at",
        "outstanding",
    )

    def __init__(self, demand: Demand, machine: Machine) -> None:
        self.next_at = _NEVER
        self.outstanding = 0
        self._demand = demand
        self._machine = machine
        self._room = machine.kv_tokens * (1 - machine.reserve)  # tokens of memory up to which a request may start
        self._at = 0.0
        self._step = 0
        self._steps_ahead = 0  # from _at to next_at
        self._running = 0  # sequences that decode
        self._context = 0  # of those, what the next step reads
        self._ends: list[tuple[int, int]] = []  # a heap of (step after which it ends, request), of those that decode
        self._queue: deque[int] = deque()
        self._partial: tuple[int, int] | None = None  # request with a part of its prompt computed, tokens left
        self._held = 0  # tokens of memory that its prompt takes
        self._resumed: dict[int, int] = {}  # preempted request -> tokens it had generated
        self._finished = 0
        self._generated = 0
        self._prompt_tokens = 0
        self._preemptions = 0
        self._refused = 0

    def arrive(self, number: int, now: float) -> bool:
        """Takes a request in; False: the queue is full, and it is refused. `next_at` never moves back by it."""
        queue = self._queue
        waiting = len(queue)
        if waiting >= self._machine.max_waiting:
            self._refused += 1
            return False
        queue.append(number)
        self.outstanding += 1
        # Who waits behind another, or for a slot, changes nothing before somebody ends.
        if waiting or self._partial is not None or self._running >= self._machine.slots:
            return True
        if not self._running:
            self._at = max(self._at, now)
            self._steps_ahead = 0
            self.next_at = self._at
        elif now <= self._at:
            self._steps_ahead = 0
            self.next_at = self._at
        else:
            steps = math.ceil(self._steps_until(now))
            if steps < self._steps_ahead:
                self._steps_ahead = steps
                self.next_at = self._at + self._seconds(steps)
        return True

    def advance(self) -> None:
        """Brings the state to `next_at`: ends who ends, starts who can, and finds the next such moment.

        This is where a simulation spends its time, so the state is held in local names, and what is wanted at more than
        one place is written out at each.
        """
        machine, demand, ends, queue = self._machine, self._demand, self._ends, self._queue
        at = self.next_at
        running, context, step = self._running, self._context, self._step
        if steps := self._steps_ahead:
            step += steps
            grown = running * steps
            context += grown
            self._generated += grown
        if ends and ends[0][0] <= step:
            before = running
            while ends and ends[0][0] <= step:
                number = heappop(ends)[1]
                demand.ended[number] = at
                context -= demand.prompts[number] + demand.outputs[number] - 1
                running -= 1
            ended = before - running
            self._finished += ended
            self.outstanding -= ended
        memory = context + self._held + running * _NEXT_STEP
        if memory > machine.kv_tokens:
            self._running, self._context, self._step = running, context, step
            self._preempt()
            running, context = self._running, self._context
            memory = context + self._held + running * _NEXT_STEP
        if self._partial is not None or (queue and self._may_start(running, memory)):
            self._at, self._running, self._context, self._step = at, running, context, step
            self._prefill()
            at, running, context, step = self._at, self._running, self._context, self._step
            memory = context + self._held + running * _NEXT_STEP
            if self._partial is not None or (queue and self._may_start(running, memory)):
                self._steps_ahead = 0
                self.next_at = at
                return
        self._at, self._running, self._context, self._step = at, running, context, step
        # The next moment at which anything but decoding happens.
        if running:
            fits = (machine.kv_tokens - memory + running) // running
            steps = ends[0][0] - step
            if fits < steps:
                steps = max(0, fits)
            self._steps_ahead = steps
            first = machine.base + machine.per_token * running + machine.per_context * context
            self.next_at = at + (steps * first + machine.per_context * running * steps * (steps - 1) / 2)
        else:
            self._steps_ahead = 0
            self.next_at = _NEVER

    def scrape(self, now: float) -> Sample:
        """What `/metrics` would say."""
        steps = 0
        if now > self._at and self._running:
            steps = min(int(self._steps_until(now)), self._steps_ahead)
        grown = self._running * steps
        return Sample(
            time=now,
            running=self._running + (self._partial is not None),
            waiting=len(self._queue),
            cache_usage=min(1.0, (self._memory() + grown) / self._machine.kv_tokens) if self.outstanding else 0.0,
            finished=self._finished,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated + grown,
            preemptions=self._preemptions,
            refused=self._refused,
        )

    def _memory(self) -> int:
        """Tokens of memory that the next step needs."""
        return self._context + self._held + self._running * _NEXT_STEP

    def _may_start(self, running: int, memory: int) -> bool:
        """Whether whoever waits longest can start beside so many that decode, if the next step needs so much memory."""
        if running >= self._machine.slots:
            return False
        number = self._queue[0]
        wanted = self._demand.prompts[number]
        if self._resumed:
            wanted += self._resumed.get(number, 0)
        return memory + wanted <= self._room or not (running or self._held)

    def _length(self, number: int) -> int:
        """Tokens to compute before the next one is sampled: the prompt, and what was generated before a preemption."""
        return self._demand.prompts[number] + self._resumed.get(number, 0)

    def _preempt(self) -> None:
        """Whoever started to decode last, of several whoever came last, goes back to the queue's front, until all fits."""
        outputs = self._demand.outputs
        while self._memory() > self._machine.kv_tokens:
            # Who was preempted before counts as of its first start.
            last = max(self._ends, key=lambda entry: (entry[0] - outputs[entry[1]], entry[1]))
            self._ends.remove(last)
            heapify(self._ends)
            end, number = last
            left = end - self._step
            generated = outputs[number] - left
            self._context -= self._demand.prompts[number] + generated - 1
            self._running -= 1
            self._resumed[number] = generated
            self._queue.appendleft(number)
            self._preemptions += 1

    def _prefill(self) -> None:
        """One step that computes prompts beside the decodes."""
        machine, demand, queue, resumed = self._machine, self._demand, self._queue, self._resumed
        decoding, context, held = self._running, self._context, self._held
        left = budget = machine.budget - decoding
        memory = context + held + decoding * _NEXT_STEP
        partial = self._partial
        computed: list[tuple[int, int]] = []  # request, tokens
        while left > 0:
            if partial is not None:
                number, tokens = partial
                length = self._length(number)
            elif queue and decoding + len(computed) < machine.slots:
                number = queue[0]
                length = tokens = demand.prompts[number] + (resumed.get(number, 0) if resumed else 0)
                if memory + tokens > self._room and (decoding or held):
                    break
                queue.popleft()
                held += tokens
                memory += tokens
                if number not in resumed:
                    self._prompt_tokens += tokens
            else:
                break
            if tokens > left:
                partial = (number, tokens - left)
                left = 0
            else:
                partial = None
                computed.append((number, length))
                left -= tokens
        self._partial = partial
        self._at += machine.base + machine.per_token * (decoding + budget - left) + machine.per_context * context
        self._step += 1
        started = len(computed)
        self._generated += decoding + started
        context += decoding
        for number, length in computed:
            generated = resumed.pop(number, 0) if resumed else 0
            held -= length
            context += length
            if not generated:
                demand.first_token[number] = self._at
            heappush(self._ends, (self._step + demand.outputs[number] - generated - 1, number))
        self._context, self._held = context, held
        self._running = decoding + started

    def _seconds(self, steps: int) -> float:
        """How long the next steps take if only those that run decode."""
        machine, running = self._machine, self._running
        first = machine.base + machine.per_token * running + machine.per_context * self._context
        return steps * first + machine.per_context * running * steps * (steps - 1) / 2

    def _steps_until(self, now: float) -> float:
        """How many steps, with the fraction of the last, lie between the state's boundary and a moment after it."""
        machine, running = self._machine, self._running
        first = machine.base + machine.per_token * running + machine.per_context * self._context
        half = machine.per_context * running / 2
        linear = first - half
        return 2 * (now - self._at) / (linear + math.sqrt(linear * linear + 4 * half * (now - self._at)))


def capacity(prompts: Sequence[int], outputs: Sequence[int], machine: Machine) -> float:
    """Requests per second that a replica answers while enough of them wait: between the first and the last tenth."""
    count = len(prompts)
    demand = Demand([0.0] * count, prompts, outputs)
    replica = Replica(demand, machine)
    number = 0
    while number < count or replica.outstanding:
        while number < count and replica.outstanding < 2 * machine.slots:
            replica.arrive(number, 0.0)
            number += 1
        replica.advance()
    ended = sorted(demand.ended)
    first, last = count // 10, count - 1 - count // 10
    return (last - first) / (ended[last] - ended[first])
