"""The sequences that hold blocks: how they get them, share them, and lose them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo_runtime.core.block_pool import BlockPool
from octavo_runtime.core.host_tier import HostTier
from octavo_runtime.core.sequence import Sequence, State

__all__ = ["RunningSet"]


class RunningSet:
    """Sequences with blocks, in the order of their admission.

    Args:
        num_blocks: Blocks on the device.
        num_host_blocks: Blocks on the host; 0: no second tier.
        block_size: Tokens per block.
        enable_prefix_caching: Whether requests share blocks with other requests.

    Attributes:
        pool: The blocks.
        slots: Of `max_num_seqs`, how many are taken.
        num_preemptions: Sequences that lost their blocks, so far.
        num_recomputed: Tokens that had to be computed again, so far.
        prefix_queries: Prompt tokens looked up, so far.
        prefix_hits: Of them found, so far.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks, HostTier(num_host_blocks) if num_host_blocks else None)
        self.slots = 0
        self.num_preemptions = 0
        self.num_recomputed = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._block_size = block_size
        self._enable_prefix_caching = enable_prefix_caching
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def lookup(self, sequence: Sequence) -> list[int | None]:
        """What the cache holds of a waiting sequence; see `BlockPool.lookup`."""
        # The last token is always computed, since its logits are wanted: a full hit stops one token short.
        usable = (len(sequence.token_ids) - 1) // self._block_size
        return self.pool.lookup(sequence.hashes(usable, self._block_size))

    def has_room(self, sequence: Sequence, found: list[int | None]) -> bool:
        """Whether blocks for all tokens of a waiting sequence are free, beside those found in the cache."""
        missing = self.blocks_for(len(sequence.token_ids)) - len(found)
        return missing + self.pool.num_needed(found) <= self.pool.num_free

    def admit(self, sequence: Sequence, found: list[int | None]) -> None:
        """Gives a waiting sequence blocks for all its tokens; the caller has checked `has_room`."""
        assert sequence.state is State.WAITING
        count = self.blocks_for(len(sequence.token_ids))
        blocks = self.pool.acquire(found, sequence.hashes(len(found), self._block_size))
        sequence.block_table = blocks + self.pool.allocate(count - len(found))
        self._changed(sequence)
        cached = len(found) * self._block_size
        sequence.num_computed = sequence.num_planned = cached
        self._published(sequence, len(found))
        sequence.may_share_tail = False
        sequence.since = sequence.num_generated
        sequence.state = State.RUNNING
        self._sequences[sequence.number] = sequence
        self.slots += sequence.slots
        self._no_longer_wants(sequence)
        self.num_recomputed += max(0, sequence.lost - cached)
        sequence.lost = 0
        if sequence.request.num_cached_tokens is None:
            sequence.request.num_cached_tokens = cached
            if self._enable_prefix_caching:
                self.prefix_queries += len(sequence.token_ids)
                self.prefix_hits += cached

    def grow(self, sequence: Sequence) -> bool:
        """Gives a running sequence a writable place for its next token; False when no block is free."""
        index = sequence.num_planned // self._block_size
        if index == len(sequence.block_table):
            if not self.pool.num_free:
                return False
            sequence.block_table += self.pool.allocate(1)
            self._changed(sequence)
        elif sequence.may_share_tail:
            block = sequence.block_table[index]
            if self.pool.refs(block) > 1 and not self.pool.num_free:
                return False
            sequence.block_table[index] = self.pool.own(block)
            self._changed(sequence)
        sequence.may_share_tail = False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's blocks; those that were published stay as cache, and on the host if they must go."""
        self.num_preemptions += 1
        sequence.lost = sequence.num_computed
        if self.pool.host is not None:
            sequence.wanted = sequence.hashes(sequence.num_published, self._block_size)
            self.pool.host.want(sequence.wanted)
        self._release(sequence)
        sequence.state = State.WAITING
        sequence.epoch += 1
        sequence.num_computed = sequence.num_planned = sequence.num_published = 0
        sequence.pending = 0
        sequence.candidates = None

    def end(self, sequence: Sequence) -> None:
        """Frees a sequence for good; it may be running or waiting."""
        if not self._enable_prefix_caching:
            sequence.request.spent += sequence.hashes(sequence.num_published, self._block_size)
        if sequence.state is State.RUNNING:
            self._release(sequence)
        self._no_longer_wants(sequence)
        sequence.state = State.ENDED
        sequence.request.sequences.remove(sequence)
        if not sequence.request.sequences:
            self.pool.forget(sequence.request.spent)

    def expel(self, sequence: Sequence) -> None:
        """Ends a sequence whose books are not to be trusted, and counts anew what the others hold."""
        self._sequences.pop(sequence.number, None)
        self._no_longer_wants(sequence)
        sequence.state = State.ENDED
        self.slots = sum(each.slots for each in self)
        self.pool.recount(each.block_table for each in self)

    def fork(self, parent: Sequence, number: int, choice: int) -> Sequence:
        """Another running sequence that shares all blocks of a running one."""
        child = parent.fork(number, choice)
        parent.may_share_tail = True
        self.pool.share(child.block_table)
        self._sequences[number] = child
        self.slots += child.slots
        child.request.sequences.append(child)
        return child

    def free_slots(self, sequence: Sequence) -> None:
        """Gives back the slots that a running prompt kept for what it forks into."""
        self.slots -= sequence.slots - 1
        sequence.slots = 1
        sequence.awaits_results = sequence.request.beams is not None

    def publish(self, sequence: Sequence) -> None:
        """Lets the cache find the blocks that have been filled: only now is their KV there."""
        full = sequence.num_computed // self._block_size
        hashes = sequence.hashes(full, self._block_size)
        for index in range(sequence.num_published, full):
            self.pool.publish(sequence.block_table[index], hashes[index])
        self._published(sequence, full)

    def resize(self, num_blocks: int) -> None:
        """Changes the number of blocks; no fewer than are in use."""
        self.pool.resize(num_blocks, [sequence.block_table for sequence in self])
        for sequence in self:
            self._changed(sequence)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self._block_size)

    def num_unshared(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that would be free without these."""
        counts: dict[int, int] = {}
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] = counts.get(block, 0) + 1
        return sum(self.pool.refs(block) == count for block, count in counts.items())

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        for sequence in self:
            assert sequence.state is State.RUNNING, "a sequence without blocks counts as running"
            assert sequence.num_computed <= sequence.num_planned, "more is computed than was planned"
            assert self.blocks_for(sequence.num_planned) <= len(sequence.block_table), "planned tokens lack blocks"
            assert sequence.table == tuple(sequence.block_table), "a plan would show an old block table"
        assert self.slots == sum(sequence.slots for sequence in self), "slots are miscounted"
        self.pool.check_invariants(sequence.block_table for sequence in self)

    def _changed(self, sequence: Sequence) -> None:
        sequence.table = tuple(sequence.block_table)
        sequence.capacity = len(sequence.table) * self._block_size

    def _published(self, sequence: Sequence, count: int) -> None:
        sequence.num_published = count
        sequence.publish_at = (count + 1) * self._block_size

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.table = ()
        del self._sequences[sequence.number]
        self.slots -= sequence.slots

    def _no_longer_wants(self, sequence: Sequence) -> None:
        if sequence.wanted and self.pool.host is not None:
            self.pool.host.unwant(sequence.wanted)
        sequence.wanted = []
