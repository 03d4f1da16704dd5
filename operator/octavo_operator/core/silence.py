"""Which watches are silent though there is news: the one fault of a watch that nobody reports.

A complete list of our own shows versions that a watch has yet to deliver. Milliseconds later it has, unless it hangs.
What holds at any time (tests/operator_tests/test_silence.py):

- A watch is called silent when a list shows that it owes something, it delivers nothing at all for `patience`, and a
  list after that shows that it still owes something.
- A watch that delivers whatever it owes within `patience` is never called silent; nor is one where nothing happens, nor
  one that owes what has vanished meanwhile, which no watch that lost its place ever delivers.
- The first event that a silent watch delivers ends its silence.

The answers to our own writes are no deliveries: the store knows them before any watch, and must not speak for one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from octavo_operator.api.names import Kind

__all__ = ["PATIENCE_SECONDS", "Silence", "Stream"]

PATIENCE_SECONDS = 90.0
"""kopf ends a watch on which nothing comes for 70 s, not even a bookmark, and begins another one."""

Stream = tuple[Kind, str | None]
"""What one watch delivers: a kind, in one namespace or in all (None)."""


@dataclass(slots=True)
class _Watch:
    newest: int = 0
    owes_since: float | None = None
    is_silent: bool = False


@dataclass(slots=True)
class Silence:
    """What is known of each watch. Times are seconds on any monotonic clock."""

    patience: float = PATIENCE_SECONDS
    _watches: dict[Stream, _Watch] = field(default_factory=dict)

    def delivered(self, stream: Stream, version: int) -> None:
        """Takes note of an event.

        Args:
            stream: whose watch delivered it.
            version: the object's resourceVersion.
        """
        watch = self._watches.setdefault(stream, _Watch())
        watch.newest = max(watch.newest, version)
        watch.owes_since = None
        watch.is_silent = False

    def listed(self, stream: Stream, newest: int, now: float) -> None:
        """Takes note of a complete list.

        Args:
            stream: what was listed.
            newest: the largest resourceVersion among its items; 0 when it has none.
            now: the time after the answer came.
        """
        watch = self._watches.setdefault(stream, _Watch())
        if newest <= watch.newest:
            watch.owes_since = None
            watch.is_silent = False
        elif watch.owes_since is None:
            watch.owes_since = now
        else:
            watch.is_silent = now - watch.owes_since >= self.patience

    def interrupted(self, namespaces: Collection[str | None]) -> None:
        """Takes note of a list that failed: there is no way to these namespaces, and no watch of them owes anything.

        Args:
            namespaces: as in the streams.
        """
        for (_, namespace), watch in self._watches.items():
            if namespace in namespaces:
                watch.owes_since = None

    def silent(self) -> list[Stream]:
        """The watches that are silent."""
        return [stream for stream, watch in self._watches.items() if watch.is_silent]

    def due(self) -> float | None:
        """When another list would tell whether a watch is silent; None when none owes anything or it is known."""
        waiting = [one.owes_since for one in self._watches.values() if one.owes_since is not None and not one.is_silent]
        return min(waiting) + self.patience if waiting else None
