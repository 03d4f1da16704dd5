"""Draining a node: pods that serve leave one at a time, and those that do not serve hold nothing up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from operator_harness import (
    STUB,
    Kubectl,
    OperatorProcess,
    World,
    condition,
    eventually,
    stubbed,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
def kubectl(world: World, operator: OperatorProcess) -> Iterator[Kubectl]:
    assert operator.is_ready()
    own = world.namespace()
    own.apply(STUB)
    yield own
    own("uncordon", node(own))
    own("delete", "isvc", "--all", "--wait=false")
    eventually(lambda: not own.get("pods"), 60)


@pytest.fixture(scope="module")
def image(image_references: dict[str, str]) -> str:
    """An image with a Python for the stub."""
    return image_references["operator"]


def node(kubectl: Kubectl) -> str:
    (only,) = kubectl.get("nodes")
    return str(only["metadata"]["name"])


def labelled(kubectl: Kubectl, image: str, replicas: int) -> dict[str, Any]:
    manifest = stubbed(image, gpus=0, replicas=replicas)
    manifest["spec"]["podTemplate"]["metadata"] = {"labels": {"story": kubectl.namespace}}
    return manifest


def serve(kubectl: Kubectl, image: str, replicas: int) -> None:
    kubectl.apply(labelled(kubectl, image, replicas))
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["status"] == "True", 60)
    eventually(lambda: allowed(kubectl) == 1)


def allowed(kubectl: Kubectl) -> int:
    """How many pods the budget lets go now."""
    return int(kubectl.get("poddisruptionbudget", "chat").get("status", {}).get("disruptionsAllowed", -1))


def drain(kubectl: Kubectl, seconds: int) -> subprocess.CompletedProcess[str]:
    """Drains the only node, of this story's pods alone: none of them can come back before it is uncordoned."""
    options = (f"--pod-selector=story={kubectl.namespace}", "--delete-emptydir-data", f"--timeout={seconds}s")
    return kubectl.run("drain", node(kubectl), *options)


def serving(kubectl: Kubectl) -> list[str]:
    """The pods that answer and stay."""
    pods = [pod for pod in kubectl.get("pods") if "deletionTimestamp" not in pod["metadata"]]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    ]


def test_drain_takes_one_pod_and_waits_for_another(kubectl: Kubectl, image: str) -> None:
    serve(kubectl, image, replicas=2)
    done = drain(kubectl, 15)
    assert done.returncode == 1
    assert "violate the pod's disruption budget" in done.stderr
    assert len(serving(kubectl)) == 1
    kubectl("uncordon", node(kubectl))
    eventually(lambda: len(serving(kubectl)) == 2, 60)


def test_drain_takes_the_only_pod_of_a_service(kubectl: Kubectl, image: str) -> None:
    serve(kubectl, image, replicas=1)
    done = drain(kubectl, 60)
    assert done.returncode == 0, done.stderr


def test_drain_does_not_wait_for_pods_that_do_not_serve(kubectl: Kubectl, image: str) -> None:
    """They run and are not ready, as pods that crash again and again do, or that load."""
    manifest = labelled(kubectl, image, replicas=3)
    manifest["spec"]["runtime"]["env"].append({"name": "UNREADY", "value": "1"})
    kubectl.apply(manifest)

    def running() -> list[Any]:
        return [pod for pod in kubectl.get("pods") if pod["status"]["containerStatuses"][0].get("started")]

    eventually(lambda: len(running()) == 3, 60)
    assert serving(kubectl) == []
    assert eventually(lambda: kubectl.get("poddisruptionbudget", "chat")["status"])["disruptionsAllowed"] == 0
    done = drain(kubectl, 60)
    assert done.returncode == 0, done.stderr
