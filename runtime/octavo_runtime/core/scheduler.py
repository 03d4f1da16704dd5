"""Continuous batching with chunked prefill on one token budget: which tokens the next step computes.

A request is *waiting* (no blocks) or *running* (its blocks cover all its tokens). Each step

    1. decodes first: every running sequence with one token left, so that no prompt delays an answer under way;
    2. then running prefills, then waiting requests in order of arrival, each with as long a chunk as the budget
       leaves; a waiting request is admitted when blocks for all its tokens are free, found in the cache or blank.

When a decode needs a block and none is free, the sequence admitted last is preempted: its blocks go back (those
published stay as cache), it moves to the front of the waiting queue and is recomputed later, mostly from the cache.
Nothing is admitted in a step that preempted. The pool holds at least one longest request (`add` refuses what could
never fit), so the sequence admitted first always advances: no deadlock, no livelock.

Invariants, checked by `check_invariants` and by the oracle in the tests:

    - a step has at most max_num_batched_tokens tokens and max_num_seqs sequences;
    - every scheduled sequence has at least one token, and blocks for all of them;
    - a block that is written in a step belongs to one sequence, and is not published;
    - reference counts equal the block tables; every block is in use or free;
    - a request ends with exactly one final event, or is aborted.

`schedule` and `apply` alternate; `add` and `abort` may come between them.
"""

from __future__ import annotations

from collections import deque

from octavo_runtime.core.block_pool import BlockPool
from octavo_runtime.core.sequence import Sequence
from octavo_runtime.domain import (
    Event,
    FinishReason,
    Request,
    ScheduledSequence,
    SchedulerStats,
    StepPlan,
    StepResult,
)
from octavo_runtime.errors import InvalidRequest

__all__ = ["Scheduler"]


