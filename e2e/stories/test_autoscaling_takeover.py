"""Autoscaling goes on when the operator dies: the next one knows what the pods tell now, and nothing of before."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_harness import (
    STUB,
    Kubectl,
    OperatorProcess,
    World,
    condition,
    eventually,
    fetch,
    stubbed,
)

pytestmark = pytest.mark.cluster

SLOTS = 8
WINDOW = 30.0
"""Seconds of scaleDownStabilizationSeconds."""

AT_ONCE = 8.0
"""Seconds: the first look at the objects, and one round of questions."""


@pytest.fixture
def kubectl(world: World, own_operator: OperatorProcess, image_references: dict[str, str]) -> Iterator[Kubectl]:
    """kubectl in a namespace with one pod that is idle, and may become three."""
    assert own_operator.is_ready()
    own = world.namespace()
    own.apply(STUB)
    autoscaling = {"maxReplicas": 3, "scaleDownStabilizationSeconds": round(WINDOW), "scaleDownAfterLateSeconds": 0}
    runtime = {"maxNumSeqs": SLOTS}
    own.apply(stubbed(image_references["operator"], gpus=0, runtime=runtime, autoscaling=autoscaling))
    eventually(lambda: condition(own.get("isvc", "chat"))["status"] == "True", 60)
    yield own
    own("delete", "isvc", "--all", "--wait=false")


def replicas(kubectl: Kubectl) -> int:
    return int(kubectl.get("isvc", "chat")["spec"]["replicas"])


def load(kubectl: Kubectl, pods: int, *, running: int, waiting: int) -> None:
    """Has so many pods, which are to be there and ready, tell this load."""

    def addresses() -> list[str]:
        found = [
            pod["status"]["podIP"]
            for pod in kubectl.get("pods")
            for one in pod["status"].get("conditions", ())
            if one["type"] == "Ready" and one["status"] == "True"
        ]
        return found if len(found) == pods else []

    text = (
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        "vllm:kv_cache_usage_perc 0\nvllm:generation_tokens_total 0\n"
    )
    for address in eventually(addresses, 60):
        request = urllib.request.Request(f"http://{address}:8000/metrics", text.encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 an address of the cluster
            assert answer.status == 200


def killed(process: OperatorProcess) -> None:
    assert process.stop(signal.SIGKILL) == -signal.SIGKILL


def test_operator_killed_in_a_surge_is_followed_up_at_once_and_down_after_a_window(
    kubectl: Kubectl, own_operator: OperatorProcess, tmp_path: Path
) -> None:
    load(kubectl, 1, running=SLOTS, waiting=20)
    eventually(lambda: replicas(kubectl) == 2, 20)
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 2)
    killed(own_operator)
    # The surge goes on while nobody looks.
    load(kubectl, 2, running=SLOTS, waiting=20)
    own_operator.start()
    eventually(lambda: replicas(kubectl) == 3, AT_ONCE)

    # It is over, and the next process has seen nothing of it: what it sees would be enough for one pod.
    load(kubectl, 3, running=0, waiting=0)
    killed(own_operator)
    began = time.monotonic()
    own_operator.start()
    eventually(lambda: fetch(recording(own_operator, kubectl))[0] == 200)
    eventually(lambda: replicas(kubectl) < 3, 2 * WINDOW)
    assert time.monotonic() - began >= WINDOW
    eventually(lambda: replicas(kubectl) == 1, 20)
    assert "from 3 to" in own_operator.log.read_text()

    # What this process has decided, and kept, comes out again.
    path = tmp_path / "chat.jsonl"
    path.write_text(fetch(recording(own_operator, kubectl))[1])
    command = [sys.executable, "-m", "octavo_operator", "replay", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3" in done.stdout


def recording(process: OperatorProcess, kubectl: Kubectl) -> str:
    return f"http://127.0.0.1:{process.port}/autoscaling/{kubectl.namespace}/chat"
