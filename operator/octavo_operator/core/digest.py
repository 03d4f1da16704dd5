"""A short name for a JSON value: equal values have equal digests, whatever the order of their keys."""

import hashlib
import json

__all__ = ["digest"]


def digest(value: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
