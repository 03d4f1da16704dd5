"""Who waits, in the order of a policy.

The keys of all policies are fixed when a sequence begins to wait, so that the order is a heap and no clock turns it:

    fcfs            arrival
    priority        priority, then arrival
    shortest-first  arrival + AGING x the time its work takes, alone
    slo             the same; once its first token cannot come in time, 20 x the target time later

So under shortest-first a request is overtaken only by requests that arrive before its key: it waits behind younger
ones for at most AGING times as long as its own work takes. That is its bound; then it is first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octavo_runtime.core.sequence import Sequence, State

__all__ = ["AGING", "WaitingQueue"]

AGING = 40.0
"""How many times its own duration a request may be kept waiting by shorter ones that came later."""


class WaitingQueue:
    """A heap by `Sequence.key`. A sequence that stops waiting is skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int, Sequence]] = []
        self._entered: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._entered)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._entered.values())

    def push(self, sequence: Sequence) -> None:
        """Puts a sequence at its place."""
        assert sequence.state is State.WAITING
        self._entered[sequence.number] = sequence
        heapq.heappush(self._heap, (sequence.key, sequence.number, sequence))

    def peek(self) -> Sequence | None:
        """The first."""
        while self._heap and self._heap[0][1] not in self._entered:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        """Takes the first out."""
        first = self.peek()
        assert first is not None, "nobody waits"
        heapq.heappop(self._heap)
        del self._entered[first.number]
        return first

    def remove(self, sequence: Sequence) -> None:
        """Takes one out, wherever it is; one that does not wait here is ignored."""
        self._entered.pop(sequence.number, None)
        # What is skipped must not pile up behind a first that never moves.
        if len(self._heap) > 2 * len(self._entered) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._entered]
            heapq.heapify(self._heap)
