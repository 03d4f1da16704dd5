"""Notices that something else sets the replicas too.

A person who types `kubectl scale` once is heeded, as far as the bounds allow. Something that comes back again and again
is another autoscaler; two of them would push the number to and fro, and pods with it. Then ours is the one that gives
way, and says so.
"""

from dataclasses import dataclass

__all__ = ["Rival"]

CHANGES = 3
"""So many changes by others after ours within the window are no person's."""

WINDOW_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Rival:
    """What others did with the number of replicas.

    Attributes:
        ours: the last number that was set by us or accepted from others.
        is_ours: whether that number was set by us, so that another one now contradicts it.
        changes: when others contradicted.
    """

    ours: int | None = None
    is_ours: bool = False
    changes: tuple[float, ...] = ()

    def see(self, replicas: int, now: float) -> "Rival":
        """Takes in the present number."""
        changes = tuple(time for time in self.changes if now - time < WINDOW_SECONDS)
        if replicas == self.ours:
            return Rival(self.ours, self.is_ours, changes)
        return Rival(replicas, False, (*changes, now) if self.is_ours else changes)

    def wrote(self, replicas: int) -> "Rival":
        """The number was set by us."""
        return Rival(replicas, True, self.changes)

    @property
    def is_there(self) -> bool:
        """Whether something else keeps setting the number."""
        return len(self.changes) >= CHANGES
