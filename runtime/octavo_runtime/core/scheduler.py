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
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from functools import partial
from typing import TypeVar

from octavo_runtime.core.admission import worst_case
from octavo_runtime.core.answers import Answers
from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.limits import refuse_impossible
from octavo_runtime.core.policy import Policy
from octavo_runtime.core.running import RunningSet
from octavo_runtime.core.sequence import RequestState, Sequence, State
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

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PLACEHOLDER = (0,)

WRITE_BACK_BLOCKS = 16
"""Cached blocks at the front of the free queue that are kept copied to the host ahead of need."""


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
        self._requests: dict[str, RequestState] = {}
        self._policy = Policy(
            config,
            self._running,
            self._predictor,
            block_size=block_size,
            max_model_len=max_model_len,
            prefill_seconds_per_token=prefill_seconds_per_token,
            guard=self._guard,
        )
        # For each plan that was not applied yet: its sequences, and the epochs in which they were planned.
        self._flights: deque[tuple[list[Sequence], list[int]]] = deque()
        self._late: list[Event] = []
        self._num_blocks: int | None = None
        self._num_violations = 0
        self._num_beam_searches = 0
        self._num_wide = 0

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
        config = self.config
        refuse_impossible(
            request,
            # Where the pool is about to shrink, what counts is what it will be.
            num_blocks=self.num_blocks if self._num_blocks is None else self._num_blocks,
            block_size=self.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.max_model_len,
        )
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
            is_plain=request.sampling.width == 1,
        )
        state.sequences.append(prompt)
        self._requests[request.request_id] = state
        self._num_beam_searches += state.beams is not None
        self._num_wide += request.sampling.width > 1
        self._policy.add(prompt)

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
            self._policy.end_a_time_slice(now)
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
                self._guard(sequence.request, partial(self._policy.grow, sequence))

        budget = self._policy.budget(decodes) - len(decodes)
        chunks = self._policy.fill(prefills, budget, now, admits=running.num_preemptions == preemptions)
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
            chunks = self._policy.unblock(self.config.max_num_batched_tokens, now)
            assert chunks, "there is work, but the step is empty"
            planned = [(sequence, count) for sequence, count, _ in chunks]
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
            if sequence.is_plain:
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
        if result.seconds > 0 and plan.sequences and self.config.policy == "slo":
            context = sum(entry.num_computed for entry in plan.sequences if entry.num_samples)
            self._policy.step_time.observe(plan.num_tokens, context, result.seconds)
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
            num_waiting=len(self._policy),
            # Where each has one sequence, as nearly always, without counting.
            num_running_requests=len({id(each.request) for each in running}) if self._num_wide else len(running),
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
        waiting = list(self._policy)
        numbers = sorted(s.number for s in (*self._running, *waiting))
        owned = sorted(s.number for r in self._requests.values() for s in r.sequences)
        assert numbers == owned, "a sequence is lost, or stands in two queues"
        for sequence in waiting:
            assert sequence.state is State.WAITING, "what waits is not waiting"
            assert not sequence.block_table, "a waiting sequence holds blocks"
        for request in self._requests.values():
            assert request.sequences, "a request without sequences is still here"
        self._running.check_invariants()

    def _entry(self, sequence: Sequence, count: int) -> ScheduledSequence:
        start = sequence.num_planned
        end = start + count
        token_ids = sequence.token_ids
        known = len(token_ids)
        request = sequence.request
        feeds = end > known
        tokens: Tokens[int] = _PLACEHOLDER if feeds else (token_ids[start],) if count == 1 else token_ids[start:end]
        samples = 0
        if end >= known:
            samples = sequence.slots if request.beams is None else request.beams.num_candidates
            sequence.pending += 1
        sequence.num_planned = end
        return ScheduledSequence(
            request.request_id,
            sequence.number,
            tokens,
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
            self._policy.preempt(self._policy.victims())
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
                self._policy.remove(sequence)
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
        self._policy.remove(sequence)
        self._answers.end(sequence, is_complete=False)

    def _forget_if_done(self, request: RequestState) -> None:
        if not request.sequences and self._requests.pop(request.request_id, None) is not None:
            self._num_beam_searches -= request.beams is not None
            self._num_wide -= request.sampling.width > 1
