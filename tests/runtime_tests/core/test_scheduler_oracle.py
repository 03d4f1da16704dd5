"""The scheduler against the oracle: random loads, random aborts and failures, and mutants that must be caught."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_runtime.core import block_pool, scheduler, sequence
from octavo_runtime.core.block_pool import BlockPool
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.core.sequence import Sequence
from octavo_runtime.core.testing import OracleExecutor, expected_output
from octavo_runtime.domain import (
    Event,
    FinishReason,
    Request,
    SamplingParams,
    ScheduledSequence,
    StepPlan,
    StepResult,
)

VOCAB = 5  # small, so that random prompts share prefixes and the end of sequence comes up
EOS = (4,)


@dataclass(frozen=True)
class Setting:
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool


@dataclass
class Run:
    """A scheduler with its oracle, and what each request got."""

    setting: Setting
    outputs: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, FinishReason] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    preempted: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            num_blocks=self.setting.num_blocks,
            block_size=self.setting.block_size,
            max_num_seqs=self.setting.max_num_seqs,
            max_num_batched_tokens=self.setting.max_num_batched_tokens,
            max_model_len=10_000,
            enable_prefix_caching=self.setting.enable_prefix_caching,
            eos_token_ids=EOS,
        )
        self.oracle = OracleExecutor(self.scheduler, self.setting.num_blocks, VOCAB)

    @property
    def room(self) -> int:
        return self.setting.num_blocks * self.setting.block_size

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.oracle.add(request)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        if request_id not in self.reasons:
            self.gone.add(request_id)

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        result = self.oracle.execute(plan)
        for event in self.scheduler.apply(plan, result):
            self.take(event)
        self.scheduler.check_invariants()
        return plan

    def take(self, event: Event) -> None:
        assert event.request_id not in self.reasons, "news after the end"
        assert event.request_id not in self.gone, "news after the abort"
        self.outputs[event.request_id] += event.token_ids
        if event.finish_reason is not None:
            self.reasons[event.request_id] = event.finish_reason

    def drain(self) -> None:
        tokens = sum(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in self.requests.values())
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            # Each step advances the sequence admitted first: even with everything else preempted again and
            # again, a request needs no more steps than it has tokens.
            assert steps <= tokens + 1, "the scheduler makes no progress"

    def check_outputs(self) -> None:
        for request_id, request in self.requests.items():
            output, reason = expected_output(request, VOCAB, EOS)
            if request_id in self.gone or self.reasons[request_id] is FinishReason.ERROR:
                assert self.outputs[request_id] == output[: len(self.outputs[request_id])]
            else:
                assert (self.outputs[request_id], self.reasons[request_id]) == (output, reason)
        assert self.scheduler.stats().num_running == 0
        assert self.scheduler.stats().kv_cache_usage == 0, "blocks are leaked"


settings_of_a_run = st.builds(
    lambda block_size, blocks, seqs, extra, cache: Setting(block_size, blocks, seqs, seqs + extra, cache),
    st.sampled_from([1, 2, 4]),
    st.integers(2, 14),
    st.integers(1, 6),
    st.integers(0, 12),
    st.booleans(),
)


def random_request(rng: random.Random, number: int, room: int) -> Request:
    max_tokens = rng.randint(1, max(1, min(12, room - 1)))
    length = rng.randint(1, room - max_tokens)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(rng.randrange(2) for _ in range(length)),
        sampling=SamplingParams(
            temperature=0,
            seed=0,
            max_tokens=max_tokens,
            ignore_eos=rng.random() < 0.5,
            stop_token_ids=(3,) if rng.random() < 0.2 else (),
        ),
        cache_salt=rng.choice(["", "", "tenant"]),
    )


def random_run(setting: Setting, seed: int, *, faults: bool = True) -> Run:
    """Requests arrive, are aborted and fail while steps go on; then everything is drained and compared."""
    rng = random.Random(seed)
    run = Run(setting)
    for number in range(rng.randint(1, 14)):
        run.add(random_request(rng, number, run.room))
        for _ in range(rng.randint(0, 3)):
            if run.scheduler.has_work:
                run.step()
        if faults and rng.random() < 0.15:
            run.abort(rng.choice(list(run.requests)))
        if faults and rng.random() < 0.1:
            run.oracle.fail_next.add(rng.choice(list(run.requests)))
    run.drain()
    run.check_outputs()
    return run


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setting=settings_of_a_run, seed=st.integers(0, 2**32))
def test_schedule_random_load_gives_each_request_its_own_tokens(setting: Setting, seed: int) -> None:
    random_run(setting, seed)


def random_runs(setting: Setting, seeds: Iterable[int]) -> list[Run]:
    return [random_run(setting, seed) for seed in seeds]


TIGHT = Setting(block_size=2, num_blocks=8, max_num_seqs=4, max_num_batched_tokens=10, enable_prefix_caching=True)


def test_random_run_tight_pool_exercises_preemption_and_cache() -> None:
    # Otherwise the property above might hold for want of the cases that hurt.
    runs = random_runs(TIGHT, range(30))
    assert sum(run.scheduler.stats().num_preemptions for run in runs) > 20
    assert sum(run.scheduler.stats().prefix_hits for run in runs) > 50
    assert any(FinishReason.ERROR in run.reasons.values() for run in runs)
    assert any(run.gone for run in runs)


# Mutants: each breaks one line of the core the way a slip of the hand would; the oracle must notice.

Patch = Callable[[pytest.MonkeyPatch], None]


def hash_without_parent(patch: pytest.MonkeyPatch) -> None:
    original = block_pool.chain_hash
    patch.setattr(sequence, "chain_hash", lambda _parent, tokens: original(b"", tokens))


def hash_without_salt(patch: pytest.MonkeyPatch) -> None:
    original = block_pool.root_hash
    patch.setattr(sequence, "root_hash", lambda _salt: original(""))


def allocate_a_block_in_use(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.allocate

    def allocate(self: BlockPool, count: int) -> list[int]:
        blocks = original(self, count)
        in_use = [block for block, refs in enumerate(self._refs) if refs and block not in blocks]
        return [*in_use[:1], *blocks[1:]] if in_use and blocks else blocks

    patch.setattr(BlockPool, "allocate", allocate)


def release_forgets_the_last_block(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.release
    patch.setattr(BlockPool, "release", lambda self, table: original(self, table[:-1]))


def release_frees_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.release

    def release(self: BlockPool, table: list[int]) -> None:
        for block in table:
            self._refs[block] = 1
        original(self, table)

    patch.setattr(BlockPool, "release", release)


def eviction_keeps_the_hash(patch: pytest.MonkeyPatch) -> None:
    def allocate(self: BlockPool, count: int) -> list[int]:
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    patch.setattr(BlockPool, "allocate", allocate)


def share_after_allocate(patch: pytest.MonkeyPatch) -> None:
    # The lookup's hits are given away by the allocation that follows it.
    original = BlockPool.lookup

    def lookup(self: BlockPool, hashes: list[bytes]) -> list[int]:
        hits = original(self, hashes)
        for block in hits:
            if self._refs[block] == 0:
                self._free.move_to_end(block, last=False)
        return hits

    def admit(self: Scheduler, waiting: Sequence) -> bool:
        usable = (len(waiting.token_ids) - 1) // self.block_size
        cached = self._pool.lookup(waiting.hashes(usable, self.block_size)) if self.enable_prefix_caching else []
        missing = self._blocks_for(len(waiting.token_ids)) - len(cached)
        if missing + self._pool.num_idle(cached) > self._pool.num_free:
            return False
        blank = self._pool.allocate(missing)
        self._pool.share(block for block in cached if block not in blank)
        waiting.block_table = cached + blank
        waiting.num_computed = len(cached) * self.block_size
        waiting.num_published = len(cached)
        return True

    patch.setattr(BlockPool, "lookup", lookup)
    patch.setattr(Scheduler, "_admit", admit)


def full_hit_computes_nothing(patch: pytest.MonkeyPatch) -> None:
    original = Sequence.hashes
    patch.setattr(Sequence, "hashes", lambda self, _count, size: original(self, len(self.token_ids) // size, size))


def publish_before_written(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._admit

    def admit(self: Scheduler, waiting: Sequence) -> bool:
        admitted = original(self, waiting)
        if admitted and self.enable_prefix_caching:
            full = len(waiting.token_ids) // self.block_size
            for block, block_hash in zip(waiting.block_table, waiting.hashes(full, self.block_size), strict=False):
                self._pool.publish(block, block_hash)
        return admitted

    patch.setattr(Scheduler, "_admit", admit)


def preempted_keeps_its_progress(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._preempt

    def preempt(self: Scheduler, victim: Sequence) -> None:
        computed = victim.num_computed
        original(self, victim)
        victim.num_computed = computed

    patch.setattr(Scheduler, "_preempt", preempt)


def budget_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._plan
    patch.setattr(Scheduler, "_plan", lambda self, s, _count: original(self, s, s.remaining))


def one_sequence_too_many(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.schedule

    def schedule(self: Scheduler) -> StepPlan:
        self.max_num_seqs += 1
        try:
            return original(self)
        finally:
            self.max_num_seqs -= 1

    patch.setattr(Scheduler, "schedule", schedule)


def block_is_not_grown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_grow", lambda *_: True)


def off_by_one_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_blocks_for", lambda self, count: count // self.block_size)


def sampled_one_chunk_early(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._plan

    def plan(self: Scheduler, planned: Sequence, count: int) -> ScheduledSequence:
        return replace(original(self, planned, count), samples=True)

    patch.setattr(Scheduler, "_plan", plan)


def progress_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.apply

    def apply(self: Scheduler, plan: StepPlan, result: StepResult) -> list[Event]:
        events = original(self, plan, result)
        for running in self._running:
            if running.num_generated == 0:
                running.num_computed = 0
        return events

    patch.setattr(Scheduler, "apply", apply)


def eos_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.__init__

    def init(self: Scheduler, **settings: object) -> None:
        original(self, **{**settings, "eos_token_ids": ()})  # type: ignore[arg-type]  # settings are __init__'s own

    patch.setattr(scheduler.Scheduler, "__init__", init)


MUTANTS: list[Patch] = [
    hash_without_parent,
    hash_without_salt,
    allocate_a_block_in_use,
    release_forgets_the_last_block,
    release_frees_shared_blocks,
    eviction_keeps_the_hash,
    share_after_allocate,
    full_hit_computes_nothing,
    publish_before_written,
    preempted_keeps_its_progress,
    budget_is_ignored,
    one_sequence_too_many,
    block_is_not_grown,
    off_by_one_block,
    sampled_one_chunk_early,
    progress_is_lost,
    eos_is_overlooked,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda patch: patch.__name__)
def test_oracle_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        random_runs(TIGHT, range(200))
