"""What a policy sees and decides: the seam between the simulated cluster and every autoscaler that is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["PodView", "Policy", "Sample", "answered", "in_service"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One scrape of one pod: what the runtime publishes, and nothing else.

    Attributes:
        time: Seconds since the trace began.
        running: `vllm:num_requests_running`.
        waiting: `vllm:num_requests_waiting`.
        cache_usage: `vllm:kv_cache_usage_perc`, 0-1.
        finished: `vllm:request_success_total`; this and what follows are counters since the pod started.
        prompt_tokens: `vllm:prompt_tokens_total`.
        generation_tokens: `vllm:generation_tokens_total`.
        preemptions: `vllm:num_preemptions_total`.
        refused: `octavo:requests_refused_total`; the other autoscalers do not know it.
    """

    time: float
    running: int
    waiting: int
    cache_usage: float
    finished: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    refused: int


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the API server and the scrapes show it.

    Attributes:
        uid: Never used twice.
        created: Seconds since the trace began; negative: before it.
        ready_at: When it became ready; None while it starts.
        draining: Whether it was chosen to go and only finishes its streams.
        sample: The newest scrape that came through; None: there was none yet.
    """

    uid: str
    created: float
    ready_at: float | None
    draining: bool
    sample: Sample | None


class Policy(Protocol):
    """An autoscaler. It may keep history; each run has its own."""

    @property
    def interval(self) -> float:
        """Seconds between two decisions."""
        ...

    def decide(self, now: float, desired: int, pods: Sequence[PodView]) -> int:
        """Returns how many replicas there should be; the caller keeps the bounds.

        Args:
            now: Seconds since the trace began; this moment's scrapes are done.
            desired: The count that is asked for so far.
            pods: All that exist, those that start and those that drain too, oldest first.
        """
        ...


def in_service(pods: Sequence[PodView]) -> list[PodView]:
    """The pods that make up the replicas: all but those that drain."""
    return [pod for pod in pods if not pod.draining]


def answered(pods: Sequence[PodView], now: float) -> list[tuple[PodView, Sample]]:
    """The pods in service whose scrape of this moment came through.

    A failed scrape marks a pod's series as stale at once, so an instant query does not find it (Prometheus' rule), and
    neither does an autoscaler that asks the pods itself.
    """
    return [
        (pod, pod.sample)
        for pod in in_service(pods)
        if pod.sample is not None and now - pod.sample.time < SCRAPE_SECONDS
    ]


SCRAPE_SECONDS = 5.0
"""Between two scrapes of a pod."""
