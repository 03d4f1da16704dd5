"""Every policy of the comparison by its name, with the settings that it has there."""

from __future__ import annotations

from collections.abc import Callable

from bench.autoscaling.baselines import Apa, Constant, Kpa, KubeAI, SaturationV1
from bench.autoscaling.hpa import Hpa, PodsMetric, cache_usage, keda, production_stack, requests, waiting
from bench.autoscaling.ours import Ours
from bench.autoscaling.policy import Policy

__all__ = ["BOUND", "OURS", "POLICIES"]

OURS = "ours"

BOUND = "seen"
"""No policy, but what is possible for whoever foresees nothing (`baselines.Seen`): it needs to be told the load."""

_BUSY = 0.8 * 64
"""Requests of a replica that is busy to 80 %: what somebody would ask for who knows its slots."""

_FULL_CACHE = 0.4
"""80 % of the cache usage that a replica has with all slots taken and the lengths of sharegpt-like."""

POLICIES: dict[str, Callable[[], Policy]] = {
    OURS: Ours,
    # Targets of llm-d's own comparison with an HPA (its pull request 1220).
    "hpa-cache": lambda: Hpa(PodsMetric(cache_usage, 0.7)),
    "hpa-queue": lambda: Hpa(PodsMetric(waiting, 2.0)),
    "hpa-both": lambda: Hpa(PodsMetric(cache_usage, 0.7), PodsMetric(waiting, 2.0)),
    # Fitted to the pinned machine, which nobody's defaults are: the stronger opponents.
    "hpa-cache-fitted": lambda: Hpa(PodsMetric(cache_usage, _FULL_CACHE)),
    "hpa-requests-fitted": lambda: Hpa(PodsMetric(requests, _BUSY)),
    "keda": keda,
    "production-stack": production_stack,
    "kubeai": KubeAI,
    "kubeai-fitted": lambda: KubeAI(_BUSY),
    "aibrix-apa": Apa,
    "aibrix-kpa": Kpa,
    "wva": SaturationV1,
    "constant-min": lambda: Constant(1),
    "constant-max": lambda: Constant(10),
}
