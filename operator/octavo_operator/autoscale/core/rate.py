"""How many requests a full replica ends in a second.

It is a mean over the last minute of full replicas: what they have ended, by the replicas' worth of seconds that they
worked. When answers become longer the mean follows a minute late, which is the minute in which it matters: a queue that
grows by so many requests is then worth far more replicas. So what ended within the last seconds is held against it. If
it is less than chance explains, answers have become longer, and the last seconds alone count.

A batch that has just filled up ends less, too, because nobody in it has come far. What tells the two apart is the
memory that a sequence holds, which grows with what it has generated: in a young batch that is less than usual, and in
one of longer answers more.
"""

import math
from dataclasses import dataclass, replace

__all__ = ["Rate", "Work"]

MEMORY = 60.0
"""Over how many full replicas' seconds the mean is taken."""

LEAST = 20.0
"""From how many on it is known: those that have just begun to answer end nothing yet."""

SURE = 3.0
"""Standard deviations that chance may take from what ended: fewer than that is sure."""

VARIANCE = 2.0
"""Of the number that ends, for each that does: if lengths vary as much as they are long, and some more for their
batch."""

NOTHING = 1e-6
"""So few requests a second are none. What pods that hang have ended fades away, and is divided by."""


@dataclass(frozen=True, slots=True)
class Work:
    """What replicas did within some time.

    Attributes:
        ended: requests that ended.
        worked: seconds, each times the load of the replica.
        held: seconds, each times the share of its cache that a replica used.
        ran: seconds, each times the sequences that a replica ran.
    """

    ended: float = 0.0
    worked: float = 0.0
    held: float = 0.0
    ran: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.ended + other.ended, self.worked + other.worked, self.held + other.held, self.ran + other.ran)

    def times(self, factor: float) -> "Work":
        """The same of more replicas, or fewer."""
        return Work(self.ended * factor, self.worked * factor, self.held * factor, self.ran * factor)


@dataclass(frozen=True, slots=True)
class Rate:
    """What is known of it."""

    past: Work = Work()

    @property
    def value(self) -> float:
        """Requests a second; 0 while it is not known."""
        rate = self.past.ended / self.past.worked if self.past.worked >= LEAST else 0.0
        return rate if rate >= NOTHING else 0.0

    def see(self, work: Work) -> "Rate":
        """Takes in what was done since the last time."""
        return Rate(self.past.times(math.exp(-work.worked / MEMORY)) + work)

    def doubt(self, recent: Work) -> "Rate":
        """The rate of the last seconds alone, if answers have become longer by them; else what it was.

        Args:
            recent: what was done in the last seconds, by the replicas that were full all the time.
        """
        expected = self.value * recent.worked
        is_less = recent.ended < expected - SURE * math.sqrt(VARIANCE * expected)
        is_older = recent.held * self.past.ran >= self.past.held * recent.ran
        if not (is_less and is_older):
            return self
        # Set, since what is rounded to less than the least would not be known.
        return Rate(replace(recent.times(LEAST / recent.worked), worked=LEAST))
