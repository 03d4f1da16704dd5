"""The pool of KV blocks: reference counts, the prefix cache, and which cached block is given up first.

A block is in one of three states:

    in use    ref > 0; in the block table of `ref` sequences
    cached    ref = 0, but published under a hash: a later request with the same prefix takes it as it is
    blank     ref = 0 and unpublished

Free blocks (cached and blank) wait in one queue; `allocate` takes from its front. Blank blocks are put at the
front, cached ones at the back in the order of their release; a sequence releases its blocks last to first, so of a
chain the tail is given up before its parents, and a hit on a long prefix decays from its end.

With a host tier, a cached block is copied there before it is given up, unless a copy is there already. So swapping
out is lazy: a preempted sequence's blocks stay on the device as cache until someone needs the place, and only those
that were really needed are copied, tail first.

The pool decides and records; the copies themselves are made by the executor, in the order of `take_copies`.

Source of the scheme: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (SOSP 2023), and
vLLM's automatic prefix caching, rewritten for a single owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from octavo_runtime.core.host_tier import HostTier
from octavo_runtime.domain import BlockCopy, CopyKind

__all__ = ["BlockPool"]


class BlockPool:
    """`num_blocks` blocks, numbered from 0. All operations are O(1) per block.

    Args:
        num_blocks: Blocks on the device.
        host: The second tier; None: there is none, or copying costs more than recomputing.
    """

    def __init__(self, num_blocks: int, host: HostTier | None = None) -> None:
        self.num_blocks = num_blocks
        self.host = host
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._written_back: set[int] = set()
        self._copies: list[BlockCopy] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free)

    def refs(self, block: int) -> int:
        """How many sequences use a block."""
        return self._refs[block]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks for one owner; the least worth keeping go first.

        The caller has checked `num_free`; running out here is a fault of ours.
        """
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if block in self._hash_of:
                self._give_up(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def lookup(self, hashes: Iterable[bytes]) -> list[int | None]:
        """The longest prefix of the chain `hashes` that is there: a block's number, or None for one on the host.

        Takes nothing.
        """
        found: list[int | None] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None and (self.host is None or block_hash not in self.host):
                break
            found.append(block)
        return found

    def num_needed(self, found: Iterable[int | None]) -> int:
        """How many free blocks `acquire` of what was looked up would take."""
        return sum(block is None or self._refs[block] == 0 for block in found)

    def acquire(self, found: Sequence[int | None], hashes: Sequence[bytes]) -> list[int]:
        """Adds one owner to each block that `lookup` has just found; those on the host are brought back.

        The caller has checked `num_needed` against `num_free`.
        """
        # Those on the device first: allocating might give them up.
        for block in found:
            if block is not None:
                if self._refs[block] == 0:
                    del self._free[block]
                self._refs[block] += 1
        missing = [block_hash for block_hash, block in zip(hashes, found, strict=False) if block is None]
        if not missing:
            return [block for block in found if block is not None]
        assert self.host is not None
        # Allocating may put other blocks on the host, which must not push out those that are about to be read.
        self.host.want(missing)
        fresh = dict(zip(missing, self.allocate(len(missing)), strict=True))
        for block_hash, block in fresh.items():
            source = self.host.get(block_hash)
            assert source is not None, "a block is brought back that the host does not hold"
            self._copies.append(BlockCopy(CopyKind.IN, source, block))
            self.publish(block, block_hash)
        self.host.unwant(missing)
        self.num_swapped_in += len(missing)
        return [fresh[h] if block is None else block for h, block in zip(hashes, found, strict=False)]

    def share(self, blocks: Iterable[int]) -> None:
        """Adds one owner to each of `blocks`, which are in use."""
        for block in blocks:
            assert self._refs[block] > 0, f"block {block} is shared but not in use"
            self._refs[block] += 1

    def own(self, block: int) -> int:
        """Makes a shared block writable for one of its owners: copy on write.

        Returns:
            A block of the owner's own, which will hold the same; the block itself where nobody shares it. The caller
            has checked that one is free.
        """
        if self._refs[block] == 1:
            return block
        self._refs[block] -= 1
        (copy,) = self.allocate(1)
        self._copies.append(BlockCopy(CopyKind.DEVICE, block, copy))
        return copy

    def publish(self, block: int, block_hash: bytes) -> None:
        """Lets later requests find `block`, in use and full, by its hash. A second block of one hash stays private."""
        assert self._refs[block] > 0, f"block {block} is published but not in use"
        if block not in self._hash_of and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block

    def release(self, block_table: Sequence[int]) -> None:
        """Takes one owner from each block of a sequence's table, given in order of position."""
        refs, free = self._refs, self._free
        for block in reversed(block_table):
            assert refs[block] > 0, f"block {block} is released but not in use"
            refs[block] -= 1
            if refs[block] == 0:
                free[block] = None
                if block not in self._hash_of:
                    free.move_to_end(block, last=False)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Takes these out of the cache, on both tiers: nobody will ask for them again."""
        for block_hash in hashes:
            block = self._block_of.pop(block_hash, None)
            if block is not None:
                del self._hash_of[block]
                self._written_back.discard(block)
                if self._refs[block] == 0:
                    self._free.move_to_end(block, last=False)
            if self.host is not None:
                self.host.drop((block_hash,))

    def write_back(self, limit: int) -> None:
        """Copies cached blocks among the `limit` that go next to the host, so that giving them up costs nothing.

        Each once: a host tier smaller than the cache must not be written over and over.
        """
        if self.host is None:
            return
        for position, block in enumerate(self._free):
            if position == limit:
                return
            block_hash = self._hash_of.get(block)
            if block_hash is not None and block not in self._written_back:
                self._written_back.add(block)
                self._copy_out(block, block_hash)

    def resize(self, num_blocks: int, tables: Iterable[list[int]]) -> dict[int, int]:
        """Changes the pool's size. Blocks in use beyond the new end move to free ones before it.

        Args:
            num_blocks: The new size; not below the number of blocks in use.
            tables: Block tables of all sequences; rewritten in place.

        Returns:
            Old number -> new number of the blocks that moved.
        """
        if num_blocks >= self.num_blocks:
            for block in range(self.num_blocks, num_blocks):
                self._refs.append(0)
                self._free[block] = None
                self._free.move_to_end(block, last=False)
            self.num_blocks = num_blocks
            return {}
        for block in range(num_blocks, self.num_blocks):
            if self._refs[block] == 0:
                del self._free[block]
                if block in self._hash_of:
                    self._give_up(block)
        moved: dict[int, int] = {}
        for block in range(num_blocks, self.num_blocks):
            if self._refs[block]:
                (target,) = self.allocate(1)
                self._refs[target] = self._refs[block]
                block_hash = self._hash_of.pop(block, None)
                self._written_back.discard(block)
                if block_hash is not None:
                    self._hash_of[target] = block_hash
                    self._block_of[block_hash] = target
                self._copies.append(BlockCopy(CopyKind.DEVICE, block, target))
                moved[block] = target
        for table in tables:
            table[:] = [moved.get(block, block) for block in table]
        del self._refs[num_blocks:]
        self.num_blocks = num_blocks
        return moved

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies recorded since the last call, in order."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def recount(self, tables: Iterable[Sequence[int]]) -> None:
        """Counts the references anew, from the block tables of all sequences: after a fault of ours."""
        self._refs = [0] * self.num_blocks
        for table in tables:
            for block in table:
                self._refs[block] += 1
        free = [block for block, refs in enumerate(self._refs) if refs == 0]
        cached = [block for block in self._free if block in self._hash_of and self._refs[block] == 0]
        self._free = OrderedDict.fromkeys([*(block for block in free if block not in self._hash_of), *cached])
        self._free.update(dict.fromkeys(free))

    def check_invariants(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the pool agrees with the tables of all sequences that hold blocks."""
        owners = [0] * self.num_blocks
        for table in block_tables:
            assert len(set(table)) == len(table), f"a block stands twice in one table: {table}"
            for block in table:
                owners[block] += 1
        assert owners == self._refs, "reference counts differ from the block tables"
        assert set(self._free) == {block for block, refs in enumerate(owners) if refs == 0}, "free queue is wrong"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "hash maps are not each other's inverse"
        if self.host is not None:
            self.host.check_invariants()

    def _give_up(self, block: int) -> None:
        """Takes a cached block out of the cache, after its copy where one pays."""
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        self._written_back.discard(block)
        if self.host is not None:
            self._copy_out(block, block_hash)

    def _copy_out(self, block: int, block_hash: bytes) -> None:
        assert self.host is not None
        target = self.host.put(block_hash)
        if target is not None:
            self._copies.append(BlockCopy(CopyKind.OUT, block, target))
            self.num_swapped_out += 1
