from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo_operator.metrics import Metrics

Sample = Callable[..., float | None]


def service(name: str, ready: int | None, *conditions: tuple[str, str, str]) -> dict[str, Any]:
    told = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    status = {"conditions": told} | ({} if ready is None else {"readyReplicas": ready})
    return {"metadata": {"namespace": "team-a", "name": name}, "status": status}


@pytest.fixture
def told() -> tuple[list[dict[str, Any]], Sample]:
    """What the metrics are told of, and how to read one."""
    services: list[dict[str, Any]] = []
    metrics = Metrics()
    metrics.tell_of(lambda: services)

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"octavo_operator_{name}", labels)

    return services, sample


def test_tell_of_publishes_conditions_by_reason(told: tuple[list[dict[str, Any]], Sample]) -> None:
    services, sample = told
    services.append(service("chat", 2, ("Ready", "True", "Serving"), ("ScalingActive", "False", "Contested")))
    chat = {"namespace": "team-a", "inferenceservice": "chat"}
    assert sample("condition", **chat, type="Ready", reason="Serving") == 1
    assert sample("condition", **chat, type="ScalingActive", reason="Contested") == 0
    assert sample("ready_replicas", **chat) == 2
    services[0] = service("chat", 1, ("Ready", "False", "WaitingForGPU"))
    assert sample("condition", **chat, type="Ready", reason="Serving") is None
    assert sample("condition", **chat, type="Ready", reason="WaitingForGPU") == 0
    assert sample("ready_replicas", **chat) == 1


def test_tell_of_publishes_nothing_that_is_not_known(told: tuple[list[dict[str, Any]], Sample]) -> None:
    services, sample = told
    services.append({"metadata": {"namespace": "team-a", "name": "new"}})
    services.append(service("old", None, ("ScalingActive", "Unknown", "Unknown"), ("Scheduled", "True", "Placed")))
    for name, kind, reason in (("old", "ScalingActive", "Unknown"), ("old", "Scheduled", "Placed")):
        labels = {"namespace": "team-a", "inferenceservice": name, "type": kind, "reason": reason}
        assert sample("condition", **labels) is None
    for name in ("new", "old"):
        assert sample("ready_replicas", namespace="team-a", inferenceservice=name) is None


def test_metrics_count_failures_from_zero(told: tuple[list[dict[str, Any]], Sample]) -> None:
    """Prometheus' `increase` does not see a counter's first sample."""
    _, sample = told
    assert sample("reconciles_total", outcome="failed") == 0
    assert sample("scrapes_total", outcome="failed") == 0
