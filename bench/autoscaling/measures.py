"""What a run is judged by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.autoscaling.simulation import Decision, Run
from bench.autoscaling.traces import HOUR

__all__ = ["Measures", "measure"]

_TTFT = 2.0


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one run, or the mean of several.

    Attributes:
        violations: Share of the requests whose first token took more than 2 s, or did not come in 2 s; refused ones too.
        gpu_hours: Of all pods, from creation until they are gone.
        overshoot: Most replicas asked for, beyond the load's highest worth.
        flaps: Changes of the count against the direction of the change before.
        decision_seconds: From the first saturation after a rise of the load to the decision to have more; the worst of
            the rises; infinite: never; -1: the load does not rise at once.
        lost_scale_downs: Reductions that complete data would not have caused, to fewer replicas than the load was worth.
    """

    violations: float
    gpu_hours: float
    overshoot: float
    flaps: float
    decision_seconds: float
    lost_scale_downs: float


def measure(run: Run) -> Measures:
    """Judges a run."""
    demand = run.demand
    late = int(np.sum(np.minimum(demand.first_token, HOUR) - np.asarray(demand.arrivals) > _TTFT))
    # A refused request waits for ever, so it is late already but for those of the last two seconds.
    peak = max([run.initial, *(decision.after for decision in run.decisions)])
    return Measures(
        violations=late / max(1, len(demand.arrivals)),
        gpu_hours=sum(gone - max(0.0, created) for created, _, gone in run.lives) / 3600,
        overshoot=peak - math.ceil(max(_smooth(run.worth))),
        flaps=_flaps(run.decisions),
        decision_seconds=_decision_seconds(run),
        lost_scale_downs=sum(_lost(run, decision) for decision in run.decisions),
    )


def _smooth(worth: Sequence[float]) -> list[float]:
    """Means of a minute: no replica is needed for less."""
    return [sum(worth[start : start + 60]) / 60 for start in range(0, len(worth), 60)]


def _flaps(decisions: Sequence[Decision]) -> int:
    directions = [decision.after > decision.before for decision in decisions]
    return sum(before != after for before, after in itertools.pairwise(directions))


def _lost(run: Run, decision: Decision) -> bool:
    fewer = decision.after < decision.before <= decision.shadow
    return fewer and decision.after < run.worth[min(len(run.worth) - 1, int(decision.time))]


def _decision_seconds(run: Run) -> float:
    worth = run.worth
    rises = [second for second in range(1, len(worth)) if worth[second] >= worth[second - 1] + 2]
    if not rises or any(worth[second] != worth[second - 1] for second in range(1, rises[0])):
        return -1.0
    return max(_after(run, float(rise)) for rise in rises)


def _after(run: Run, rise: float) -> float:
    saturated = next((time for time, waiting, ready in run.waiting if time >= rise and waiting >= ready), None)
    if saturated is None:
        return 0.0
    # A decision between rise and saturation came before it was needed.
    decided = (
        decision.time for decision in run.decisions if decision.time >= rise and decision.after > decision.before
    )
    return max(0.0, next(decided, math.inf) - saturated)
