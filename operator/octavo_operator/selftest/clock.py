"""Virtual time: whenever nobody has anything to do, the clock jumps to the next timer.

Two minutes of an outage cost milliseconds, and a run depends on its seed alone, not on the machine.
"""

import asyncio
import selectors
from datetime import UTC, datetime, timedelta

__all__ = ["EPOCH", "Standstill", "VirtualLoop", "moment", "now", "seconds"]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""When each run begins."""

STANDSTILL = 200_000
"""Turns of the loop within one instant after which somebody is taken to work in circles."""


class Standstill(Exception):
    """Nothing can happen any more."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: the time that it should wait has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing is ever ready: no sockets are used.

        Raises:
            Standstill: everybody waits for somebody, or time stands still.
        """
        if timeout is None:
            raise Standstill("everybody waits for somebody")
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > STANDSTILL:
            self._turns = 0
            raise Standstill(f"somebody works in circles {self.time:.1f} s after the start")
        self.time += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, without I/O."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._jumping.time


def seconds() -> float:
    """The time of the running loop."""
    return asyncio.get_running_loop().time()


def now() -> datetime:
    """The same as a date."""
    return EPOCH + timedelta(seconds=seconds())


def moment() -> str:
    """The same as Kubernetes writes it."""
    return now().strftime("%Y-%m-%dT%H:%M:%SZ")
