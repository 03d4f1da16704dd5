"""Who runs next, who starts, and who must give way.

Everyone waits in one of two queues, in the policy's order (waiting.py): what was preempted, and after it what is new,
unless that is more important. A waiting sequence starts when it has its slots, the blocks for its tokens are free, and
the admission rule (admission.py) allows it.

When blocks run out, the victim is who has the least to compute again. The request that is first in the order is spared,
and therefore always advances: no deadlock, no livelock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from octavo_runtime.core.admission import MARGIN, MARGIN_WITH_HOST, Forecast, worst_case
from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.running import RunningSet
from octavo_runtime.core.sequence import RequestState, Sequence, State
from octavo_runtime.core.step_time import StepTimeModel
from octavo_runtime.core.waiting import AGING, WaitingQueue
from octavo_runtime.domain import SchedulerConfig

__all__ = ["Guard", "Policy"]

_UNKNOWN_PREFILL_SECONDS = 1e-4
_SLO_SHARE = 0.9
"""Of the target time between tokens, what a step is planned to take: predictions err to both sides."""

_SLO_LATE = 20.0
"""How many times the target time to the first token a request waits for others once its own is missed."""

_SLO_MIN_TOKENS = 16
"""Prefill tokens that a step has in any case: a first token must come some day."""

_REFUSAL_STEPS = 8
"""A forecast reaches far ahead; in so few steps it changes only when something ends."""

Guard = Callable[[RequestState, Callable[[], bool]], bool | None]
"""Does something for a request; None when that ended in a fault of ours, and the request with it."""


class Policy:
    """The order of all sequences, waiting and running.

    Args:
        config: Limits and the policy's name.
        running: Those that hold blocks.
        predictor: Of output lengths.
        block_size: Tokens per block.
        max_model_len: Longest prompt plus output.
        prefill_seconds_per_token: What computing a token of a prompt takes; 0: not known.
        guard: Stands between a fault in one request and the others.

    Attributes:
        step_time: What steps take, learned from those that were measured.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        running: RunningSet,
        predictor: LengthPredictor,
        *,
        block_size: int,
        max_model_len: int,
        prefill_seconds_per_token: float,
        guard: Guard,
    ) -> None:
        self._config = config
        self._running = running
        self._predictor = predictor
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._prefill_seconds = prefill_seconds_per_token or _UNKNOWN_PREFILL_SECONDS
        self._guard = guard
        self.step_time = StepTimeModel()
        self._new = WaitingQueue()
        self._preempted = WaitingQueue()
        self._arrivals = 0
        # Whom the forecast refused last, beside how many running ones, and for how many steps that holds.
        self._refused = (-1, 0, 0)

    def __len__(self) -> int:
        return len(self._new) + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._new
        yield from self._preempted

    def add(self, sequence: Sequence) -> None:
        """Queues the prompt of a new request."""
        self._arrivals += 1
        sequence.key = self._key(sequence)
        self._new.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, should it wait."""
        self._new.remove(sequence)
        self._preempted.remove(sequence)

    def budget(self, decodes: list[Sequence]) -> int:
        """Tokens that the next step may have, beside these decodes the prefills."""
        budget = self._config.max_num_batched_tokens
        if self._config.policy == "slo" and decodes and self.step_time.is_fitted:
            context = sum(sequence.num_planned for sequence in decodes)
            wanted = self.step_time.tokens_within(_SLO_SHARE * self._config.target_itl_ms / 1000, context)
            budget = min(budget, max(wanted, len(decodes) + _SLO_MIN_TOKENS))
        return budget

    def fill(
        self, prefills: list[Sequence], budget: int, now: float, *, admits: bool
    ) -> list[tuple[Sequence, int, int]]:
        """Chunks of running and waiting prefills, in the policy's order, within a budget of tokens.

        Returns:
            Sequences, their tokens in this step, and the epochs in which they got them.
        """
        chunks: list[tuple[Sequence, int, int]] = []
        prefills.sort(key=lambda sequence: sequence.key)
        held_back: list[tuple[WaitingQueue, Sequence]] = []
        forecast: Forecast | None = None
        position = 0
        if self._config.policy == "slo":
            self._put_late_ones_back(now)
        if self._is_refused_still():
            admits = False
        while budget > 0:
            queue, head = self._head() if admits else (None, None)
            following = prefills[position] if position < len(prefills) else None
            if following is not None and (head is None or (queue is self._new and following.key <= head.key)):
                sequence = following
                position += 1
                if sequence.state is not State.RUNNING:
                    continue
            elif queue is not None and head is not None:
                if self._waits_for_sibling(head):
                    queue.remove(head)
                    held_back.append((queue, head))
                    continue
                if forecast is None and self._config.admission == "expected":
                    forecast = self._forecast()
                if not self._guard(head.request, partial(self._start, queue, head, forecast)):
                    admits = False
                    continue
                sequence = head
            else:
                break
            count = min(sequence.remaining, budget)
            chunks.append((sequence, count, sequence.epoch))
            budget -= count
        for queue, sequence in held_back:
            queue.push(sequence)
        return chunks

    def grow(self, sequence: Sequence) -> None:
        """Preempts until a running sequence can grow, be it itself that goes."""
        while sequence.state is State.RUNNING and not self._running.grow(sequence):
            self.preempt(self.victims())

    def preempt(self, victims: Iterable[Sequence]) -> None:
        """Takes the blocks of those that run; they wait again, before new ones."""
        for victim in list(victims):
            if victim.state is State.RUNNING:
                self._running.preempt(victim)
                self._preempted.push(victim)

    def victims(self) -> list[Sequence]:
        """Who loses the least by giving up its blocks: one sequence, or all beams of a search.

        Under `priority` the least important come first. The request that is first in the policy's order is spared.
        """
        first = min(self._running, key=lambda sequence: sequence.key).request
        candidates: list[list[Sequence]] = []
        for sequence in self._running:
            request = sequence.request
            if request is first:
                continue
            if request.beams is None:
                candidates.append([sequence])
            elif sequence is next(s for s in request.sequences if s.state is State.RUNNING):
                candidates.append([s for s in request.sequences if s.state is State.RUNNING])
        assert candidates, "one request alone does not fit the pool"

        def loss(victims: list[Sequence]) -> tuple[float, float, float]:
            importance = -victims[0].request.priority if self._config.policy == "priority" else 0
            freed = self._running.num_unshared(victims)
            # Who shares all frees nothing.
            return (importance, freed or float("inf"), -victims[0].key[-1])

        return min(candidates, key=loss)

    def end_a_time_slice(self, now: float) -> None:
        """Lets a shorter one that waits have the place of a running sequence whose time slice is over.

        Args:
            now: Seconds on the clock of the requests' arrivals.
        """
        head = self._head()[1]
        if head is None or self._fits(head, self._forecast() if self._config.admission == "expected" else None):
            return
        # As if it arrived now, with what it still has to do.
        over = [
            (self._key(s, since=now), s)
            for s in self._running
            if s.request.sampling.width == 1 and s.num_generated - s.since >= self._config.time_slice_tokens
        ]
        key, longest = max(over, key=lambda entry: entry[0], default=((), None))
        if longest is not None and key > head.key:
            self._running.preempt(longest)
            longest.key = key
            self._new.push(longest)

    def unblock(self, budget: int, now: float) -> list[tuple[Sequence, int, int]]:
        """Lets one request go on where beams that wait for their siblings hold the blocks that these wait for.

        Args:
            budget: Tokens of the step.
            now: Seconds on the clock of the requests' arrivals.

        Returns:
            As `fill`.
        """
        first = min((*self._running, *self._preempted), key=lambda sequence: sequence.key).request
        self.preempt(sequence for sequence in list(self._running) if sequence.request is not first)
        return self.fill([], budget, now, admits=True)

    def _key(self, sequence: Sequence, *, since: float | None = None) -> tuple[float, ...]:
        """The place in the policy's order, of a sequence that begins to wait."""
        request = sequence.request
        if self._config.policy == "priority":
            return (request.priority, self._arrivals)
        if self._config.policy == "fcfs":
            return (self._arrivals,)
        generated = sequence.num_generated
        output = self._predictor.expected(generated, request.max_tokens) - generated
        work = (len(sequence.token_ids) + output * request.sampling.width) * self._prefill_seconds
        return ((request.arrival if since is None else since) + AGING * work, self._arrivals)

    def _head(self) -> tuple[WaitingQueue | None, Sequence | None]:
        """Who is to start next: a preempted one before a new one, within a priority."""
        preempted, new = self._preempted.peek(), self._new.peek()
        if preempted is None:
            return (self._new, new) if new is not None else (None, None)
        if new is not None and self._config.policy == "priority" and new.key[0] < preempted.key[0]:
            return self._new, new
        return self._preempted, preempted

    def _put_late_ones_back(self, now: float) -> None:
        """Lets those go first whose first token can still come in time, for a while."""
        target = self._config.target_ttft_ms / 1000
        while (head := self._new.peek()) is not None and not head.is_late:
            if now - head.request.arrival + len(head.token_ids) * self._prefill_seconds <= target:
                return
            self._new.remove(head)
            head.is_late = True
            head.key = (head.key[0] + _SLO_LATE * target, *head.key[1:])
            self._new.push(head)

    def _is_refused_still(self) -> bool:
        """Whether the forecast that refused the head need not be made again: nothing has ended, and little changed."""
        number, num_running, steps = self._refused
        head = self._head()[1]
        if head is None or head.number != number or len(self._running) < num_running or not steps:
            return False
        self._refused = (number, len(self._running), steps - 1)
        return True

    def _waits_for_sibling(self, sequence: Sequence) -> bool:
        """Whether another sequence of the request is computing what this one will find in the cache then."""
        return any(
            s.state is State.RUNNING and s.num_computed + 1 < len(s.token_ids)
            for s in sequence.request.sequences
            if s is not sequence
        )

    def _forecast(self) -> Forecast:
        self._refresh_predictor()
        pool = self._running.pool
        return Forecast(
            self._running,
            used=pool.num_blocks - pool.num_free,
            predictor=self._predictor,
            block_size=self._block_size,
            max_len=self._max_model_len,
            margin=MARGIN if pool.host is None else MARGIN_WITH_HOST,
        )

    def _refresh_predictor(self) -> None:
        if self._predictor.is_stale:
            under_way = (*self._running, *self._preempted)
            self._predictor.refresh([sequence.num_generated for sequence in under_way])

    def _start(self, queue: WaitingQueue, head: Sequence, forecast: Forecast | None) -> bool:
        """Admits the head of a queue if it may run; under `priority` less important ones may have to go for it."""
        running = self._running
        if not self._fits(head, forecast):
            if self._config.policy != "priority" or not self._can_displace(head):
                return False
            while not (running.slots + head.slots <= self._config.max_num_seqs and self._has_room(head)):
                worst = max(running, key=lambda sequence: sequence.key)
                self.preempt(worst.request.sequences if worst.request.beams else [worst])
        queue.remove(head)
        running.admit(head, running.lookup(head))
        request = head.request
        if request.predicted is None:
            self._refresh_predictor()
            request.predicted = (
                self._predictor.expected(0, request.max_tokens),
                self._predictor.quantile(0.9, request.max_tokens),
            )
        return True

    def _has_room(self, head: Sequence) -> bool:
        return self._running.has_room(head, self._running.lookup(head))

    def _fits(self, head: Sequence, forecast: Forecast | None) -> bool:
        running = self._running
        if running.slots + head.slots > self._config.max_num_seqs:
            return False
        found = running.lookup(head)
        if not running.has_room(head, found):
            return False
        # Alone it fits, or it would have been refused; and a request that runs is let run on: beams wait for each other.
        if not len(running) or any(each.state is State.RUNNING for each in head.request.sequences):
            return True
        if self._config.admission == "never-evict":
            requests = {id(s.request): s.request for s in (*running, head)}.values()
            return worst_case(requests, self._block_size) <= self._running.pool.num_blocks
        if forecast is None:
            return True
        shared = len(found) - running.pool.num_needed(found)
        if forecast.allows(head, shared, self._running.pool.num_blocks):
            return True
        self._refused = (head.number, len(running), _REFUSAL_STEPS)
        return False

    def _can_displace(self, head: Sequence) -> bool:
        """Whether there is room for a sequence without those that are less important."""
        less = [sequence for sequence in self._running if sequence.key[0] > head.key[0]]
        slots = self._running.slots - sum(sequence.slots for sequence in less)
        free = self._running.pool.num_free + self._running.num_unshared(less)
        # Blocks that are found in the cache would be needed too, so the whole length counts.
        needed = self._running.blocks_for(len(head.token_ids))
        return bool(less) and slots + head.slots <= self._config.max_num_seqs and needed <= free
