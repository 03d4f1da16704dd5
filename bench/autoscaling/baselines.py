"""Autoscalers to compare with that are no HPA: each one's documented rule and defaults, with its source.

Where the code does something else than its description, the code counts, and a comment says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from bench.autoscaling.policy import SCRAPE_SECONDS, PodView, answered, in_service

__all__ = ["Apa", "Constant", "Kpa", "KubeAI", "SaturationV1", "Seen"]


_ALL = 10


class Constant:
    """As many replicas as it is told."""

    interval = 15.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:  # noqa: ARG002 - it looks at nothing
        return self._replicas


class Seen:
    """How late one is who foresees nothing, but sees the load exactly, and answers what is too much with everything.

    It is told the load of every second that has passed, and keeps replicas for 1/0.95 of the highest. Once the load is
    more than it has asked for, it asks for all. It lets none go. So it is no autoscaler: it says what is possible for
    whoever must see load before asking for replicas, at any cost.

    Args:
        worth: The load of each second, in replicas' worth.
    """

    interval = SCRAPE_SECONDS

    def __init__(self, worth: Sequence[float]) -> None:
        self._worth = worth

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:  # noqa: ARG002 - it knows the load
        highest = max(self._worth[: int(now)], default=0.0)
        return _ALL if highest > desired else max(desired, math.ceil(highest / 0.95))


class KubeAI:
    """Mean of the active requests over ten minutes, by the requests that one replica should have.

    substratusai/kubeai 2f32ef4, internal/modelautoscaler/autoscaler.go and internal/modelclient/scale.go; interval 10 s,
    window 10 min, targetRequests 100 and scaleDownDelaySeconds 30 are its defaults. A tick in which a proxy does not
    answer is skipped. Its proxies hold the requests, so that what is asked of them is what the pods have; here the
    oldest pod's scrape stands for the one proxy's: lost, it loses the tick.

    A replica of the pinned machine has 64 slots, so 100 means that a third of the requests always wait; `target` lets
    a run ask for what fits.
    """

    interval = 10.0

    def __init__(self, target: float = 100.0, window: float = 600.0, down_delay: float = 30.0) -> None:
        # The window begins full of zeros, as theirs.
        count = math.ceil(window / self.interval)
        self._requests = deque([0.0] * count, maxlen=count)
        self._target = target
        self._needed = math.ceil(down_delay / self.interval)
        self._lower = 0

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        first = pods[0].sample
        if first is None or now - first.time >= SCRAPE_SECONDS:
            return desired
        samples = [pod.sample for pod in pods if pod.sample is not None]
        self._requests.append(sum(sample.running + sample.waiting for sample in samples))
        wanted = max(1, math.ceil(sum(self._requests) / len(self._requests) / self._target))
        if wanted >= desired:
            self._lower = 0
            return wanted
        if self._lower < self._needed:
            self._lower += 1
            return desired
        # The counter is not reset by a reduction, so that the next one comes at once.
        return wanted


class _AIBrix:
    """What APA and KPA share: windows of the mean over the pods that answered, and the cooldown.

    vllm-project/aibrix e3e10f9 (v0.7.0), pkg/controller/podautoscaler: resync 10 s (podautoscaler_controller.go), windows
    of 180 s and 60 s (metrics/client.go), tolerance 0.1, rates 2, cooldown 0 s up and 300 s down (context/context.go).
    The metric is the cache usage with the target 0.5 of its own benchmark
    (benchmarks/scenarios/autoscaling/deepseek-llm-7b-chat/apa.yaml). Pods that do not answer drop out of the mean; when
    none answers, nothing is decided.
    """

    interval = 10.0

    def __init__(self, target: float = 0.5) -> None:
        self._target = target
        self._stable: deque[tuple[float, float]] = deque()
        self._panic: deque[tuple[float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        usages = [sample.cache_usage for _, sample in answered(pods, now)]
        if not usages:
            return desired
        mean = sum(usages) / len(usages)
        stable, panic = _mean_of(self._stable, now, mean, 180.0), _mean_of(self._panic, now, mean, 60.0)
        return self._cooled(now, desired, max(1, self._recommend(desired, stable, panic)))

    def _recommend(self, desired: int, stable: float, panic: float) -> int:
        raise NotImplementedError

    def _cooled(self, now: float, desired: int, wanted: int) -> int:
        """On the way down the smallest recommendation of 300 s: the inverse of HPA, although its comment says the same.

        `stabilizeRecommendation` in podautoscaler_controller.go; up it is the newest, since that window is 0 s.
        """
        self._wanted.append((now, wanted))
        while self._wanted[0][0] <= now - 300.0:
            self._wanted.popleft()
        if wanted >= desired:
            return wanted
        return min(replicas for _, replicas in self._wanted)


class Apa(_AIBrix):
    """AIBrix's APA: by the ratio of mean to target, at most doubled and at most halved (algorithm/apa.go)."""

    def _recommend(self, desired: int, stable: float, panic: float) -> int:  # noqa: ARG002 - Kpa's
        ratio = stable / self._target
        if ratio > 1.1:
            return min(math.ceil(desired * ratio), math.ceil(2 * desired))
        if ratio < 0.9:
            return max(math.ceil(desired * ratio), desired // 2)
        return desired


class Kpa(_AIBrix):
    """AIBrix's KPA: Knative's formula for the total (algorithm/kpa.go), fed with the mean per pod (metrics/client.go).

    So four pods at twice the target become two. That a panic never scales down is not so: the most pods of a panic so
    far (`GetMaxPanicPods`) are always 0.
    """

    def _recommend(self, desired: int, stable: float, panic: float) -> int:
        def bounded(value: float) -> int:
            near = 0.9 * self._target <= value <= 1.1 * self._target
            wanted = desired if near else math.ceil(value / self._target)
            return int(min(max(wanted, desired // 2), max(1, math.ceil(2 * desired))))

        if stable <= 0 or panic / stable > 2.0:
            return max(bounded(stable), bounded(panic))
        return bounded(stable)


def _mean_of(window: deque[tuple[float, float]], now: float, value: float, seconds: float) -> float:
    """Adds a value to a window and returns the window's mean."""
    window.append((now, value))
    while window[0][0] < now - seconds:
        window.popleft()
    return sum(value for _, value in window) / len(window)


class SaturationV1:
    """llm-d's workload-variant-autoscaler, saturation analyzer v1: one up when spare capacity is short, one down when safe.

    docs/saturation-analyzer.md of llm-d/llm-d-workload-variant-autoscaler: a pod is saturated with a cache usage of 0.80
    or a queue of 5; one more replica when the mean spare of the others is below 0.10 or 3 and none is starting; one less
    when the load of the unsaturated, spread over one pod less, leaves both. Peaks of a minute, a decision each 60 s;
    metrics older than five minutes: hold. The HPA that carries its figure out has windows of 0 s in its samples
    (config/samples/hpa-integration.yaml) and is left out: up to 15 s less.
    """

    interval = SCRAPE_SECONDS

    def __init__(self) -> None:
        self._peaks: dict[str, deque[tuple[float, float, int]]] = {}
        self._next = 60.0

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        for pod, sample in answered(pods, now):
            self._peaks.setdefault(pod.uid, deque()).append((now, sample.cache_usage, sample.waiting))
        if now < self._next:
            return desired
        self._next += 60.0
        loads = []
        for pod in in_service(pods):
            seen = self._peaks.get(pod.uid)
            while seen and seen[0][0] <= now - 60.0:
                seen.popleft()
            if seen:
                loads.append((max(usage for _, usage, _ in seen), max(waiting for _, _, waiting in seen)))
        if not loads:
            return desired
        free = [(usage, waiting) for usage, waiting in loads if usage < 0.80 and waiting < 5]
        count = len(free)
        usage, waiting = sum(usage for usage, _ in free), sum(waiting for _, waiting in free)
        if not count or 0.80 - usage / count < 0.10 or 5 - waiting / count < 3:
            return max(desired, len(loads) + 1) if not any(pod.ready_at is None for pod in pods) else desired
        if count >= 2 and 0.80 - usage / (count - 1) >= 0.10 and 5 - waiting / (count - 1) >= 3:
            return min(desired, len(loads) - 1)
        return desired
