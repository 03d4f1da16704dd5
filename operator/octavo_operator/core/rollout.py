"""How a Deployment replaces its pods: the next maxSurge and maxUnavailable of a rollout of type Auto.

The Deployment controller does the work; nothing here creates or deletes a pod. Invariants, for a revision that is sound
(tests/operator_tests/test_rollout_simulation.py holds them in any order of events):

- Room for one more pod: as many pods stay ready as are wanted. Surge 1, unavailable 0.
- No room: when a new pod has found no node for 20 s, while nothing else of the rollout moved, one ready pod makes room
  for it. Surge 0, until the rollout is over; then surge is tried again. One at a time: the next goes when the new pod is
  ready. This holds for a single pod on the last GPU, and for more pods wanted than there is room for.
- Whoever leaves is waited for first: a pod within its grace period still holds its GPU and will free it.
- A broken old revision is in nobody's way: when no old pod has been ready for 20 s, all of them may go at once; and a
  broken old pod makes room before a ready one does.
- A new pod that has a node and is not ready yet keeps every ready old pod alive, however long it takes: a broken new
  revision costs one pod at most.
- News may be late: a step that lets more pods be missing is decided again from a fresh list (`costs_pods`).
- When no old pod is left and none is starting or leaving, the answer is surge 1, unavailable 0, whatever it was before.

`paused` is always false (desired.py): whoever pauses the Deployment by hand would hold up every later edit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from octavo_operator.api.names import TEMPLATE_LABEL, Manifest

__all__ = ["PATIENCE_SECONDS", "Replica", "Stall", "Step", "costs_pods", "next_step", "replicas_of", "surge_of"]

PATIENCE_SECONDS = 20.0
"""How long a pod may find no node, or not be ready, before a ready one makes room for it, or it counts as broken."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod as a rollout sees it.

    Attributes:
        uid: its identity.
        is_new: whether it is of the template that is wanted.
        is_ready: whether it answers.
        is_placed: whether it has a node.
        is_leaving: whether it is being deleted.
        unready_seconds: for how long it has not been ready; 0 when it is.
    """

    uid: str
    is_new: bool
    is_ready: bool = False
    is_placed: bool = False
    is_leaving: bool = False
    unready_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A rollout in which nothing moves.

    Attributes:
        pods: the uids of its pods; when they are others, something has moved.
        since: when this was seen first, in seconds.
    """

    pods: frozenset[str]
    since: float


@dataclass(frozen=True, slots=True)
class Step:
    """What the Deployment should have now.

    Attributes:
        max_surge: pods above the wanted number.
        max_unavailable: pods below it.
        stall: to be given to the next call; forgetting it costs 20 s at most.
        look_again_after: seconds after which time alone may change the answer, or None.
        why: the reason, for people.
    """

    max_surge: int = 1
    max_unavailable: int = 0
    stall: Stall | None = None
    look_again_after: float | None = None
    why: str = "nothing is being replaced"


