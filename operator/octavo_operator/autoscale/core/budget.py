"""Whether more requests were late than may be, and what the bursts were worth in which they were.

Sites that promise that 99 of 100 requests are in time have an error budget, the hundredth, and a custom: who has spent
it makes no risky change until the time that it is for has passed. What an autoscaler does that is risky is to let
replicas go. So while the budget is spent, those stay that the busiest late minute of a burst was worth: a burst that
comes again finds them.

    demand    ▁▁▁▁█████▁▁▁▁▁▁▁▁█████▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
    late          ██
    replicas  ▁▁▁▁▁▁▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▁▁▁▁▁▁
                    └ an hour after what was late last ┘

Late is a request that one replica more would have helped: it was refused, or where it came more waited than are begun
in two seconds. What takes long for its own length is not. A burst is a demand that is at least twice what it was in the
minute before anything was late. A minute counts by its mean, so that a batch which is posted at once, worth many
replicas for five seconds, keeps few. A demand that was met in time, however high, keeps nothing, and neither does a
backlog or a margin.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from octavo_operator.autoscale.core.values import Sample

__all__ = ["SHARE", "Budget", "Came", "Minute", "came"]

LATE_SECONDS = 2.0
"""Whose first token takes longer is late."""

SHARE = 0.01
"""Of the requests so many may be late."""

MINUTE = 60.0

BURST = 2.0
"""How many times the demand before is a burst. Who is late by less was a replica or two short, as happens where each
minute is off by some: that is a matter of the margin, and no reason to keep the peak for an hour."""

LEAST_SECONDS = 30.0
"""Of a minute so many must have been measured for its mean to count."""


@dataclass(frozen=True, slots=True)
class Came:
    """Requests that came, and those of them that were late."""

    requests: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in a minute.

    Attributes:
        begin: of it.
        seconds: of it that were measured.
        work: demand in replicas' worth, times the seconds that it lasted.
        requests: that came.
        late: those of them that were late.
    """

    begin: float
    seconds: float = 0.0
    work: float = 0.0
    requests: float = 0.0
    late: float = 0.0

    @property
    def demand(self) -> float:
        """Its mean."""
        return self.work / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The minutes of the time that the budget is for."""

    minutes: tuple[Minute, ...] = ()

    def see(self, now: float, seconds: float, demand: float, fresh: Came, window: float) -> "Budget":
        """Takes in what happened until now.

        Args:
            now: the time.
            seconds: for which the demand is taken to have lasted.
            demand: in replicas' worth.
            fresh: what came since the last time.
            window: seconds that the budget is for; 0: there is none.
        """
        minutes = tuple(one for one in self.minutes if now - one.begin < window)
        if window <= 0:
            return Budget()
        if not minutes or now - minutes[-1].begin >= MINUTE:
            minutes = (*minutes, Minute(now))
        last = minutes[-1]
        last = replace(
            last,
            seconds=last.seconds + seconds,
            work=last.work + demand * seconds,
            requests=last.requests + fresh.requests,
            late=last.late + fresh.late,
        )
        return Budget((*minutes[:-1], last))

    def late(self, window: float) -> float:
        """The share that was late of what comes in a window; a shorter time is taken to be a sample of one."""
        seconds = sum(one.seconds for one in self.minutes)
        requests = sum(one.requests for one in self.minutes)
        if requests <= 0 or seconds <= 0:
            return 0.0
        return sum(one.late for one in self.minutes) / (requests * max(1.0, window / seconds))

    def worth(self) -> float:
        """Demand in the busiest late minute of a burst; 0 where there is none.

        The minute after a late one counts, too: in what a jump falls into, or ends, its demand is part of the mean only.
        """
        worth = usual = 0.0
        was_late = False
        for one in self.minutes:
            is_late = one.late > SHARE * one.requests
            is_burst = one.demand >= BURST * usual
            if (is_late or was_late) and is_burst and one.seconds >= LEAST_SECONDS:
                worth = max(worth, one.demand)
            if not is_late:
                usual = one.demand
            was_late = is_late
        return worth


def came(fresh: Iterable[Sequence[Sample]], rate: float) -> Came:
    """What came to pods between two samples of each.

    Args:
        fresh: both of each.
        rate: requests a second that a full replica ends, and so begins; 0: that is not known.
    """
    requests = late = 0.0
    for first, last in fresh:
        refused = last.refused - first.refused
        taken = last.finished - first.finished + last.running - first.running + last.waiting - first.waiting
        taken = max(0.0, taken)  # what runs and waits was not counted at the very same moment
        requests += taken + refused
        late += refused
        if (first.waiting + last.waiting) / 2 > rate * LATE_SECONDS > 0:
            late += taken
    return Came(requests, late)
