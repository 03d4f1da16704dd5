"""Autoscaling with real pods: load brings one, quiet takes it away, and no request notices."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster import models
from cluster.layout import Layout
from demo import CLAIM, MODEL, converted_model
from demo_harness import ISVC, START, Demo, call, service
from operator_harness import Kubectl, condition, eventually

pytestmark = pytest.mark.cluster

CLIENTS = 12
SLOTS = 4
"""Sequences that a pod runs at once: so few that a few clients fill it."""


def elastic(**autoscaling: object) -> dict[str, Any]:
    manifest = service("elastic", f"pvc://{CLAIM}/{MODEL}", maxNumSeqs=SLOTS)
    manifest["spec"]["autoscaling"] = {
        "maxReplicas": 2,
        "targetQueueLength": 2,
        "scaleDownStabilizationSeconds": 20,
        **autoscaling,
    }
    return manifest


def replicas(kubectl: Kubectl) -> int:
    return int(kubectl.get(ISVC, "elastic")["spec"]["replicas"])


def ask(address: str, over: threading.Event) -> int:
    """Asks again and again, each time as a new client; how often. A request that fails raises."""
    answered = 0
    while not over.is_set():
        body = {"model": "elastic", "prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True}
        call(address, 80, "/v1/completions", body)
        answered += 1
    return answered


@pytest.mark.usefixtures("demo")
def test_load_brings_a_pod_and_quiet_takes_it_away(cluster: Layout, kubectl: Kubectl) -> None:
    models.publish(cluster, converted_model(), MODEL, CLAIM, kubectl.namespace)
    kubectl.apply(elastic())
    kubectl("wait", "isvc/elastic", "--for=condition=Ready", f"--timeout={START:.0f}s")
    eventually(lambda: condition(kubectl.get(ISVC, "elastic"), "MetricsAvailable")["status"] == "True", 30)
    assert replicas(kubectl) == 1
    address = kubectl.get("service", "elastic")["spec"]["clusterIP"]
    over = threading.Event()
    with ThreadPoolExecutor(max_workers=CLIENTS) as threads:
        clients = [threads.submit(ask, address, over) for _ in range(CLIENTS)]
        try:
            eventually(lambda: replicas(kubectl) == 2, 60)
            ready = eventually(lambda: kubectl.get(ISVC, "elastic")["status"].get("readyReplicas") == 2, START, every=1)
            assert ready
        finally:
            over.set()
        assert min(client.result(timeout=120) for client in clients) > 0
    status = kubectl.get(ISVC, "elastic")["status"]
    assert (status["lastScale"]["from"], status["lastScale"]["to"]) == (1, 2)
    assert "replicas' worth of work come in" in status["lastScale"]["reason"]
    assert condition(kubectl.get(ISVC, "elastic"), "ScalingActive")["reason"] == "Following"
    assert "ScaledUp" in kubectl("describe", "isvc", "elastic")

    eventually(lambda: replicas(kubectl) == 1, 120, every=1)
    eventually(lambda: len(kubectl.get("pods")) == 1, 60, every=1)
    call(address, 80, "/v1/completions", {"model": "elastic", "prompt": "Hello", "max_tokens": 1})
    assert kubectl.get(ISVC, "elastic")["status"]["lastScale"]["to"] == 1
    kubectl("delete", ISVC, "elastic")


def test_observe_tells_and_writes_nothing(demo: Demo, cluster: Layout, kubectl: Kubectl) -> None:
    assert demo.kubectl.get(ISVC, "smollm2")
    models.publish(cluster, converted_model(), MODEL, CLAIM, kubectl.namespace)
    kubectl.apply(elastic(mode="Observe", minReplicas=2))
    observed = eventually(
        lambda: (one := condition(kubectl.get(ISVC, "elastic"), "ScalingActive"))["reason"] == "Observing" and one,
        START,
    )
    assert isinstance(observed, dict)
    assert "it would set 2 replicas" in observed["message"]
    assert replicas(kubectl) == 1
    kubectl("delete", ISVC, "elastic")
