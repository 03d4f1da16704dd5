"""The values in which two JSON documents differ, each with its path: what messages show of a change."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["differences", "told"]

SHOWN_DIFFERENCES = 5
"""How many differences a message names."""

SHOWN_CHARACTERS = 80
"""How much of a value a message shows."""


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each value that differs: its path, and what it was and is. Items of a list that have names are paired by them."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif _named(before) and _named(after):
        was, will = ({item["name"]: item for item in items} for items in (before, after))
        for name in was | will:
            yield from differences(was.get(name), will.get(name), f"{path}[{name}]")
    elif before != after:
        yield path, f"{path}: {_shown(before)} to {_shown(after)}"


def told(sentences: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(sentences) - SHOWN_DIFFERENCES
    return "; ".join(sentences[:SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")


def _named(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) and "name" in item for item in items)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