def next_step(
    wanted: int,
    pods: Sequence[Replica],
    *,
    refused: bool,
    current: tuple[int, int] | None,
    stall: Stall | None,
    now: float,
) -> Step:
    """Decides from what is there.

    Args:
        wanted: how many pods the Deployment should have.
        pods: its pods, those that are leaving included.
        refused: whether the API server refuses to create pods, as a quota does.
        current: maxSurge and maxUnavailable that the Deployment has; None when they are not numbers of ours.
        stall: of the last step.
        now: seconds on the clock of `stall`.
    """
    staying = [pod for pod in pods if not pod.is_leaving]
    old = [pod for pod in staying if not pod.is_new]
    new = [pod for pod in staying if pod.is_new]
    ready = sum(pod.is_ready for pod in staying)
    moves = len(staying) < len(pods) or any(pod.is_placed and not pod.is_ready for pod in new)
    surge, unavailable = current if current is not None and current[0] == 0 else (1, 0)
    if not old:
        # An edit before the new pod serves finds no more room than this rollout did.
        is_over = not moves and (ready > 0 or not new)
        return (
            Step()
            if is_over
            else Step(surge, unavailable, why="no old pod is left, and the new ones do not answer yet")
        )
    why = "a new pod starts before an old one stops"
    if surge == 0:
        why = "this rollout has found no room for one more pod"
        # Pods that became ready since, so that fewer need to be missed; none more while something moves.
        unavailable = _within(min(unavailable, wanted - ready + (0 if moves else 1)), wanted)
    waits = refused or any(not pod.is_placed for pod in new)
    timers: list[float] = []
    if waits and not moves:
        names = frozenset(pod.uid for pod in staying)
        stall = stall if stall is not None and stall.pods == names else Stall(names, now)
        timers.append(stall.since + PATIENCE_SECONDS - now)
        if timers[0] <= 0:
            broken_holds_room = any(pod.is_placed and not pod.is_ready for pod in old)
            surge, unavailable = 0, _within(wanted - ready + (0 if broken_holds_room else 1), wanted)
            hindrance = "the API server has refused one more pod" if refused else "a new pod has found no node"
            leaver = "an old pod that is not ready" if broken_holds_room else "a ready old pod"
            why = f"{hindrance} for {PATIENCE_SECONDS:.0f} s, while nothing else moved: {leaver} makes room"
    else:
        stall = None
    if not any(pod.is_ready for pod in old):
        timers.append(PATIENCE_SECONDS - min(pod.unready_seconds for pod in old))
        if timers[-1] <= 0:
            unavailable = max(wanted, 1 - surge)
            why = f"no old pod has been ready for {PATIENCE_SECONDS:.0f} s: all of them may go"
    waiting = [timer for timer in timers if timer > 0]
    return Step(surge, unavailable, stall, min(waiting) if waiting else None, why)


def costs_pods(step: Step, current: tuple[int, int] | None) -> bool:
    """Whether a step lets more pods be missing than the Deployment does now.

    Args:
        step: what is to be applied.
        current: maxSurge and maxUnavailable that the Deployment has; None when they are not numbers.
    """
    return step.max_unavailable > (current[1] if current is not None else 0)


def _within(unavailable: int, wanted: int) -> int:
    """A number that the API server takes beside surge 0, and that is no larger than the number of pods."""
    return max(1, min(unavailable, wanted))


def replicas_of(pods: Iterable[Manifest], template: str, now: datetime) -> tuple[Replica, ...]:
    """The pods that a rollout is about: made from one of our templates, and not over.

    Args:
        pods: the pods of one InferenceService.
        template: the digest in the label of the template that is wanted.
        now: the time.
    """
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod["status"]
        label = metadata.get("labels", {}).get(TEMPLATE_LABEL)
        leaves_at = metadata.get("deletionTimestamp")  # the end of its grace period
        if label is None or (leaves_at is None and status.get("phase") in {"Succeeded", "Failed"}):
            continue
        if leaves_at is not None and _seconds_since(leaves_at, now) > PATIENCE_SECONDS:
            continue  # its node is lost: nobody knows when it goes
        conditions = {one["type"]: one for one in status.get("conditions", ())}
        ready, placed = (conditions.get(kind, {"status": "False"}) for kind in ("Ready", "PodScheduled"))
        is_ready = ready["status"] == "True"
        since = ready.get("lastTransitionTime") or metadata["creationTimestamp"]
        found.append(
            Replica(
                uid=metadata["uid"],
                is_new=label == template,
                is_ready=is_ready,
                is_placed=placed["status"] == "True",
                is_leaving=leaves_at is not None,
                unready_seconds=0.0 if is_ready else _seconds_since(since, now),
            )
        )
    return tuple(found)


def surge_of(deployment: Manifest | None) -> tuple[int, int] | None:
    """MaxSurge and maxUnavailable of a Deployment, where both are numbers."""
    rolling = deployment["spec"].get("strategy", {}).get("rollingUpdate", {}) if deployment else {}
    surge, unavailable = rolling.get("maxSurge"), rolling.get("maxUnavailable")
    return (surge, unavailable) if isinstance(surge, int) and isinstance(unavailable, int) else None


def _seconds_since(moment: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(moment)).total_seconds()
