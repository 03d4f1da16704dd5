"""The pool's rules, one by one: what is shared, what is given up first, which copies are made."""

from __future__ import annotations

import pytest

from octavo_runtime.core.block_pool import BlockPool
from octavo_runtime.core.hashing import chain_hash, root_hash
from octavo_runtime.core.host_tier import HostTier
from octavo_runtime.domain import BlockCopy, CopyKind


def published_chain(pool: BlockPool, length: int, salt: str = "") -> tuple[list[int], list[bytes]]:
    blocks, hashes = pool.allocate(length), []
    parent = root_hash(salt)
    for number, block in enumerate(blocks):
        parent = chain_hash(parent, [number])
        hashes.append(parent)
        pool.publish(block, parent)
    return blocks, hashes


def test_lookup_stops_at_the_first_gap() -> None:
    pool = BlockPool(4)
    blocks, hashes = published_chain(pool, 3)
    pool.release(blocks)
    assert pool.lookup(hashes) == blocks
    assert pool.lookup([hashes[0], b"other", hashes[2]]) == blocks[:1]


def test_allocate_gives_up_blank_blocks_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached, hashes = published_chain(pool, 1)
    blank = pool.allocate(1)
    pool.release(cached)
    pool.release(blank)
    pool.allocate(3)
    assert pool.lookup(hashes) == cached
    pool.allocate(1)
    assert pool.lookup(hashes) == []


def test_allocate_gives_up_the_tail_of_a_chain_first() -> None:
    pool = BlockPool(3)
    blocks, hashes = published_chain(pool, 3)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.lookup(hashes) == blocks[:2]
    pool.allocate(1)
    assert pool.lookup(hashes) == blocks[:1]


def test_allocate_gives_up_the_least_recently_used_chain_first() -> None:
    pool = BlockPool(4)
    old, old_hashes = published_chain(pool, 2, "old")
    new, new_hashes = published_chain(pool, 2, "new")
    pool.release(old)
    pool.release(new)
    pool.release(pool.acquire(pool.lookup(old_hashes), old_hashes))  # a hit makes it recent
    pool.allocate(2)
    assert pool.lookup(new_hashes) == []
    assert pool.lookup(old_hashes) == old


def test_allocate_more_than_is_free_is_a_fault_and_never_takes_a_block_in_use() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)


def test_share_keeps_a_block_until_its_last_owner_goes() -> None:
    pool = BlockPool(2)
    blocks, _ = published_chain(pool, 1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2


def test_publish_second_block_of_one_hash_stays_private() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, b"hash")
    pool.publish(second, b"hash")
    assert pool.lookup([b"hash"]) == [first]
    pool.check_invariants([[first, second]])


def test_own_shared_block_is_copied_for_all_but_the_last_owner() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.share([block])
    copies = [pool.own(block), pool.own(block)]
    assert len({block, *copies}) == 3
    assert pool.own(block) == block
    assert pool.take_copies() == tuple(BlockCopy(CopyKind.DEVICE, block, copy) for copy in copies)
    pool.check_invariants([[block], [copies[0]], [copies[1]]])


def test_forget_makes_cached_blocks_the_first_to_go() -> None:
    pool = BlockPool(3)
    spent, spent_hashes = published_chain(pool, 1, "spent")
    kept, kept_hashes = published_chain(pool, 2, "kept")
    pool.release(spent)
    pool.release(kept)
    pool.forget(spent_hashes)
    assert pool.lookup(spent_hashes) == []
    assert pool.allocate(1) == spent
    assert pool.lookup(kept_hashes) == kept


def test_allocate_cached_block_is_copied_to_the_host_and_comes_back() -> None:
    pool = BlockPool(2, HostTier(4))
    blocks, hashes = published_chain(pool, 2)
    pool.release(blocks)
    others = pool.allocate(2)
    assert {copy.kind for copy in pool.take_copies()} == {CopyKind.OUT}
    assert pool.lookup(hashes) == [None, None]
    pool.release(others)
    back = pool.acquire(pool.lookup(hashes), hashes)
    assert [copy.kind for copy in pool.take_copies()] == [CopyKind.IN, CopyKind.IN]
    assert pool.lookup(hashes) == back
    assert (pool.num_swapped_out, pool.num_swapped_in) == (2, 2)
    pool.check_invariants([back])


def test_allocate_clean_block_is_not_copied_again() -> None:
    pool = BlockPool(1, HostTier(4))
    blocks, hashes = published_chain(pool, 1)
    pool.release(blocks)
    for _ in range(3):
        pool.release(pool.allocate(1))
        pool.release(pool.acquire(pool.lookup(hashes), hashes))
    assert pool.num_swapped_out == 1


def test_write_back_copies_what_goes_next_ahead_and_once() -> None:
    pool = BlockPool(4, HostTier(8))
    blocks, hashes = published_chain(pool, 4)
    pool.release(blocks)
    pool.write_back(2)
    copied = pool.take_copies()
    assert [copy.source for copy in copied] == [blocks[3], blocks[2]]
    pool.write_back(2)
    pool.allocate(2)
    assert pool.take_copies() == ()
    assert pool.lookup(hashes) == [*blocks[:2], None, None]


def test_write_back_host_smaller_than_the_cache_comes_to_rest() -> None:
    pool = BlockPool(4, HostTier(1))
    blocks, _ = published_chain(pool, 4)
    pool.release(blocks)
    for _ in range(10):
        pool.write_back(4)
    assert len(pool.take_copies()) == 4


def test_acquire_keeps_its_sources_while_it_pushes_others_out() -> None:
    pool = BlockPool(2, HostTier(2))
    first, first_hashes = published_chain(pool, 2, "first")
    pool.release(first)
    second, _ = published_chain(pool, 2, "second")  # pushes the first out: the host is full now
    pool.take_copies()
    pool.release(second)
    pool.acquire(pool.lookup(first_hashes), first_hashes)
    # Bringing the first back gives the second up, which finds no room.
    copies = pool.take_copies()
    assert [copy.kind for copy in copies] == [CopyKind.IN, CopyKind.IN]


def test_resize_down_moves_blocks_in_use_and_up_brings_blank_ones() -> None:
    pool = BlockPool(4)
    blocks, hashes = published_chain(pool, 4)
    pool.release(blocks[:2])
    tables = [blocks[2:]]
    moved = pool.resize(2, tables)
    assert sorted(tables[0]) == [0, 1]
    assert pool.take_copies() == tuple(BlockCopy(CopyKind.DEVICE, old, new) for old, new in moved.items())
    assert pool.lookup(hashes[2:]) == tables[0]
    pool.check_invariants(tables)
    pool.resize(5, tables)
    assert pool.num_free == 3
    pool.check_invariants(tables)
