"""Mutants: each breaks one line of the core the way a slip of the hand would; the oracle must notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from typing import Any

import pytest

from octavo_runtime.core import scheduler, sequence
from octavo_runtime.core.block_pool import BlockPool
from octavo_runtime.core.hashing import chain_hash, root_hash
from octavo_runtime.core.host_tier import HostTier
from octavo_runtime.core.running import RunningSet
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.core.sequence import Answer, Sequence
from octavo_runtime.core.testing import OracleExecutor, OracleRun
from octavo_runtime.domain import (
    BlockCopy,
    CopyKind,
    Event,
    Request,
    SamplingParams,
    ScheduledSequence,
    SchedulerConfig,
    StepPlan,
    StepResult,
)

Patch = Callable[[pytest.MonkeyPatch], None]

BLOCK_SIZE, NUM_BLOCKS, NUM_HOST_BLOCKS, VOCAB, EOS = 2, 12, 4, 5, (4,)


def tight_run(seed: int) -> None:
    """A load that uses everything in a pool that is too small; the scheduler does not check itself: the oracle must."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=10, admission="max-utilization", async_scheduling=bool(seed % 2)
        ),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=100,
        eos_token_ids=EOS,
        num_host_blocks=NUM_HOST_BLOCKS,
    )
    run = OracleRun(scheduler, OracleExecutor(scheduler, NUM_BLOCKS, VOCAB, NUM_HOST_BLOCKS), EOS)
    for number in range(10):
        kind: dict[str, Any] = rng.choice(
            [{}, {}, {"n": 2}, {"n": 1, "best_of": 2}, {"best_of": 2, "use_beam_search": True}]
        )
        run.add(
            Request(
                f"r{number}",
                tuple(rng.randrange(2) for _ in range(rng.randint(1, 7))),
                SamplingParams(
                    temperature=0, seed=0, max_tokens=rng.randint(1, 7), ignore_eos=rng.random() < 0.5, **kind
                ),
                cache_salt=rng.choice(["", "tenant"]),
            )
        )
        for _ in range(rng.randint(0, 3)):
            run.step()
    run.drain()
    run.check()


def hash_without_parent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sequence, "chain_hash", lambda _parent, tokens: chain_hash(b"", tokens))


def hash_without_salt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sequence, "root_hash", lambda *_salts: root_hash(""))


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
    patch.setattr(BlockPool, "_give_up", lambda *_: None)


def eviction_copies_nothing(patch: pytest.MonkeyPatch) -> None:
    # The host believes that it holds the block.
    def copy_out(self: BlockPool, _block: int, block_hash: bytes) -> None:
        assert self.host is not None
        self.host.put(block_hash)

    patch.setattr(BlockPool, "_copy_out", copy_out)


def acquire_allocates_before_it_shares(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.acquire

    def acquire(self: BlockPool, found: Tokens[int | None], hashes: Tokens[bytes]) -> list[int]:
        for block in found:  # the hits are the next to be given away
            if block is not None and self._refs[block] == 0:
                self._free.move_to_end(block, last=False)
        stolen = self.allocate(1) if self.num_free else []
        blocks = original(self, found, hashes) if not set(stolen) & set(found) else [b or 0 for b in found]
        self.release(stolen)
        return blocks

    patch.setattr(BlockPool, "acquire", acquire)


def host_gives_up_what_is_about_to_be_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostTier, "want", lambda *_: None)
    patch.setattr(HostTier, "unwant", lambda *_: None)
    patch.setattr(BlockPool, "publish", _publish_everything(BlockPool.publish))


def _publish_everything(original: Callable[..., None]) -> Callable[..., None]:
    def publish(self: BlockPool, block: int, block_hash: bytes) -> None:
        original(self, block, block_hash)
        if self.host is not None and block_hash in self.host:
            self.host.drop((block_hash,))
            self.host.put(block_hash)  # in another place than the copy

    return publish


