"""The queue at the door: the requests that got no token yet, and how fast such requests get their first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from octavo_runtime.domain import Request

__all__ = ["Queue"]

_WINDOW_SECONDS = 60.0
_WINDOW_STARTS = 64
_UNKNOWN_SECONDS = 5
_LONGEST_SECONDS = 60


class Queue:
    """What waits, computed prompts among it: the server sees a request start by its first token.

    A request whose answers are ranked shows no token before its end and counts until then.

    Attributes:
        num_tokens: Prompt tokens of what waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}  # request id -> prompt tokens
        self._starts: deque[float] = deque(maxlen=_WINDOW_STARTS)
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def holding(self, requests: Iterable[Request]) -> Iterator[None]:
        """Counts the requests of a call as long as they wait."""
        lengths = {request.request_id: len(request.prompt_token_ids) for request in requests}
        self._waiting |= lengths
        self.num_tokens += sum(lengths.values())
        try:
            yield
        finally:
            for request_id in lengths:
                self._leave(request_id)

    def started(self, request_id: str, at: float) -> None:
        """A request got its first token, at that time on the monotonic clock."""
        self._starts.append(at)
        self._leave(request_id)

    def retry_after(self, now: float) -> int:
        """Seconds in which all that waits will have started, at the rate of the last minute; 1-60."""
        while self._starts and self._starts[0] < now - _WINDOW_SECONDS:
            self._starts.popleft()
        if not self._starts:
            return _UNKNOWN_SECONDS
        seconds_each = (now - self._starts[0]) / len(self._starts)
        return min(_LONGEST_SECONDS, max(1, math.ceil(len(self) * seconds_each)))

    def _leave(self, request_id: str) -> None:
        self.num_tokens -= self._waiting.pop(request_id, 0)
