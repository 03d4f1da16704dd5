"""What waits, and how many replicas more than demand asks for work it off.

What waits in a pod stays there. Until the pod has worked it off all that comes goes to the others, and where these are
too few they are swamped one after the other. So what counts is what will wait when the next pod serves, since sooner
nobody can help. It shall be gone in the time that a pod takes to start (where that is long, most of it has gone by
then), and while more and more wait one replica is added at least; but never more than there are pods with a queue. With
so many the others can take all that comes, and those with a queue need as long for it however many there are.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from octavo_operator.autoscale.core.values import Sample, Settings

__all__ = ["SURE", "Backlog", "Growth", "backlog_of", "ends_of", "growth_of"]

SURE = 3.0
"""Standard deviations that chance may add to the growth of the queues: less is sure."""

DRAIN_SECONDS = (30.0, 120.0)
"""In which time a backlog shall be gone at least and at most; between the two, while a pod starts."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Requests a second by which the queues grow; negative when they shrink.

    Attributes:
        whole: or would grow, if they were not full.
        queued: what of that waits: who was refused does not.
        chance: a standard deviation of it. Requests that come and end at random vary by the root of their number.
    """

    whole: float
    queued: float
    chance: float

    @property
    def sure(self) -> float:
        """What of the whole chance does not explain."""
        return self.whole - SURE * self.chance


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that wait beyond what may.

    Attributes:
        now: so many.
        later: when the next pod serves.
        pods: those that have a queue.
    """

    now: float
    later: float
    pods: int

    def replicas(self, rate: float, startup: float) -> float:
        """Replicas that work it off.

        Args:
            rate: requests a second that a full replica ends; 0: that is not known.
            startup: seconds until a pod serves.
        """
        if self.now <= 0:
            return 0.0
        if rate <= 0:
            return self.most()
        least_seconds, most_seconds = DRAIN_SECONDS
        seconds = min(max(least_seconds, startup), most_seconds)
        return min(self.most(), max(self.later / (rate * seconds), 1.0 if self.later > self.now else 0.0))

    def most(self, silent: int = 0) -> float:
        """At most so many; `silent` pods may have a queue, too."""
        return float(max(1, self.pods + silent))


def ends_of(samples: Sequence[Sample], seconds: float) -> tuple[Sample, Sample]:
    """The first and the last sample of the last seconds; of those that are further apart the last two."""
    last = samples[-1]
    return next((one for one in samples[:-1] if last.time - one.time <= seconds), samples[-2:][0]), last


def growth_of(usable: Iterable[Sequence[Sample]], seconds: float) -> Growth:
    """How the queues of pods grow, by each one's samples of the last seconds."""
    whole = queued = variance = 0.0
    for samples in usable:
        first, last = ends_of(samples, seconds)
        span = last.time - first.time
        if span > 0:
            waited = last.waiting - first.waiting
            grown = waited + last.refused - first.refused
            queued += waited / span
            whole += grown / span
            variance += (abs(grown) + 2 * (last.finished - first.finished)) / span**2
    return Growth(whole, queued, math.sqrt(variance))


def backlog_of(settings: Settings, newest: Collection[Sample], serving: int, growth: Growth, seconds: float) -> Backlog:
    """What waits now and when the next pod serves.

    Args:
        settings: what may wait.
        newest: sample of each pod that answers.
        serving: pods, those that do not answer too.
        growth: of the queues. What chance explains is none.
        seconds: until the next pod serves.
    """
    now = max(0.0, sum(one.waiting for one in newest) - settings.target_queue * serving)
    grown = growth.queued * seconds if growth.queued > SURE * growth.chance else 0.0
    later = max(now, min(now + grown, sum(one.queue_limit for one in newest)))
    return Backlog(now, later, pods=sum(one.waiting > settings.target_queue for one in newest))
