"""What a decision is made of, and what it says. Times are seconds on one clock; which one does not matter."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Decision", "Pod", "Sample", "Settings", "Verdict"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user wants.

    Attributes:
        min_replicas: least replicas.
        max_replicas: most replicas.
        target_cache: share of the KV cache that a replica should use at most, 0 to 1.
        target_queue: requests that may wait per replica.
        stabilization: seconds that demand must have been lower before a replica goes.
        after_late: seconds for which replicas stay that too many late requests asked for; 0: not at all.
        slots: sequences that a replica runs at once at most.
        startup: seconds from a pod's creation until it serves, as long as none was seen.
    """

    min_replicas: int
    max_replicas: int
    target_cache: float = 0.8
    target_queue: float = 5.0
    stabilization: float = 300.0
    after_late: float = 3600.0
    slots: int = 64
    startup: float = 120.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one pod said of itself, once. Counters run since the pod started.

    Attributes:
        time: when.
        running: sequences that run.
        waiting: requests that wait.
        cache_usage: share of the KV cache in use, 0 to 1.
        finished: requests that have ended.
        generated: tokens that were generated.
        refused: requests that found a full queue.
        queue_limit: requests that may wait; more are refused. What a runtime has that does not tell.
    """

    time: float
    running: float
    waiting: float
    cache_usage: float
    finished: float
    generated: float
    refused: float
    queue_limit: float = 1024.0


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that was made for the service.

    Attributes:
        uid: its identity: a new pod under an old name is another one.
        created: when it was created.
        ready_at: when it became ready; None while it is not.
        leaving: whether it is being deleted: it gets no new requests and counts neither as capacity nor as load.
        sample: the last sample that came in and made sense, if any did.
    """

    uid: str
    created: float
    ready_at: float | None
    leaving: bool = False
    sample: Sample | None = None


class Verdict(StrEnum):
    """Why a number of replicas was chosen; also the reason of the condition ScalingActive."""

    DEMAND = "Demand"
    BACKLOG = "Backlog"
    TREND = "Trend"
    ENOUGH = "Enough"
    STABILIZING = "Stabilizing"
    LATE = "Late"
    OUT_OF_BOUNDS = "OutOfBounds"
    NO_METRICS = "NoMetrics"
    SOME_METRICS = "SomeMetrics"


@dataclass(frozen=True, slots=True)
class Decision:
    """A number of replicas, and what led to it.

    Attributes:
        replicas: how many there shall be.
        verdict: why.
        demand: replicas' worth of work that comes in now, smoothed.
        expected: the same when a pod that is created now would serve.
        spread: how much demand varies, as a standard deviation.
        backlog: requests that wait beyond what may.
        answered: pods with a usable sample.
        silent: ready pods without one.
        needed: replicas that this moment asks for.
        kept: replicas that the last minutes asked for, or that stay since too many requests were late.
        busiest: the highest load of a pod: 1 is full.
        late: share of the requests of the last hour, or what the settings have instead of it, that were late.
    """

    replicas: int
    verdict: Verdict
    demand: float
    expected: float
    spread: float
    backlog: float
    answered: int
    silent: int
    needed: int
    kept: int
    busiest: float
    late: float
