"""How a Deployment's controller moves pods between revisions: the rules of kube-controller-manager 1.34."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

__all__ = ["next_sizes", "victims"]


class _Pod(Protocol):
    @property
    def placed(self) -> bool: ...

    @property
    def ready(self) -> bool: ...


P = TypeVar("P", bound=_Pod)


def next_sizes(
    sizes: Mapping[str, int], applied: str, available: Mapping[str, int], *, wanted: int, strategy: tuple[int, int]
) -> dict[str, int]:
    """One sync of a rolling update: how many pods each ReplicaSet should have.

    Args:
        sizes: how many it should have so far, by revision.
        applied: the revision of the Deployment's template.
        available: ready pods by revision.
        wanted: replicas of the Deployment.
        strategy: maxSurge and maxUnavailable.
    """
    surge, unavailable = strategy
    sizes = {applied: 0} | dict(sizes)
    sizes[applied] = min(sizes[applied], wanted)
    total, new = sum(sizes.values()), sizes[applied]
    room = min(wanted + surge - total, wanted - new)
    if room > 0:
        sizes[applied] += room
        return sizes
    floor = wanted - unavailable
    spare = total - floor - (new - available.get(applied, 0))
    if spare <= 0:
        return sizes
    old = [revision for revision in sizes if revision != applied]
    for revision in old:
        sick = min(spare, max(0, sizes[revision] - available.get(revision, 0)))
        sizes[revision] -= sick
        spare -= sick
    surplus = sum(available.values()) - floor
    for revision in old:
        gone = min(max(0, surplus), sizes[revision])
        sizes[revision] -= gone
        surplus -= gone
    return sizes


def victims(pods: Iterable[P], size: int) -> list[P]:
    """The pods of one ReplicaSet that are too many: those without a node go first, then those that are not ready."""
    present = sorted(pods, key=lambda pod: (pod.placed, pod.ready))
    return present[: max(0, len(present) - size)]
