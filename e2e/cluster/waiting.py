"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait(condition: Callable[[], T], seconds: float) -> T:
    """Poll until the condition is truthy or the time is over; returns its last value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.02)