def swap_in_reads_another_block(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.take_copies

    def take_copies(self: BlockPool) -> tuple[BlockCopy, ...]:
        return tuple(
            copy._replace(source=(copy.source + 1) % NUM_HOST_BLOCKS) if copy.kind is CopyKind.IN else copy
            for copy in original(self)
        )

    patch.setattr(BlockPool, "take_copies", take_copies)


def copies_in_another_order(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.take_copies
    patch.setattr(BlockPool, "take_copies", lambda self: tuple(reversed(original(self))))


def shared_block_is_written_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "own", lambda _self, block: block)


def copy_on_write_forgets_to_copy(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.take_copies
    patch.setattr(
        BlockPool, "take_copies", lambda self: tuple(c for c in original(self) if c.kind is not CopyKind.DEVICE)
    )


def fork_counts_no_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "share", lambda *_: None)


def fork_draws_the_same(patch: pytest.MonkeyPatch) -> None:
    original = Sequence.fork
    patch.setattr(Sequence, "fork", lambda self, number, _choice: original(self, number, 0))


def full_hit_computes_nothing(patch: pytest.MonkeyPatch) -> None:
    def lookup(self: RunningSet, waiting: Sequence) -> list[int | None]:
        usable = len(waiting.token_ids) // self._block_size
        return self.pool.lookup(waiting.hashes(usable, self._block_size))

    patch.setattr(RunningSet, "lookup", lookup)


def publish_before_written(patch: pytest.MonkeyPatch) -> None:
    original = RunningSet.admit

    def admit(self: RunningSet, waiting: Sequence, found: list[int | None]) -> None:
        original(self, waiting, found)
        full = len(waiting.token_ids) // self._block_size
        for block, block_hash in zip(waiting.block_table, waiting.hashes(full, self._block_size), strict=False):
            self.pool.publish(block, block_hash)

    patch.setattr(RunningSet, "admit", admit)


def preempted_keeps_its_progress(patch: pytest.MonkeyPatch) -> None:
    original = RunningSet.admit

    def admit(self: RunningSet, waiting: Sequence, found: list[int | None]) -> None:
        lost = waiting.lost
        original(self, waiting, found)
        waiting.num_computed = waiting.num_planned = max(waiting.num_planned, lost)

    patch.setattr(RunningSet, "admit", admit)


def preempted_takes_what_an_old_step_brings(patch: pytest.MonkeyPatch) -> None:
    original = RunningSet.preempt

    def preempt(self: RunningSet, victim: Sequence) -> None:
        pending = victim.pending
        original(self, victim)
        victim.epoch -= 1
        victim.pending = pending

    patch.setattr(RunningSet, "preempt", preempt)


def budget_is_ignored(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._entry
    patch.setattr(Scheduler, "_entry", lambda self, s, _count: original(self, s, s.remaining))


def one_sequence_too_many(patch: pytest.MonkeyPatch) -> None:
    original = RunningSet.admit

    def admit(self: RunningSet, waiting: Sequence, found: list[int | None]) -> None:
        original(self, waiting, found)
        self.slots -= 1

    patch.setattr(RunningSet, "admit", admit)


def block_is_not_grown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningSet, "grow", lambda *_: True)


def off_by_one_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunningSet, "blocks_for", lambda self, count: count // self._block_size)


def sampled_one_chunk_early(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._entry
    patch.setattr(Scheduler, "_entry", lambda self, s, count: original(self, s, count)._replace(num_samples=1))


def feeds_a_token_that_is_known(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._entry

    def entry(self: Scheduler, planned: Sequence, count: int) -> ScheduledSequence:
        made = original(self, planned, count)
        return made._replace(feeds=True, token_ids=(0,)) if count == 1 and made.num_generated else made

    patch.setattr(Scheduler, "_entry", entry)


def progress_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.apply

    def apply(self: Scheduler, plan: StepPlan, result: StepResult) -> list[Event]:
        events = original(self, plan, result)
        for each in self._running:
            if each.num_generated == 0:
                each.num_computed = each.num_planned = 0
        return events

    patch.setattr(Scheduler, "apply", apply)


def eos_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    original = scheduler.Scheduler.__init__

    def init(self: Scheduler, config: SchedulerConfig, **sizes: Any) -> None:
        original(self, config, **{**sizes, "eos_token_ids": ()})

    patch.setattr(scheduler.Scheduler, "__init__", init)


def worst_answers_win(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("octavo_runtime.core.answers.Answer", lambda score, *rest: Answer(-score, *rest))


def beam_keeps_its_parents_tokens(patch: pytest.MonkeyPatch) -> None:
    original = RunningSet.fork

    def fork(self: RunningSet, parent: Sequence, number: int, choice: int) -> Sequence:
        child = original(self, parent, number, choice)
        if parent.request.beams is not None:
            child.token_ids = next(iter(self)).token_ids[:]
        return child

    patch.setattr(RunningSet, "fork", fork)


MUTANTS: list[Patch] = [
    hash_without_parent,
    hash_without_salt,
    allocate_a_block_in_use,
    release_forgets_the_last_block,
    release_frees_shared_blocks,
    eviction_keeps_the_hash,
    eviction_copies_nothing,
    acquire_allocates_before_it_shares,
    host_gives_up_what_is_about_to_be_read,
    swap_in_reads_another_block,
    copies_in_another_order,
    shared_block_is_written_in_place,
    copy_on_write_forgets_to_copy,
    fork_counts_no_owner,
    fork_draws_the_same,
    full_hit_computes_nothing,
    publish_before_written,
    preempted_keeps_its_progress,
    preempted_takes_what_an_old_step_brings,
    budget_is_ignored,
    one_sequence_too_many,
    block_is_not_grown,
    off_by_one_block,
    sampled_one_chunk_early,
    feeds_a_token_that_is_known,
    progress_is_lost,
    eos_is_overlooked,
    worst_answers_win,
    beam_keeps_its_parents_tokens,
]


def runs(seeds: Iterable[int]) -> None:
    for seed in seeds:
        tight_run(seed)


def test_oracle_without_a_mutant_finds_nothing() -> None:
    runs(range(60))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda patch: patch.__name__)
def test_oracle_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fault may only be seen as one that ended a request.
    monkeypatch.setattr(Scheduler, "_guard", lambda _self, _request, act: act())
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        runs(range(200))
