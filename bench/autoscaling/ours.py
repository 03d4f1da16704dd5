"""Octavo's own autoscaler in the simulated cluster: the decision core that the operator runs, given what it gives it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.autoscaling import policy
from bench.autoscaling.replica import Machine
from octavo_operator.autoscale.core.decide import State, decide, start
from octavo_operator.autoscale.core.values import Pod, Sample, Settings

__all__ = ["Ours"]

_SETTINGS = Settings(min_replicas=1, max_replicas=10)
_QUEUE_LIMIT = float(Machine().max_waiting)


class Ours:
    """The operator's defaults. It has followed the service since before its first pods were ready."""

    interval = policy.SCRAPE_SECONDS

    def __init__(self) -> None:
        self._state: State | None = None

    def decide(self, now: float, desired: int, pods: Sequence[policy.PodView]) -> int:
        if self._state is None:
            _, self._state = decide(_SETTINGS, start(_SETTINGS, now), [], desired, now)
        decision, self._state = decide(_SETTINGS, self._state, [_pod(pod) for pod in pods], desired, now)
        return decision.replicas


def _pod(pod: policy.PodView) -> Pod:
    return Pod(pod.uid, pod.created, pod.ready_at, pod.draining, _sample(pod.sample) if pod.sample else None)


def _sample(sample: policy.Sample) -> Sample:
    return Sample(
        time=sample.time,
        running=sample.running,
        waiting=sample.waiting,
        cache_usage=sample.cache_usage,
        finished=sample.finished,
        generated=sample.generation_tokens,
        refused=sample.refused,
        queue_limit=_QUEUE_LIMIT,
    )
