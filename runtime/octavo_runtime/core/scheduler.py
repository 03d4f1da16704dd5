"""Continuous batching with chunked prefill on one token budget: which tokens the next step computes.

A sequence is *waiting* (no blocks) or *running* (its blocks cover all its known tokens). A request begins as one
sequence, its prompt; with several answers or beams it forks into them when the prompt is computed. Each step

    1. decodes first: every running sequence with one token left, so that no prompt delays an answer under way;
    2. then prefills, running ones and waiting ones, in the order of the policy (waiting.py), each with as long a chunk
       as the budget leaves. A waiting sequence starts when the blocks for its tokens are free and the admission rule
       (admission.py) allows it; those that were preempted come before new ones.

When a decode needs a block and none is free, a victim gives up its blocks: the one that has the least to compute again,
never one of the request that is first in the policy's order, which therefore always advances: no deadlock, no livelock.
(`add` refuses what could not run alone.) What a victim had computed stays as cache until the place is needed, and goes
to the host when it is, if copying is cheaper than computing (block_pool.py). Nothing is admitted in a step that
preempted.

Planned ahead: `schedule` may be called for the next step while one runs. A token sampled by the running step is then
not known; the sequence is planned with a placeholder. What comes back for a sequence that lost its blocks meanwhile is
ignored: it is sampled again later, with the same draw.

Invariants, checked by `check_invariants` and by the oracle in the tests:

    - a step has at most max_num_batched_tokens tokens and max_num_seqs sequences;
    - every scheduled sequence has at least one token, and blocks for all of them;
    - a block that is written in a step belongs to one sequence, and is not published;
    - reference counts equal the block tables; every block is in use or free;
    - every answer ends with exactly one final event, or is aborted.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from octavo_runtime.core.admission import Forecast, worst_case
from octavo_runtime.core.answers import Answers
from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.limits import worst_case_blocks
from octavo_runtime.core.running import RunningSet
from octavo_runtime.core.sequence import RequestState, Sequence, State
from octavo_runtime.core.step_time import StepTimeModel
from octavo_runtime.core.waiting import AGING, WaitingQueue
from octavo_runtime.domain import (
    Event,
    FinishReason,
    Request,
    ScheduledSequence,
    SchedulerConfig,
    SchedulerStats,
    StepPlan,
    StepResult,
)
from octavo_runtime.errors import InvalidRequest

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

WRITE_BACK_BLOCKS = 16
"""Cached blocks at the front of the free queue that are kept copied to the host ahead of need."""

_UNKNOWN_PREFILL_SECONDS = 1e-4
_SLO_MIN_TOKENS = 16
"""Prefill tokens that a step has in any case: a first token must come some day."""


class Scheduler:
    """The state of all requests of one engine.

    Args:
        config: Limits and policies.
        num_blocks: Blocks in the KV pool.
        block_size: Tokens per block.
        max_model_len: Longest prompt plus output.
        eos_token_ids: Tokens that end a sequence, unless its request ignores them.
        num_host_blocks: Blocks in the host tier.
        max_num_blocks: Blocks up to which the pool may be resized; None: num_blocks.
        swap_seconds_per_block: What copying a block between the tiers takes.
        prefill_seconds_per_token: What computing a token of a prompt takes.

    Raises:
        ValueError: The settings contradict each other.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
        num_host_blocks: int = 0,
        max_num_blocks: int | None = None,
        swap_seconds_per_block: float = 0.0,
        prefill_seconds_per_token: float = 0.0,
    ) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({config.max_num_seqs}), so that all running sequences can decode in one step"
            )
        if config.time_slice_tokens and config.policy != "shortest-first":
            raise ValueError(f"time slices go with the policy shortest-first, not with {config.policy}")
        self.config = config
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.max_num_blocks = max_num_blocks or num_blocks
        self._eos = frozenset(eos_token_ids)
        self._prefill_seconds = prefill_seconds_per_token or _UNKNOWN_PREFILL_SECONDS
        # There and back, against computing the block again; what was not measured is taken to pay.
        pays = 2 * swap_seconds_per_block <= block_size * (prefill_seconds_per_token or float("inf"))
        self._running = RunningSet(
            num_blocks,
            num_host_blocks if pays else 0,
            block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._predictor = LengthPredictor(max_model_len)
        self._answers = Answers(self._running, self._predictor)
        self._step_time = StepTimeModel()
        self._requests: dict[str, RequestState] = {}
        self._new = WaitingQueue()
        self._preempted = WaitingQueue()
        # For each plan that was not applied yet: its sequences, and the epochs in which they were planned.
        self._flights: deque[tuple[list[Sequence], list[int]]] = deque()
        self._late: list[Event] = []
        self._num_blocks: int | None = None
        self._num_violations = 0
        self._num_beam_searches = 0
        self._arrivals = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool now."""
        return self._running.pool.num_blocks

    @property
    def has_work(self) -> bool:
        """Whether there is a request, or news of one."""
        return bool(self._requests or self._late or self._num_blocks is not None)

    @property
    def can_plan_ahead(self) -> bool:
        """Whether the next step may be planned while one runs: a beam search must see a step's result first."""
        return not self._num_beam_searches or all(
            sequence.request.beams is None for sequences, _ in self._flights for sequence in sequences
        )

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            InvalidRequest: It has no prompt, or could never run here.
        """
        assert request.request_id not in self._requests, f"request id {request.request_id} is in use"
        self._refuse_impossible(request)
        config = self.config
        stops = frozenset(request.sampling.stop_token_ids)
        state = RequestState.of(
            request,
            stops=stops if request.sampling.ignore_eos else stops | self._eos,
            # Without the prefix cache a request finds only its own blocks, after a preemption.
            salt="" if config.enable_prefix_caching else request.request_id,
        )
        prompt = Sequence(
            number=self._answers.number(),
            request=state,
            choice=0,
            token_ids=array("i", request.prompt_token_ids),
            max_len=state.prompt_len + state.max_tokens,
            slots=request.sampling.width,
            awaits_results=request.sampling.width > 1,
        )
        self._arrivals += 1
        prompt.key = self._key(prompt)
        state.sequences.append(prompt)
        self._requests[request.request_id] = state
        self._num_beam_searches += state.beams is not None
        self._new.push(prompt)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Forgets a request, or one of its answers, and frees the blocks; unknown ids are of those that ended."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if choice is not None:
            request.dropped.add(choice)
            if len(request.dropped) < request.sampling.n:
                # Where answers are ranked, and before the prompt has forked, no sequence is this answer's own.
                if not request.sampling.ranks and request.sequences[0].slots == 1:
                    for sequence in [s for s in request.sequences if s.choice == choice]:
                        self._end(sequence)
                self._forget_if_done(request)
                return
        self._drop(request)

    def schedule(self, now: float) -> StepPlan:
        """Decides the next step and takes the blocks for it.

        Args:
            now: Seconds on the monotonic clock.

        Returns:
            The plan; empty when there is no work, or none before a running step is applied.
        """
        running = self._running
        self._resize_if_asked()
        if self.config.time_slice_tokens:
            self._end_a_time_slice(now)
        preemptions = running.num_preemptions
        decodes: list[Sequence] = []
        growing: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in running:
            pending = sequence.pending
            length = len(sequence.token_ids) + pending
            remaining = length - sequence.num_planned
            if remaining > 1:
                prefills.append(sequence)
            # What follows a token that is not known yet may depend on it, and nothing follows the last one.
            elif remaining == 1 and not (pending and (sequence.awaits_results or length >= sequence.max_len)):
                decodes.append(sequence)
                if sequence.num_planned >= sequence.capacity or sequence.may_share_tail:
                    growing.append(sequence)

        epochs = [sequence.epoch for sequence in decodes]
        for sequence in growing:
            # It may have become a victim of one before it.
            if sequence.state is State.RUNNING:
                self._guard(sequence.request, partial(self._grow, sequence))

        budget = self._budget(decodes) - len(decodes)
        chunks = self._fill(prefills, budget, admits=running.num_preemptions == preemptions)
        planned = [(sequence, 1) for sequence in decodes]
        planned += [(sequence, count) for sequence, count, _ in chunks]
        if running.num_preemptions != preemptions:
            # Whoever lost its blocks since it was chosen is left out, even if it has some again.
            epochs += [epoch for _, _, epoch in chunks]
            planned = [
                (sequence, count)
                for (sequence, count), epoch in zip(planned, epochs, strict=True)
                if sequence.epoch == epoch and sequence.state is State.RUNNING
            ]
        if not planned and not self._flights and self._requests:
            planned = self._unblock()
        if planned:
            running.pool.write_back(WRITE_BACK_BLOCKS)
        entries = tuple([self._entry(sequence, count) for sequence, count in planned])
        plan = StepPlan(entries, running.pool.take_copies(), self._take_resize())
        if plan.has_work:
            self._flights.append(([s for s, _ in planned], [s.epoch for s, _ in planned]))
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> list[Event]:
        """Takes in what a step brought. Plans are applied in the order in which they were made.

        Args:
            plan: One of `schedule`.
            result: What the executor made of it; an empty one for an empty plan.

        Returns:
            The news, in the order of the plan.
        """
        if not plan.has_work:
            return self._take_late()
        events: list[Event] = []
        tokens, logprobs, failed = result.tokens, result.logprobs, result.failed
        sequences, epochs = self._flights.popleft()
        offset = 0
        for position, entry in enumerate(plan.sequences):
            sequence = sequences[position]
            count = entry.num_samples
            start = offset
            offset += count
            if sequence.epoch != epochs[position] or sequence.state is not State.RUNNING:
                continue
            sequence.num_computed += len(entry.token_ids)
            if sequence.num_computed >= sequence.publish_at:
                self._running.publish(sequence)
            if not count:
                continue
            request = sequence.request
            sequence.pending -= 1
            if failed and position in failed:
                events += self._fail(request, failed[position])
                continue
            if count == 1 and request.sampling.width == 1:
                # Nearly all of them: without the calls.
                token, token_ids = tokens[start], sequence.token_ids
                if token not in request.stops and len(token_ids) + 1 < sequence.max_len:
                    token_ids.append(token)
                    events.append(Event(request.request_id, (token,), None, None, request.num_cached_tokens or 0))
                    continue
            sampled = logprobs[start:offset] if logprobs else ()
            take = partial(self._answers.take, sequence, tokens[start:offset], sampled)
            events += self._guard(request, take) or ()
            self._forget_if_done(request)
        if result.seconds > 0 and plan.sequences:
            context = sum(entry.num_computed for entry in plan.sequences if entry.num_samples)
            self._step_time.observe(plan.num_tokens, context, result.seconds)
        if self.config.check_invariants:
            self.check_invariants()
        return events + self._take_late()

    def resize(self, num_blocks: int) -> None:
        """Changes the size of the KV pool with the next step.

        Raises:
            ValueError: Out of bounds, or a request that is here could not end in so few.
        """
        if not 1 <= num_blocks <= self.max_num_blocks:
            raise ValueError(f"the KV pool can have 1 to {self.max_num_blocks} blocks here, not {num_blocks}")
        needs = {r.request_id: worst_case([r], self.block_size) for r in self._requests.values()}
        largest = max(needs, key=lambda request_id: needs[request_id], default=None)
        if largest is not None and needs[largest] > num_blocks:
            raise ValueError(
                f"a request that was accepted may need {needs[largest]} blocks; the KV pool cannot shrink to "
                f"{num_blocks} before it has ended"
            )
        self._num_blocks = num_blocks

    def stats(self) -> SchedulerStats:
        """The state now and the counts so far."""
        running, answers = self._running, self._answers
        pool = running.pool
        return SchedulerStats(
            num_running=len(running),
            num_waiting=len(self._new) + len(self._preempted),
            kv_cache_usage=1 - pool.num_free / pool.num_blocks,
            host_cache_usage=len(pool.host) / pool.host.num_blocks if pool.host else 0.0,
            num_blocks=pool.num_blocks,
            num_preemptions=running.num_preemptions,
            num_recomputed_tokens=running.num_recomputed,
            num_swapped_out=pool.num_swapped_out,
            num_swapped_in=pool.num_swapped_in,
            prefix_queries=running.prefix_queries,
            prefix_hits=running.prefix_hits,
            num_invariant_violations=self._num_violations,
            num_predictions=answers.num_predictions,
            predicted_tokens=answers.predicted_tokens,
            predicted_actual_tokens=answers.actual_tokens,
            num_within_p90=answers.num_within_p90,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert self._running.slots <= self.config.max_num_seqs, "more sequences run than max_num_seqs"
        waiting = [*self._new, *self._preempted]
        numbers = sorted(s.number for s in (*self._running, *waiting))
        owned = sorted(s.number for r in self._requests.values() for s in r.sequences)
        assert numbers == owned, "a sequence is lost, or stands in two queues"
        for sequence in waiting:
            assert sequence.state is State.WAITING, "what waits is not waiting"
            assert not sequence.block_table, "a waiting sequence holds blocks"
        for request in self._requests.values():
            assert request.sequences, "a request without sequences is still here"
        self._running.check_invariants()

    def _refuse_impossible(self, request: Request) -> None:
        prompt, sampling = len(request.prompt_token_ids), request.sampling
        assert sampling.max_tokens is not None, "the door resolves max_tokens"
        if prompt == 0:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        num_blocks = self.num_blocks if self._num_blocks is None else self._num_blocks
        limit = min(self.max_model_len, num_blocks * self.block_size)
        if prompt + sampling.max_tokens > limit:
            raise InvalidRequest(
                f"the prompt has {prompt} tokens and max_tokens is {sampling.max_tokens}, "
                f"together more than the {limit} that one request can have here",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if sampling.width > self.config.max_num_seqs:
            raise InvalidRequest(
                f"{sampling.width} sequences are asked for, more than the {self.config.max_num_seqs} that run at once "
                "here",
                param="n" if sampling.best_of is None else "best_of",
            )
        blocks = worst_case_blocks(prompt, sampling.max_tokens, sampling.width, self.block_size)
        if blocks > num_blocks:
            raise InvalidRequest(
                f"{sampling.width} sequences of {prompt} prompt tokens and {sampling.max_tokens} output tokens may need "
                f"{blocks} KV blocks; there are {num_blocks}",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def _key(self, sequence: Sequence, *, since: float | None = None) -> tuple[float, ...]:
        """The place in the policy's order, of a sequence that begins to wait."""
        request = sequence.request
        if self.config.policy == "priority":
            return (request.priority, self._arrivals)
        if self.config.policy != "shortest-first":
            return (self._arrivals,)
        generated = sequence.num_generated
        output = self._predictor.expected(generated, request.max_tokens) - generated
        work = (len(sequence.token_ids) + output * request.sampling.width) * self._prefill_seconds
        return ((request.arrival if since is None else since) + AGING * work, self._arrivals)

    def _budget(self, decodes: list[Sequence]) -> int:
        """Tokens of this step."""
        budget = self.config.max_num_batched_tokens
        if self.config.policy == "slo" and decodes and self._step_time.is_fitted:
            context = sum(sequence.num_planned for sequence in decodes)
            wanted = self._step_time.tokens_within(self.config.target_itl_ms / 1000, context)
            budget = min(budget, max(wanted, len(decodes) + _SLO_MIN_TOKENS))
        return budget

    def _fill(self, prefills: list[Sequence], budget: int, *, admits: bool) -> list[tuple[Sequence, int, int]]:
        """Chunks of running and waiting prefills, in the policy's order, within a budget of tokens.

        Returns:
            Sequences, their tokens in this step, and the epochs in which they got them.
        """
        chunks: list[tuple[Sequence, int, int]] = []
        prefills.sort(key=lambda sequence: sequence.key)
        held_back: list[tuple[WaitingQueue, Sequence]] = []
        forecast: Forecast | None = None
        position = 0
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
                if forecast is None and self.config.admission == "expected":
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

    def _head(self) -> tuple[WaitingQueue | None, Sequence | None]:
        """Who is to start next: a preempted one before a new one, within a priority."""
        preempted, new = self._preempted.peek(), self._new.peek()
        if preempted is None:
            return (self._new, new) if new is not None else (None, None)
        if new is not None and self.config.policy == "priority" and new.key[0] < preempted.key[0]:
            return self._new, new
        return self._preempted, preempted

    def _waits_for_sibling(self, sequence: Sequence) -> bool:
        """Whether another sequence of the request is computing what this one will find in the cache then."""
        return any(
            s.state is State.RUNNING and s.num_computed + 1 < len(s.token_ids)
            for s in sequence.request.sequences
            if s is not sequence
        )

    def _forecast(self) -> Forecast:
        pool = self._running.pool
        return Forecast(
            self._running,
            used=pool.num_blocks - pool.num_free,
            predictor=self._predictor,
            block_size=self.block_size,
            max_len=self.max_model_len,
        )

    def _start(self, queue: WaitingQueue, head: Sequence, forecast: Forecast | None) -> bool:
        """Admits the head of a queue if it may run; under `priority` less important ones may have to go for it."""
        running = self._running
        if not self._fits(head, forecast):
            if self.config.policy != "priority" or not self._can_displace(head):
                return False
            while not (running.slots + head.slots <= self.config.max_num_seqs and self._has_room(head)):
                worst = max(running, key=lambda sequence: sequence.key)
                self._preempt(worst.request.sequences if worst.request.beams else [worst])
        queue.remove(head)
        running.admit(head, running.lookup(head))
        request = head.request
        if request.predicted is None:
            request.predicted = (
                self._predictor.expected(0, request.max_tokens),
                self._predictor.quantile(0.9, request.max_tokens),
            )
        return True

    def _has_room(self, head: Sequence) -> bool:
        return self._running.has_room(head, self._running.lookup(head))

    def _fits(self, head: Sequence, forecast: Forecast | None) -> bool:
        running = self._running
        if running.slots + head.slots > self.config.max_num_seqs:
            return False
        found = running.lookup(head)
        if not running.has_room(head, found):
            return False
        if not len(running):
            return True  # alone it fits, or it would have been refused
        if self.config.admission == "never-evict":
            requests = {id(s.request): s.request for s in (*running, head)}.values()
            return worst_case(requests, self.block_size) <= self.num_blocks
        if forecast is None:
            return True
        shared = len(found) - running.pool.num_needed(found)
        return forecast.allows(head, shared, self.num_blocks)

    def _can_displace(self, head: Sequence) -> bool:
        """Whether there is room for a sequence without those that are less important."""
        less = [sequence for sequence in self._running if sequence.key[0] > head.key[0]]
        slots = self._running.slots - sum(sequence.slots for sequence in less)
        free = self._running.pool.num_free + self._running.num_unshared(less)
        # Blocks that are found in the cache would be needed too, so the whole length counts.
        needed = self._running.blocks_for(len(head.token_ids))
        return bool(less) and slots + head.slots <= self.config.max_num_seqs and needed <= free

    def _grow(self, sequence: Sequence) -> None:
        """Preempts until a running sequence can grow, be it itself that goes."""
        while sequence.state is State.RUNNING and not self._running.grow(sequence):
            self._preempt(self._victims())

    def _victims(self) -> list[Sequence]:
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
            importance = -victims[0].request.priority if self.config.policy == "priority" else 0
            freed = self._running.num_unshared(victims)
            # Who shares all frees nothing.
            return (importance, freed or float("inf"), -victims[0].key[-1])

        return min(candidates, key=loss)

    def _preempt(self, victims: Iterable[Sequence]) -> None:
        for victim in list(victims):
            if victim.state is State.RUNNING:
                self._running.preempt(victim)
                self._preempted.push(victim)

    def _end_a_time_slice(self, now: float) -> None:
        """Lets a shorter one that waits have the place of a running sequence whose time slice is over."""
        head = self._head()[1]
        if head is None or self._fits(head, self._forecast() if self.config.admission == "expected" else None):
            return
        # As if it arrived now, with what it still has to do.
        over = [
            (self._key(s, since=now), s)
            for s in self._running
            if s.request.sampling.width == 1 and s.num_generated - s.since >= self.config.time_slice_tokens
        ]
        key, longest = max(over, key=lambda entry: entry[0], default=((), None))
        if longest is not None and key > head.key:
            self._running.preempt(longest)
            longest.key = key
            self._new.push(longest)

    def _unblock(self) -> list[tuple[Sequence, int]]:
        """Nothing can run although there is work: beams that wait for their siblings hold the blocks. One goes on."""
        first = min((*self._running, *self._preempted), key=lambda sequence: sequence.key).request
        self._preempt(s for s in list(self._running) if s.request is not first or s.candidates is not None)
        chunks = self._fill([], self.config.max_num_batched_tokens, admits=True)
        assert chunks, "there is work, but the step is empty"
        return [(sequence, count) for sequence, count, _ in chunks]

    def _entry(self, sequence: Sequence, count: int) -> ScheduledSequence:
        start = sequence.num_planned
        end = start + count
        known = len(sequence.token_ids)
        feeds = end > known
        request = sequence.request
        samples = 0
        if end >= known:
            beams = request.beams
            samples = sequence.slots if beams is None else beams.num_candidates
            sequence.pending += 1
        sequence.num_planned = end
        return ScheduledSequence(
            request.request_id,
            sequence.number,
            (0,) if feeds else sequence.token_ids[start:end],
            start,
            sequence.table,
            samples,
            known - request.prompt_len + feeds,
            request.sampling,
            sequence.choice,
            feeds,
        )

    def _resize_if_asked(self) -> None:
        if self._num_blocks is None:
            return
        pool = self._running.pool
        while pool.num_blocks - pool.num_free > self._num_blocks:
            self._preempt(self._victims())
        self._running.resize(self._num_blocks)

    def _take_late(self) -> list[Event]:
        late, self._late = self._late, []
        return late

    def _take_resize(self) -> int | None:
        num_blocks, self._num_blocks = self._num_blocks, None
        return num_blocks

    def _fail(self, request: RequestState, error: str) -> list[Event]:
        """Ends a whole request with an error; returns its news."""
        self._drop(request)
        cached = request.num_cached_tokens or 0
        return [
            Event(request.request_id, (), FinishReason.ERROR, None, cached, error, choice)
            for choice in range(request.sampling.n)
            if choice not in request.ended | request.dropped
        ]

    def _guard(self, request: RequestState, act: Callable[[], T]) -> T | None:
        """Does something for one request. A fault of ours in it ends that request, not the engine."""
        try:
            return act()
        except AssertionError as error:
            if self.config.check_invariants:
                raise
            self._num_violations += 1
            _log.exception("request %s was ended", request.request_id)
            for sequence in list(request.sequences):
                self._new.remove(sequence)
                self._preempted.remove(sequence)
                self._running.expel(sequence)
            news = self._fail(request, f"the server lost track of this request ({error}); send it again")
            request.sequences.clear()
            self._forget_if_done(request)
            self._late += news
            return None

    def _drop(self, request: RequestState) -> None:
        for sequence in list(request.sequences):
            if sequence.state is not State.ENDED:
                self._end(sequence)
        self._forget_if_done(request)

    def _end(self, sequence: Sequence) -> None:
        self._new.remove(sequence)
        self._preempted.remove(sequence)
        self._answers.end(sequence, is_complete=False)

    def _forget_if_done(self, request: RequestState) -> None:
        if not request.sequences and self._requests.pop(request.request_id, None) is not None:
            self._num_beam_searches -= request.beams is not None
