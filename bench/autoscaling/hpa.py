"""The autoscalers that are an HPA: with pods' metrics, behind KEDA, and as production-stack's operator sets it up.

kubernetes/kubernetes pkg/controller/podautoscaler (replica_calculator.go, horizontal.go) and the page
`horizontal-pod-autoscale` of kubernetes/website: every 15 s, tolerance 0.1, `ceil(pods x ratio)`; a pod without a metric
counts as full on the way down and as empty on the way up, and where that turns the direction, nothing changes; of
several metrics the largest count wins, and one that fails blocks the way down only; up at most the larger of 4 pods and
100 % in 15 s; down to the largest recommendation of the last 300 s. A pod that starts does not answer: it is one without
a metric. Metrics are as fresh as the scrapes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.autoscaling.policy import PodView, Sample, answered, in_service

__all__ = [
    "External",
    "Hpa",
    "KeepAlive",
    "PodsMetric",
    "Rates",
    "cache_usage",
    "keda",
    "production_stack",
    "requests",
    "running",
    "waiting",
]

_TOLERANCE = 0.1
_PERIOD = 15.0


class Metric(Protocol):
    """A metric's recommendation."""

    def observe(self, now: float, pods: Sequence[PodView]) -> None:
        """Sees every round of scrapes, as Prometheus does."""
        ...

    def recommend(self, now: float, desired: int, pods: Sequence[PodView]) -> int | None:
        """Replicas; None: the metric failed."""
        ...


def cache_usage(sample: Sample) -> float:
    return sample.cache_usage


def waiting(sample: Sample) -> float:
    return sample.waiting


def running(sample: Sample) -> float:
    return sample.running


def requests(sample: Sample) -> float:
    return sample.running + sample.waiting


@dataclass(frozen=True, slots=True)
class PodsMetric:
    """An average over the pods (`type: Pods`): calcPlainMetricReplicas."""

    read: Callable[[Sample], float]
    target: float

    def observe(self, now: float, pods: Sequence[PodView]) -> None:
        """Needs no history."""

    def recommend(self, now: float, desired: int, pods: Sequence[PodView]) -> int | None:
        values = [self.read(sample) for _, sample in answered(pods, now)]
        missing = len(in_service(pods)) - len(values)
        if not values:
            return None
        ratio = sum(values) / len(values) / self.target
        if not missing:
            return desired if abs(ratio - 1) <= _TOLERANCE else _ceil(ratio * len(values))
        total = sum(values) + (missing * self.target if ratio < 1 else 0.0)
        corrected = total / (len(values) + missing) / self.target
        if abs(corrected - 1) <= _TOLERANCE or (ratio < 1) != (corrected < 1):
            return desired
        replicas = _ceil(corrected * (len(values) + missing))
        return desired if (corrected < 1) != (replicas < desired) else replicas


@dataclass(frozen=True, slots=True)
class External:
    """A total by what one replica should have of it (`AverageValue`): GetExternalPerPodMetricReplicas.

    KEDA's Prometheus scaler answers an empty result with 0 (`ignoreNullValues`, true by default; keda#3065, keda#7576):
    pods whose scrape was lost are missing in the sum, and without any the metric says that there is nothing to do. Its
    fallback is off by default.
    """

    read: Callable[[Sample], float]
    target: float

    def observe(self, now: float, pods: Sequence[PodView]) -> None:
        """Needs no history."""

    def recommend(self, now: float, desired: int, pods: Sequence[PodView]) -> int | None:
        return _by_total(sum(self.read(sample) for _, sample in answered(pods, now)), self.target, pods, desired)


