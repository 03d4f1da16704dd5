"""When requests come: as they did (open loop), or each when another has been answered (closed loop)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from octavo_runtime.replay.requests import ReplayRequest

__all__ = ["ClosedLoop", "Load", "OpenLoop"]


class Load(Protocol):
    """Hands out requests as virtual time goes by."""

    @property
    def next_at(self) -> float | None:
        """When the next request comes; None when none will without an answer to another."""
        ...

    def due(self, now: float) -> list[ReplayRequest]:
        """Takes the requests that have come by `now`."""
        ...

    def answered(self) -> None:
        """Hears that a request has ended."""
        ...


class OpenLoop:
    """Requests come at their arrival, whatever became of those before them.

    Args:
        requests: In any order.
    """

    def __init__(self, requests: Iterable[ReplayRequest]) -> None:
        self._left = deque(sorted(requests, key=lambda replay: replay.request.arrival))

    @property
    def next_at(self) -> float | None:
        """The earliest arrival left."""
        return self._left[0].request.arrival if self._left else None

    def due(self, now: float) -> list[ReplayRequest]:
        """Takes the requests that have come by `now`."""
        due = []
        while self._left and self._left[0].request.arrival <= now:
            due.append(self._left.popleft())
        return due

    def answered(self) -> None:
        """Changes nothing: nobody waits for an answer before asking."""


class ClosedLoop:
    """So many clients, each of which asks its next request when the one before is answered.

    Args:
        requests: Asked in this order; their own arrivals do not count.
        clients: How many ask at the start.
    """

    def __init__(self, requests: Iterable[ReplayRequest], clients: int) -> None:
        self._left = deque(requests)
        self._idle = clients

    @property
    def next_at(self) -> float | None:
        """At once, while a client is idle."""
        return 0.0 if self._idle and self._left else None

    def due(self, now: float) -> list[ReplayRequest]:
        """Takes a request for each idle client; it arrives now."""
        due = []
        while self._left and self._idle:
            replay = self._left.popleft()
            due.append(replace(replay, request=replace(replay.request, arrival=now)))
            self._idle -= 1
        return due

    def answered(self) -> None:
        """Lets a client ask again."""
        self._idle += 1
