"""The pool of KV blocks: reference counts, the prefix cache, and which cached block is given up first.

A block is in one of three states:

    in use    ref > 0; in the block table of `ref` sequences
    cached    ref = 0, but published under a hash: a later request with the same prefix takes it as it is
    blank     ref = 0 and unpublished

Free blocks (cached and blank) wait in one queue; `allocate` takes from its front. Blank blocks are put at the
front, cached ones at the back in the order of their release; a sequence releases its blocks last to first, so of a
chain the tail is given up before its parents, and a hit on a long prefix decays from its end.

A block's hash covers its tokens and, through its parent's hash, all tokens before them (a hash chain): equal
hashes mean equal prefixes, under the same salt. The hash is stable over processes and replicas.

Source of the scheme: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (SOSP 2023), and
vLLM's automatic prefix caching, rewritten for a single owner.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

__all__ = ["BlockPool", "chain_hash", "root_hash"]


def root_hash(salt: str) -> bytes:
    """The parent of a first block: requests share blocks only under the same salt."""
    return blake2b(salt.encode(), digest_size=16).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block that holds `token_ids` after the prefix that `parent` stands for."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """`num_blocks` blocks, numbered from 0. All operations are O(1) per block."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free blocks for one owner; the least worth keeping go first.

        The caller has checked `num_free`; running out here is a fault of ours.
        """
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            cached = self._hash_of.pop(block, None)
            if cached is not None:
                del self._block_of[cached]
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def lookup(self, hashes: Iterable[bytes]) -> list[int]:
        """The published blocks of the longest prefix of the chain `hashes`; takes nothing."""
        found = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody uses: sharing them would take them out of `num_free`."""
        return sum(self._refs[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Adds one owner to each of `blocks`, published or in use."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def publish(self, block: int, block_hash: bytes) -> None:
        """Lets later requests find `block`, in use and full, by its hash. A second block of one hash stays private."""
        assert self._refs[block] > 0, f"block {block} is published but not in use"
        if block not in self._hash_of and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block

    def release(self, block_table: Sequence[int]) -> None:
        """Takes one owner from each block of a sequence's table, given in order of position."""
        for block in reversed(block_table):
            assert self._refs[block] > 0, f"block {block} is released but not in use"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

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
