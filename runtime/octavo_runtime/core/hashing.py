"""The hash chain: equal hashes mean equal prefixes.

A block's hash covers its tokens and, through its parent's hash, all tokens before them and the salts of the request.
It is stable over processes and replicas.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

__all__ = ["chain_hash", "root_hash"]


def root_hash(*salts: str) -> bytes:
    """The parent of a first block: requests share blocks only when all salts (tenant, adapter, …) are equal."""
    # Each with its length, so that ("ab", "c") is not ("a", "bc").
    encoded = b"".join(len(part).to_bytes(8, "little") + part for part in (salt.encode() for salt in salts))
    return blake2b(encoded, digest_size=16).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int], content: bytes = b"") -> bytes:
    """The hash of a full block that holds `token_ids` after the prefix that `parent` stands for.

    Args:
        parent: Hash of the block before it, or the root.
        token_ids: The block's tokens.
        content: Digest of what else stands at these places, such as an image behind placeholder tokens.
    """
    tokens = token_ids if isinstance(token_ids, array) else array("i", token_ids)
    return blake2b(parent + content + tokens.tobytes(), digest_size=16).digest()