@dataclass(slots=True)
class Rates:
    """A sum of rates over a minute by what one replica should have of it: `sum(rate(counter[1m]))` in KEDA."""

    read: Callable[[Sample], float]
    target: float
    _seen: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def observe(self, now: float, pods: Sequence[PodView]) -> None:
        """Keeps a minute of each pod's counter; a range has no gap where one scrape was lost."""
        for pod, sample in answered(pods, now):
            seen = self._seen.setdefault(pod.uid, deque())
            seen.append((now, self.read(sample)))

    def recommend(self, now: float, desired: int, pods: Sequence[PodView]) -> int | None:
        total = 0.0
        for seen in self._seen.values():
            while seen and seen[0][0] <= now - 60.0:
                seen.popleft()
            if len(seen) > 1:
                total += (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
        return _by_total(total, self.target, pods, desired)


class KeepAlive:
    """1 while the router gets requests, with the target 1 (`Value`): GetExternalMetricReplicas, within the tolerance.

    It is meant for the way to zero. But what it recommends while there is traffic is the count that there is, and the
    largest recommendation wins: nothing ever scales down while there is traffic.
    """

    def observe(self, now: float, pods: Sequence[PodView]) -> None:
        """The router is scraped on its own; no pod's loss touches it."""

    def recommend(self, now: float, desired: int, pods: Sequence[PodView]) -> int | None:  # noqa: ARG002 - always traffic
        return desired


def _by_total(total: float, target: float, pods: Sequence[PodView], desired: int) -> int:
    count = len(in_service(pods))
    if abs(total / (target * count) - 1) <= _TOLERANCE:
        return desired
    return _ceil(total / target)


def _ceil(value: float) -> int:
    """Three is three, also where floats make it a little more: HPA counts in thousandths."""
    return math.ceil(value - 1e-6)


@dataclass(frozen=True, slots=True)
class Limit:
    """How far the count may move within a period."""

    pods: int
    share: float
    period: float


_UP = Limit(pods=4, share=1.0, period=15.0)
_DOWN = Limit(pods=0, share=1.0, period=15.0)


class Hpa:
    """A HorizontalPodAutoscaler.

    Args:
        metrics: Its metrics.
        up: How far up in a period: the larger of its two ways.
        down: How far down in a period.
        down_window: Seconds whose largest recommendation holds on the way down.
    """

    interval = 5.0  # it sees every scrape, and decides every 15 s

    def __init__(self, *metrics: Metric, up: Limit = _UP, down: Limit = _DOWN, down_window: float = 300.0) -> None:
        self._metrics = metrics
        self._up, self._down, self._down_window = up, down, down_window
        self._wanted: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        for metric in self._metrics:
            metric.observe(now, pods)
        if now % _PERIOD:
            return desired
        if not self._wanted:  # its first recommendation is what it finds
            self._wanted.append((now, desired))
        found = [metric.recommend(now, desired, pods) for metric in self._metrics]
        known = [replicas for replicas in found if replicas is not None]
        if not known or (len(known) < len(found) and max(known) < desired):
            return desired
        wanted = self._limited(now, desired, self._stabilized(now, desired, max(known)))
        if wanted != desired:
            self._changes.append((now, wanted - desired))
        return wanted

    def _stabilized(self, now: float, desired: int, wanted: int) -> int:
        while self._wanted and self._wanted[0][0] <= now - self._down_window:
            self._wanted.popleft()
        self._wanted.append((now, wanted))
        if wanted > desired:
            return wanted
        return min(desired, max(replicas for _, replicas in self._wanted))

    def _limited(self, now: float, desired: int, wanted: int) -> int:
        if wanted > desired:
            before = desired - self._changed(now, self._up, up=True)
            return max(desired, min(wanted, before + max(self._up.pods, math.ceil(before * self._up.share))))
        before = desired - self._changed(now, self._down, up=False)
        return min(desired, max(wanted, before - max(self._down.pods, math.floor(before * self._down.share))))

    def _changed(self, now: float, limit: Limit, *, up: bool) -> int:
        """By how much the count moved that way within the period."""
        return sum(change for time, change in self._changes if time > now - limit.period and (change > 0) == up)


def keda() -> Hpa:
    """A ScaledObject on the sum of the waiting requests, 5 for each replica.

    vllm-project/production-stack a6c01db, helm/templates/scaledobject-vllm.yaml has that trigger as its default. Its
    query lacks the sum, and KEDA refuses a result of several series: with a second pod it would fail. It has the sum
    here.
    """
    return Hpa(External(waiting, 5.0))


def production_stack() -> Hpa:
    """The ScaledObject that production-stack's operator makes, with its defaults.

    vllm-project/production-stack a6c01db, operator/internal/controller/vllmruntime_controller.go (reconcileScaledObject)
    and config/samples/production-stack_v1alpha1_vllmruntime_autoscaling.yaml: for each replica 5 running requests, 100
    generated and 100 prompt tokens per second, and the keep-alive; one pod up in 60 s, one down in 60 s.
    """
    one = Limit(pods=1, share=0.0, period=60.0)
    return Hpa(
        KeepAlive(),
        External(running, 5.0),
        Rates(lambda sample: sample.generation_tokens, 100.0),
        Rates(lambda sample: sample.prompt_tokens, 100.0),
        up=one,
        down=one,
    )
