"""When to stop writing against somebody: two that put the same thing right again and again would never end."""

from dataclasses import dataclass

__all__ = ["REPAIRS_PER_MINUTE", "Contest"]

REPAIRS_PER_MINUTE = 10
"""How often one thing is put right within a minute. Whoever changes it more often is another controller. Each repair of
a Deployment leaves a ReplicaSet, and each of a status wakes everyone who watches the object."""


@dataclass(slots=True)
class Contest:
    """The latest repairs of one thing, the oldest first. Times are seconds on any monotonic clock."""

    repairs: tuple[float, ...] = ()

    def repaired(self, now: float) -> None:
        """Takes note of a repair that was done: attempts while the API server is away are nobody's contest."""
        self.repairs = (*self.repairs, now)[-REPAIRS_PER_MINUTE:]

    def seconds_left(self, now: float) -> float:
        """How long to let it be; 0 when it may be put right."""
        if len(self.repairs) < REPAIRS_PER_MINUTE:
            return 0.0
        return max(0.0, self.repairs[0] + 60 - now)
