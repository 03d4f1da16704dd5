"""What a promise is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from octavo_operator.selftest.world import World

__all__ = ["AT_ONCE", "STARTED", "Promise"]

STARTED = 40.0
"""Seconds in which three pods have been replaced one after the other, and the last one has drained."""

AT_ONCE = 4.0
"""Seconds in which children are changed when nothing is in the way: a look that failed is repeated after 2 to 2.5 s."""


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
