"""Contiguous memory for whole requests, as systems before paging allocated it: first fit, and buddies."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

__all__ = ["Allocator", "Buddy", "FirstFit"]


class Allocator(Protocol):
    """Hands out ranges of token slots."""

    def allocate(self, size: int) -> int | None:
        """The start of a free range of at least `size` slots; None when there is none."""
        ...

    def free(self, start: int) -> None:
        """Gives back a range that `allocate` returned."""
        ...

    @property
    def held(self) -> int:
        """Slots that are handed out, those above what was asked for among them."""
        ...


class FirstFit:
    """The lowest range that is long enough, and no more than is asked for.

    Args:
        slots: In all.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held = 0
        self._ranges: list[tuple[int, int]] = []  # handed out: (start, size), in order

    def allocate(self, size: int) -> int | None:
        """Takes exactly `size` slots."""
        start = 0
        for taken, length in self._ranges:
            if taken - start >= size:
                break
            start = taken + length
        if start + size > self.slots:
            return None
        insort(self._ranges, (start, size))
        self.held += size
        return start

    def free(self, start: int) -> None:
        """Gives a range back; neighbouring free ranges are one."""
        _, size = self._ranges.pop(bisect_left(self._ranges, (start, 0)))
        self.held -= size


class Buddy:
    """Ranges whose sizes are powers of two, split in halves and joined again (Knuth, TAOCP 2.5).

    Args:
        slots: In all; what is not a power of two is a row of such ranges, the largest first.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held = 0
        self._free: dict[int, set[int]] = {}  # size -> starts
        self._sizes: dict[int, int] = {}  # handed out: start -> size
        start = 0
        for power in reversed(range(slots.bit_length())):
            if slots >> power & 1:
                self._free.setdefault(1 << power, set()).add(start)
                start += 1 << power

    def allocate(self, size: int) -> int | None:
        """Takes the smallest power of two that holds `size` slots."""
        wanted = 1 << (size - 1).bit_length()
        whole = min((each for each, starts in self._free.items() if each >= wanted and starts), default=None)
        if whole is None:
            return None
        start = min(self._free[whole])
        self._free[whole].remove(start)
        while whole > wanted:
            whole //= 2
            self._free.setdefault(whole, set()).add(start + whole)
        self._sizes[start] = wanted
        self.held += wanted
        return start

    def free(self, start: int) -> None:
        """Gives a range back, and joins it with its buddy as long as that is free."""
        size = self._sizes.pop(start)
        self.held -= size
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self._free.setdefault(size, set()).add(start)