class Scheduler:
    """The state of all requests of one engine.

    Args:
        num_blocks: Blocks in the KV pool.
        block_size: Tokens per block.
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most tokens in a step; at least max_num_seqs, so that all can decode together.
        max_model_len: Longest prompt plus output.
        enable_prefix_caching: Whether finished blocks are found again by later requests.
        eos_token_ids: Tokens that end a sequence, unless its request ignores them.

    Raises:
        ValueError: The settings contradict each other.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_prefix_caching: bool = True,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "so that all running sequences can decode in one step"
            )
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_request_len = min(max_model_len, num_blocks * block_size)
        self.enable_prefix_caching = enable_prefix_caching
        self._eos = frozenset(eos_token_ids)
        self._pool = BlockPool(num_blocks)
        self._sequences: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._num_preemptions = 0
        self._prefix_queries = 0
        self._prefix_hits = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    def add(self, request: Request) -> None:
        """Puts a request at the end of the waiting queue.

        Raises:
            InvalidRequest: It has no prompt, or could never fit the pool or the model's length.
        """
        assert request.request_id not in self._sequences, f"request id {request.request_id} is in use"
        assert request.sampling.max_tokens is not None, "the door resolves max_tokens"
        prompt = len(request.prompt_token_ids)
        if prompt == 0:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if prompt + request.sampling.max_tokens > self.max_request_len:
            raise InvalidRequest(
                f"the prompt has {prompt} tokens and max_tokens is {request.sampling.max_tokens}, "
                f"together more than the {self.max_request_len} that one request can have here",
                param="max_tokens",
                code="context_length_exceeded",
            )
        sequence = Sequence.of(request)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its blocks; unknown ids are of requests that ended meanwhile."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._forget(sequence)

    def schedule(self) -> StepPlan:
        """Decides the next step and takes the blocks for it; empty only when there is no work."""
        planned: list[ScheduledSequence] = []
        budget = self.max_num_batched_tokens
        preemptions = self._num_preemptions

        for sequence in [s for s in self._running if s.remaining == 1]:
            if sequence.block_table and self._grow(sequence):
                planned.append(self._plan(sequence, 1))
                budget -= 1

        for sequence in self._running:
            if sequence.remaining > 1 and budget > 0:
                planned.append(self._plan(sequence, min(sequence.remaining, budget)))
                budget -= len(planned[-1].token_ids)

        if self._num_preemptions == preemptions:
            while self._waiting and budget > 0 and len(self._running) < self.max_num_seqs:
                sequence = self._waiting[0]
                if not self._admit(sequence):
                    break
                self._waiting.popleft()
                self._running.append(sequence)
                planned.append(self._plan(sequence, min(sequence.remaining, budget)))
                budget -= len(planned[-1].token_ids)

        assert planned or not self._sequences, "there is work, but the step is empty"
        return StepPlan(sequences=tuple(planned))

    def apply(self, plan: StepPlan, result: StepResult) -> list[Event]:
        """Takes in what the step brought; returns the news, in the order of the plan."""
        events = []
        for scheduled in plan.sequences:
            sequence = self._sequences.get(scheduled.request_id)
            if sequence is None:  # aborted while the step ran
                continue
            sequence.num_computed += len(scheduled.token_ids)
            self._publish(sequence)
            if scheduled.samples:
                event = self._advance(sequence, result)
                events.append(event)
                if event.finish_reason is not None:
                    self._forget(sequence)
        return events

    def stats(self) -> SchedulerStats:
        """The state now and the counts so far."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_cache_usage=1 - self._pool.num_free / self._pool.num_blocks,
            num_preemptions=self._num_preemptions,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert len(self._running) <= self.max_num_seqs, "more sequences run than max_num_seqs"
        ids = [s.request.request_id for s in (*self._running, *self._waiting)]
        assert sorted(ids) == sorted(self._sequences), "a request is lost, or stands in two queues"
        for sequence in self._waiting:
            assert not sequence.block_table, "a waiting request holds blocks"
            assert sequence.num_computed == 0, "a waiting request claims computed tokens"
        for sequence in self._running:
            assert len(sequence.block_table) * self.block_size >= sequence.num_computed, "computed tokens lack blocks"
            assert sequence.remaining >= 1, "a running sequence has nothing to compute"
        self._pool.check_invariants(s.block_table for s in self._running)

    def _plan(self, sequence: Sequence, count: int) -> ScheduledSequence:
        start, end = sequence.num_computed, sequence.num_computed + count
        return ScheduledSequence(
            request_id=sequence.request.request_id,
            token_ids=tuple(sequence.token_ids[start:end]),
            num_computed=start,
            block_table=tuple(sequence.block_table[: self._blocks_for(end)]),
            samples=end == len(sequence.token_ids),
            num_generated=sequence.num_generated,
            sampling=sequence.request.sampling,
        )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _admit(self, sequence: Sequence) -> bool:
        """Gives a waiting sequence blocks for all its tokens, cached ones first; False when too few are free."""
        cached: list[int] = []
        if self.enable_prefix_caching:
            # The last token is always computed, since its logits are wanted: a full hit stops one token short.
            usable = (len(sequence.token_ids) - 1) // self.block_size
            cached = self._pool.lookup(sequence.hashes(usable, self.block_size))
        missing = self._blocks_for(len(sequence.token_ids)) - len(cached)
        if missing + self._pool.num_idle(cached) > self._pool.num_free:
            return False
        self._pool.share(cached)  # before allocating, which might give them up
        sequence.block_table = cached + self._pool.allocate(missing)
        sequence.num_computed = len(cached) * self.block_size
        sequence.num_published = len(cached)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
            if self.enable_prefix_caching:
                self._prefix_queries += len(sequence.token_ids)
                self._prefix_hits += sequence.num_computed
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Makes a running sequence's blocks cover its last token; False when it had to be preempted itself."""
        while len(sequence.block_table) < self._blocks_for(len(sequence.token_ids)):
            if self._pool.num_free:
                sequence.block_table += self._pool.allocate(1)
            else:
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._pool.release(victim.block_table)
        victim.block_table = []
        victim.num_computed = 0
        victim.num_published = 0
        self._waiting.appendleft(victim)
        self._num_preemptions += 1

    def _publish(self, sequence: Sequence) -> None:
        """Lets the cache find the blocks that this step filled: only now is their KV there."""
        if not self.enable_prefix_caching:
            return
        full = sequence.num_computed // self.block_size
        hashes = sequence.hashes(full, self.block_size)
        for index in range(sequence.num_published, full):
            self._pool.publish(sequence.block_table[index], hashes[index])
        sequence.num_published = full

    def _advance(self, sequence: Sequence, result: StepResult) -> Event:
        """Appends the sampled token, or ends the request that has none."""
        request = sequence.request
        cached = sequence.num_cached_tokens or 0
        error = result.failed.get(request.request_id)
        if error is not None:
            return Event(request.request_id, (), FinishReason.ERROR, num_cached_tokens=cached, error=error)
        token = result.sampled[request.request_id]
        sequence.token_ids.append(token)
        sampling = request.sampling
        reason, stop_token = None, None
        if token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos):
            reason, stop_token = FinishReason.STOP, token
        elif sequence.num_generated == sampling.max_tokens:
            reason = FinishReason.LENGTH
        return Event(request.request_id, (token,), reason, stop_token, cached)

    def _forget(self, sequence: Sequence) -> None:
        if sequence.block_table:
            self._pool.release(sequence.block_table)
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        del self._sequences[sequence.request.request_id]
