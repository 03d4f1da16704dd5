"""The pool's rules, one by one: what is shared, what is given up first, what a hash covers."""

from __future__ import annotations

from octavo_runtime.core.block_pool import BlockPool, chain_hash, root_hash


def published_chain(pool: BlockPool, length: int, salt: str = "") -> tuple[list[int], list[bytes]]:
    blocks, hashes = pool.allocate(length), []
    parent = root_hash(salt)
    for number, block in enumerate(blocks):
        parent = chain_hash(parent, [number])
        hashes.append(parent)
        pool.publish(block, parent)
    return blocks, hashes


def test_chain_hash_same_tokens_other_parent_differs() -> None:
    first = chain_hash(root_hash(""), [1, 2])
    assert chain_hash(first, [1, 2]) != first


def test_chain_hash_same_tokens_other_salt_differs() -> None:
    assert chain_hash(root_hash("a"), [1, 2]) != chain_hash(root_hash("b"), [1, 2])


def test_chain_hash_is_stable_over_processes() -> None:
    # Replicas compare hashes, so Python's hash seed must not enter.
    assert chain_hash(root_hash(""), [1, 2, 3]).hex() == "cc8cff82f26b8b08a01508d17db74b54"


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
    pool.share(old)  # a hit makes it recent
    pool.release(old)
    pool.allocate(2)
    assert pool.lookup(new_hashes) == []
    assert pool.lookup(old_hashes) == old


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
