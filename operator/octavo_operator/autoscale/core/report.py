"""What the autoscaler tells of one InferenceService, for its status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.autoscale.core.values import Decision, Verdict

__all__ = ["Load", "Report", "Scaled", "because", "stored_load", "worth_telling"]

TELL_SECONDS = 60.0
TELL_POINTS = 10
TELL_REQUESTS = 10


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the pods are.

    Attributes:
        cache_usage: percent of the KV cache in use, as a mean over the pods.
        queue_length: requests that wait in all pods.
    """

    cache_usage: int
    queue_length: int


@dataclass(frozen=True, slots=True)
class Scaled:
    """One change of replicas.

    Attributes:
        time: when, as the status shows it.
        before: replicas before.
        after: replicas after.
        decision: what led to it.
    """

    time: str
    before: int
    after: int
    decision: Decision

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        return because(self.decision)


@dataclass(frozen=True, slots=True)
class Report:
    """The present state.

    Attributes:
        decision: the last one.
        load: the last load that was worth telling; None before the first sample.
        scaled: the last change; None when there was none since this operator leads.
        rivalled: whether something else keeps setting replicas, so that nothing is written.
        trouble: why a pod gave no sample; empty when all did.
    """

    decision: Decision
    load: Load | None
    scaled: Scaled | None
    rivalled: bool
    trouble: str


def stored_load(status: Mapping[str, Any]) -> Load | None:
    """The load that an InferenceService's status tells, an earlier operator's included; None when it tells none."""
    if "cacheUsage" not in status or "queueLength" not in status:
        return None
    return Load(status["cacheUsage"], status["queueLength"])


def worth_telling(told: Load | None, told_at: float, load: Load, now: float) -> bool:
    """Whether the status shall be written anew: a quiet service is written to not at all, a busy one once a minute."""
    if told is None:
        return True
    if now - told_at < TELL_SECONDS:
        return False
    far = abs(load.cache_usage - told.cache_usage) >= TELL_POINTS
    return (
        far
        or abs(load.queue_length - told.queue_length) >= TELL_REQUESTS
        or (load == Load(0, 0)) != (told == Load(0, 0))
    )


def because(decision: Decision) -> str:
    """Why, in a sentence, with the figures that led to it."""
    demand = f"{decision.demand:.1f} replicas' worth of work"
    match decision.verdict:
        case Verdict.DEMAND:
            return f"{demand} come in"
        case Verdict.TREND:
            return f"{demand} come in, and {decision.expected:.1f} are expected when a new pod serves"
        case Verdict.BACKLOG:
            return f"{demand} come in, and {decision.backlog:.0f} requests wait beyond what may"
        case Verdict.ENOUGH:
            return f"{demand} come in, and for the last minutes {decision.kept} were enough"
        case Verdict.OUT_OF_BOUNDS:
            return "it was outside minReplicas and maxReplicas"
        case Verdict.STABILIZING:
            return f"{demand} come in; {decision.needed} would be enough, if that lasts"
        case Verdict.LATE:
            return (
                f"{demand} come in; {decision.kept} replicas stay, since {decision.late:.1%} of the requests were late"
            )
        case Verdict.SOME_METRICS:
            return f"{demand} come in as far as is known: {decision.silent} ready pods do not answer"
        case Verdict.NO_METRICS:
            return "no pod tells its load"
