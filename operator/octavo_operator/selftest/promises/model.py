"""What a promise is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo_operator.selftest.world import World

__all__ = ["STARTED", "Promise"]

STARTED = 20.0
"""Seconds in which pods have started, and others have drained, when nothing goes wrong any more."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that holds whatever goes wrong.

    Attributes:
        name: what `--only` takes.
        sentence: what is promised.
        play: lets it go wrong in a world, and returns in words what was done.
    """

    name: str
    sentence: str
    play: Callable[[World], Awaitable[str]]
