"""The alerts with real pods and a real Prometheus: load lets them fire, quiet lets them resolve."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import binaries, models
from cluster.layout import Layout
from cluster.progress import Progress
from demo import CLAIM, MODEL, converted_model
from demo_harness import ISVC, START, Demo, service
from operator_harness import Kubectl, chart_manifests, condition, eventually
from prometheus_harness import Prometheus, running_prometheus

# The first run builds Prometheus.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

LOAD = {"OctavoCacheNearlyFull", "OctavoRequestsWaiting"}
HURRY = {name: {"for": "5s"} for name in (*LOAD, "OctavoServiceDown")}
"""What a user would write into the value `monitoring.alerts`."""

REQUESTS = 200
PROMPT = "Once upon a time " * 25


@pytest.fixture
def prometheus(demo: Demo, cluster: Layout, kubectl: Kubectl, tmp_path: Path) -> Iterator[Prometheus]:
    """Scrapes every pod of ours once a second, and has the chart's rules with short times."""
    assert demo.pods()
    program = binaries.ensure(Progress(), binaries.PROMETHEUS)["prometheus"]
    settings = ("--set=monitoring.enabled=true", f"--set-json=monitoring.alerts={json.dumps(HURRY)}")
    helm = cluster.state / "bin" / "helm"
    chart = chart_manifests(helm, "octavo", "octavo-system", "monitoring", arguments=settings)
    [rules] = [manifest for manifest in chart if manifest["kind"] == "PrometheusRule"]
    with running_prometheus(program, tmp_path, kubectl, rules["spec"]["groups"]) as running:
        yield running


@contextmanager
def load(address: str) -> Iterator[None]:
    """More requests than the pod can hold, in one call, and taken back at the end."""
    connection = http.client.HTTPConnection(address, 80, timeout=60)
    body = {"model": "narrow", "prompt": [PROMPT] * REQUESTS, "max_tokens": 240, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    try:
        yield
    finally:
        connection.close()


def narrow() -> dict[str, Any]:
    """A service whose cache is full with some twenty requests: 128 blocks."""
    return service(
        "narrow",
        f"pvc://{CLAIM}/{MODEL}",
        kvCacheMemory="90Mi",
        maxModelLen=512,
        enablePrefixCaching=False,
        extraArgs=["--admission-policy=max-utilization"],
    )


def test_load_fires_and_quiet_resolves(prometheus: Prometheus, cluster: Layout, kubectl: Kubectl) -> None:
    models.publish(cluster, converted_model(), MODEL, CLAIM, kubectl.namespace)
    kubectl.apply(narrow())
    kubectl("wait", "isvc/narrow", "--for=condition=Ready", f"--timeout={START:.0f}s")
    here = f'namespace="{kubectl.namespace}",inferenceservice="narrow"'
    [usage] = eventually(lambda: prometheus.query(f'vllm:gpu_cache_usage_perc{{{here},job="octavo-runtime"}}'), 30)
    assert usage["metric"]["pod"].startswith("narrow-")
    assert usage["metric"]["model_name"] == "narrow"
    eventually(lambda: prometheus.query(f'octavo_operator_condition{{{here},type="Ready",reason="Serving"}} == 1'), 30)
    # Rules that looked between the pod's readiness and its first scrape are pending until they look again.
    eventually(lambda: not prometheus.alerts(kubectl.namespace), 30)

    began = time.monotonic()
    with load(kubectl.get("service", "narrow")["spec"]["clusterIP"]):
        eventually(lambda: prometheus.firing(kubectl.namespace) >= LOAD, 90, every=0.5)
        print(f"fired after {time.monotonic() - began:.1f} s")
        assert prometheus.firing(kubectl.namespace) == LOAD
        alerts = prometheus.alerts(kubectl.namespace)
        full, waiting = alerts["OctavoCacheNearlyFull"], alerts["OctavoRequestsWaiting"]
        assert f"{kubectl.namespace}/narrow are 9" in full.summary or "are 100%" in full.summary
        assert waiting.labels["inferenceservice"] == "narrow"
        assert f"requests wait in {kubectl.namespace}/narrow" in waiting.summary
    began = time.monotonic()
    eventually(lambda: not prometheus.alerts(kubectl.namespace), 60, every=0.5)
    print(f"resolved after {time.monotonic() - began:.1f} s")
    assert condition(kubectl.get(ISVC, "narrow"))["status"] == "True"
    kubectl("delete", ISVC, "narrow")


def test_service_that_is_down_fires_with_its_reason(prometheus: Prometheus, kubectl: Kubectl) -> None:
    kubectl.apply(service("broken", "file:///model", image="octavo.invalid/none:1"))
    eventually(lambda: prometheus.firing(kubectl.namespace) == {"OctavoServiceDown"}, 90, every=0.5)
    alert = prometheus.alerts(kubectl.namespace)["OctavoServiceDown"]
    assert alert.summary == f"No pod of {kubectl.namespace}/broken answers: ImagePullBackOff"
    # The operator itself is scraped, and leads.
    assert [one["value"][1] for one in prometheus.query("sum(octavo_operator_leader)")] == ["1"]
    kubectl("delete", ISVC, "broken")
    eventually(lambda: not prometheus.alerts(kubectl.namespace), 30, every=0.5)
