"""Stop strings in text that comes in pieces.

Text that may be the beginning of a stop string is held back until that is decided; nothing else is. The result does
not depend on where the text was cut: it is as if each character came alone. The first stop string to be complete
ends the text, before its first character.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Looks for the first of several strings.

    Args:
        stops: Strings that end the text; none of them empty.

    Attributes:
        matched: The string that ended the text, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Takes the next piece of text; returns what may be shown. After a match it is the last that may."""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        kept = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[kept:]
        return text[:kept]

    def flush(self) -> str:
        """What was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that begins stop."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
