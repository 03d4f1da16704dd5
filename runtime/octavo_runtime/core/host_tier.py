"""The second tier: blocks in host memory, found by the hash of what they hold.

It holds full blocks only: a copy never changes, so a block that is here is not written twice, and the same copy serves
every sequence with that prefix. When it is full, the least recently used copy goes that no preempted sequence wants;
when all are wanted, nothing is stored: what is lost is recomputed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["HostTier"]


class HostTier:
    """`num_blocks` host blocks, numbered from 0."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._block_of: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._kept: dict[bytes, int] = {}  # wanted and here: not to be given up
        self._wanted: dict[bytes, int] = {}

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._block_of or block_hash in self._kept

    def __len__(self) -> int:
        return len(self._block_of) + len(self._kept)

    def get(self, block_hash: bytes) -> int | None:
        """The block that holds a copy, which counts as used now."""
        block = self._kept.get(block_hash)
        if block is None:
            block = self._block_of.get(block_hash)
            if block is not None:
                self._block_of.move_to_end(block_hash)
        return block

    def put(self, block_hash: bytes) -> int | None:
        """A block to copy to; None when there is a copy already, or no room."""
        if block_hash in self:
            return None
        if self._free:
            block = self._free.pop()
        elif self._block_of:
            _, block = self._block_of.popitem(last=False)
        else:
            return None
        (self._kept if block_hash in self._wanted else self._block_of)[block_hash] = block
        return block

    def want(self, hashes: Iterable[bytes]) -> None:
        """Keeps the copies of these, present and to come, until as many `unwant` have followed."""
        for block_hash in hashes:
            self._wanted[block_hash] = self._wanted.get(block_hash, 0) + 1
            block = self._block_of.pop(block_hash, None)
            if block is not None:
                self._kept[block_hash] = block

    def unwant(self, hashes: Iterable[bytes]) -> None:
        """Takes one `want` back."""
        for block_hash in hashes:
            count = self._wanted[block_hash] - 1
            if count:
                self._wanted[block_hash] = count
                continue
            del self._wanted[block_hash]
            block = self._kept.pop(block_hash, None)
            if block is not None:
                self._block_of[block_hash] = block

    def drop(self, hashes: Iterable[bytes]) -> None:
        """Gives up the copies of these, which nobody will ask for again."""
        for block_hash in hashes:
            block = self._block_of.pop(block_hash, None)
            if block is not None:
                self._free.append(block)

    def check_invariants(self) -> None:
        """Raises AssertionError when the tier contradicts itself."""
        held = [*self._block_of.values(), *self._kept.values(), *self._free]
        assert sorted(held) == list(range(self.num_blocks)), "a host block is lost or stands twice"
        assert not self._block_of.keys() & self._wanted.keys(), "a wanted copy could be given up"
        assert self._kept.keys() <= self._wanted.keys(), "a copy is kept that nobody wants"
