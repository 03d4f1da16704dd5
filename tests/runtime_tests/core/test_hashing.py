"""What a block's hash covers."""

from __future__ import annotations

from array import array

from octavo_runtime.core.hashing import chain_hash, root_hash


def test_chain_hash_same_tokens_other_parent_differs() -> None:
    first = chain_hash(root_hash(""), [1, 2])
    assert chain_hash(first, [1, 2]) != first


def test_chain_hash_same_tokens_other_content_differs() -> None:
    parent = root_hash("")
    assert len({chain_hash(parent, [1, 2], image) for image in (b"", b"one", b"another")}) == 3


def test_root_hash_any_other_salt_differs() -> None:
    roots = [
        root_hash("tenant", "adapter"),
        root_hash("adapter", "tenant"),
        root_hash("tenant"),
        root_hash("tena", "nt"),
    ]
    assert len(set(roots)) == 4


def test_chain_hash_is_stable_over_processes() -> None:
    # Replicas compare hashes, so Python's hash seed must not enter.
    assert chain_hash(root_hash(""), [1, 2, 3]).hex() == "4b648f8cdde679a1949fe01d365fdd03"


def test_chain_hash_list_and_array_agree() -> None:
    assert chain_hash(b"p", [1, 2, 3]) == chain_hash(b"p", array("i", [1, 2, 3]))
