"""Autoscaling with real pods: load brings two more, quiet takes them away, and no request notices."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from cluster import models
from cluster.layout import Layout
from demo import CLAIM, MODEL, converted_model
from demo_harness import ISVC, START, Demo, call, metric, service
from operator_harness import Kubectl, condition, eventually

pytestmark = pytest.mark.cluster

CLIENTS = 3
STREAMS = 4
"""Of each client at once, on connections that it keeps."""

TOKENS = 24
SLOTS = 4
"""Sequences that a pod runs at once: so few that a few clients fill it."""

WINDOW = 60
"""Seconds; longer than clients keep a connection, since a new pod has no load until then."""

SHARE = 120.0
"""Seconds after which a new pod has its share of clients that keep their connections."""


def elastic(**autoscaling: object) -> dict[str, Any]:
    manifest = service("elastic", f"pvc://{CLAIM}/{MODEL}", maxNumSeqs=SLOTS)
    manifest["spec"]["autoscaling"] = {
        "maxReplicas": 3,
        "targetQueueLength": 2,
        "scaleDownStabilizationSeconds": WINDOW,
        "scaleDownAfterLateSeconds": 0,  # the first pod's queue is long before the others serve
        **autoscaling,
    }
    return manifest


def replicas(kubectl: Kubectl) -> int:
    return int(kubectl.get(ISVC, "elastic")["spec"]["replicas"])


def ready(kubectl: Kubectl) -> int:
    return int(kubectl.get(ISVC, "elastic")["status"].get("readyReplicas", 0))


def shares(kubectl: Kubectl) -> list[float]:
    """How many streams each of the three pods runs."""
    pods = [pod for pod in kubectl.get("pods") if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == 3
    return [metric(pod["status"]["podIP"], "vllm:num_requests_running") for pod in pods]


def ask(client: OpenAI, over: threading.Event) -> int:
    """Streams answers one after the other; how many. One that fails, or breaks off, raises."""
    answered = 0
    while not over.is_set():
        parts = client.completions.create(
            model="elastic",
            prompt="Once upon a time",
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        *_, last = list(parts)
        assert last.usage is not None
        assert last.usage.completion_tokens == TOKENS
        answered += 1
    return answered


@contextmanager
def flood(address: str) -> Iterator[None]:
    """Many streams at once for as long as this lasts; each of them is to end well."""
    over = threading.Event()
    clients = [
        OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0, timeout=120) for _ in range(CLIENTS)
    ]
    with ThreadPoolExecutor(max_workers=CLIENTS * STREAMS) as threads:
        streams = [threads.submit(ask, client, over) for client in clients for _ in range(STREAMS)]
        try:
            yield
        finally:
            over.set()
        assert min(stream.result(timeout=120) for stream in streams) > 0
    for client in clients:
        client.close()


def octavo(cluster: Layout, kubectl: Kubectl, *arguments: str) -> str:
    """`kubectl octavo`, as the administrator; what it printed."""
    program = str(Path(sys.executable).with_name("kubectl-octavo"))
    where = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", kubectl.namespace]
    done = subprocess.run([program, *arguments, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("demo")
def test_load_brings_pods_and_quiet_takes_them_away(cluster: Layout, kubectl: Kubectl, tmp_path: Path) -> None:
    models.publish(cluster, converted_model(), MODEL, CLAIM, kubectl.namespace)
    kubectl.apply(elastic())
    kubectl("wait", "isvc/elastic", "--for=condition=Ready", f"--timeout={START:.0f}s")
    eventually(lambda: condition(kubectl.get(ISVC, "elastic"), "MetricsAvailable")["status"] == "True", 30)
    assert replicas(kubectl) == 1
    address = kubectl.get("service", "elastic")["spec"]["clusterIP"]
    with flood(address):
        eventually(lambda: replicas(kubectl) > 1, 60)
        eventually(lambda: replicas(kubectl) == 3, START, every=0.5)
        eventually(lambda: ready(kubectl) == 3, START, every=0.5)
        began = time.monotonic()
        # Four of twelve streams are a fair share; each gets at least half of that.
        eventually(lambda: min(shares(kubectl)) >= STREAMS / 2, SHARE, every=0.5)
        print(f"each pod has its share {time.monotonic() - began:.0f} s after the last became ready")
    status = kubectl.get(ISVC, "elastic")["status"]
    assert "replicas' worth of work come in" in status["lastScale"]["reason"]
    assert condition(kubectl.get(ISVC, "elastic"), "ScalingActive")["reason"] == "Following"
    assert "ScaledUp" in kubectl("describe", "isvc", "elastic")

    eventually(lambda: replicas(kubectl) == 1, 3 * WINDOW, every=0.5)
    eventually(lambda: len(kubectl.get("pods")) == 1, 60, every=0.5)
    call(address, 80, "/v1/completions", {"model": "elastic", "prompt": "Hello", "max_tokens": 1})

    why = " ".join(octavo(cluster, kubectl, "why", "elastic").split())
    # How many come at once depends on how quickly this machine answers.
    for step in ("replicas 1 → [23] because", "→ 3 because", "→ 1 because"):
        assert re.search(step, why), why
    assert "replicas' worth of work come in, and for the last minutes 1 were enough" in why
    again_as_recorded(octavo(cluster, kubectl, "why", "elastic", "--inputs"), tmp_path / "elastic.jsonl")
    kubectl("delete", ISVC, "elastic")


def again_as_recorded(recording: str, path: Path) -> None:
    """Decided again, each decision is the same; with room for fewer pods, less is asked for."""
    path.write_text(recording)
    command = [sys.executable, "-m", "octavo_operator", "replay", str(path)]
    same = subprocess.run(command, capture_output=True, text=True, check=False)
    assert same.returncode == 0, same.stdout + same.stderr
    other = subprocess.run([*command, "--set", "maxReplicas=2"], capture_output=True, text=True, check=True)
    print(other.stdout)
    assert "maxReplicas: 3 recorded, 2 replayed" in other.stdout


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
