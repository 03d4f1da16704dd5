"""A short name for a JSON value: equal values have equal digests, whatever the order of their keys."""

import hashlib

import msgspec

__all__ = ["digest"]


def digest(value: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the value's canonical JSON: sorted keys, no spaces, UTF-8."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
