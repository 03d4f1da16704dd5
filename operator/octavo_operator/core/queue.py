"""The work queue: which InferenceService to look at next.

A key stands for "look again", so that ten events before a look need one look. What holds at any time
(`check_invariants`):

- a key is handed to one worker at a time; news about it meanwhile makes it ready once more when the worker is done;
- an `add` is followed by a `take` of that key: nothing is lost;
- an edit by a user overtakes the burst (`urgent`); each lane is first in, first out;
- while edits come, the others are handed out one at a time: what a burst of new objects writes is what the API server
  would be busy with when the edit is written. One at a time is nearly as fast for them. One that takes longer than
  `CALM_SECONDS` holds the next one back no more, so that they never stand still;
- a failing key waits longer each time, up to `max_delay`, and news about it does not wait. A look that news brought
  and that fails again before the wait is over neither lengthens nor restarts the wait: else a pod that is starting,
  with its many events, would make an object wait for minutes.
"""

from collections import defaultdict
from collections.abc import Hashable
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

__all__ = ["WorkQueue"]

K = TypeVar("K", bound=Hashable)

CALM_SECONDS = 1.0
"""For how long after an edit the others give way, since edits come in series; and how long they wait for each other."""


class WorkQueue(Generic[K]):
    """A de-duplicating queue with two lanes and per-key backoff. Times are seconds on any monotonic clock."""

    def __init__(self, *, first_delay: float = 1.0, max_delay: float = 300.0) -> None:
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._urgent: dict[K, None] = {}
        self._ready: dict[K, None] = {}
        self._active: dict[K, float] = {}
        """When each was handed out; an edit, which holds nobody back, ages ago."""
        self._calm_at = -inf
        self._again: dict[K, bool] = {}
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._failures: defaultdict[K, int] = defaultdict(int)
        self._retry_at: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ready)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Makes a key ready, now or when its worker is done.

        Args:
            key: what to look at.
            urgent: whether it overtakes those that are not.
        """
        if key in self._active:
            self._again[key] = urgent or self._again.get(key, False)
        elif urgent:
            self._ready.pop(key, None)
            self._urgent.setdefault(key)
        elif key not in self._urgent:
            self._ready.setdefault(key)

    def add_at(self, key: K, due: float) -> None:
        """Makes a key ready at a time; the earliest of several counts, and any look before it cancels it."""
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._sequence += 1
            heappush(self._timers, (due, self._sequence, key))

    def retry(self, key: K, now: float, *, jitter: float = 0.0) -> float:
        """Makes a key ready after its backoff.

        Args:
            key: what failed.
            now: the time.
            jitter: from 0 to 1: which part of a quarter of the delay is added, so that keys spread.

        Returns:
            The delay: what is left of the current one, if it is not over yet.
        """
        current = self._retry_at.get(key, now)
        if current > now:
            self.add_at(key, current)
            return current - now
        # The exponent is bounded only to keep the power a small number.
        delay = min(self._max_delay, self._first_delay * 2.0 ** min(self._failures[key], 30)) * (1 + jitter / 4)
        self._failures[key] += 1
        self._retry_at[key] = now + delay
        self.add_at(key, now + delay)
        return delay

    def succeed(self, key: K) -> None:
        """Ends a key's backoff."""
        self._failures.pop(key, None)
        self._retry_at.pop(key, None)

    def take(self, now: float, *, urgent_only: bool = False) -> K | None:
        """Hands out the next key, or None. Each key taken must be given back with `done`.

        Args:
            now: the time.
            urgent_only: whether to leave the others for somebody else.
        """
        while self._timers and (self._timers[0][0] <= now or self._is_stale(self._timers[0])):
            timer = heappop(self._timers)
            if not self._is_stale(timer):
                del self._due[timer[2]]
                self.add(timer[2])
        if self._urgent:
            self._calm_at = now + CALM_SECONDS
            return self._hand_out(self._urgent, -inf)
        if self._ready and not urgent_only and now >= self._gives_way_until():
            return self._hand_out(self._ready, now)
        return None

    def done(self, key: K) -> None:
        """Takes a key back from its worker."""
        del self._active[key]
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, urgent=again)

    def next_due(self, now: float) -> float | None:
        """When `take` may have something that it has not now; None when only an `add` or a `done` can bring it."""
        while self._timers and self._is_stale(self._timers[0]):
            heappop(self._timers)
        dues = [self._timers[0][0]] if self._timers else []
        if self._ready and now < self._gives_way_until():
            dues.append(self._gives_way_until())
        return min(dues, default=None)

    def check_invariants(self) -> None:
        """Raises AssertionError when the structure contradicts itself."""
        assert not self._urgent.keys() & self._ready.keys()
        assert not self._active.keys() & (self._urgent.keys() | self._ready.keys())
        assert self._again.keys() <= self._active.keys()
        assert self._retry_at.keys() == self._failures.keys()
        assert all(any(timer == (due, timer[1], key) for timer in self._timers) for key, due in self._due.items())

    def _hand_out(self, lane: dict[K, None], since: float) -> K:
        key = next(iter(lane))
        del lane[key]
        self._due.pop(key, None)
        self._active[key] = since
        return key

    def _gives_way_until(self) -> float:
        """When one that is no edit may be handed out, if nothing happens before."""
        return min(self._calm_at, max(self._active.values(), default=-inf) + CALM_SECONDS)

    def _is_stale(self, timer: tuple[float, int, K]) -> bool:
        return self._due.get(timer[2]) != timer[0]
