"""Rollouts on a real scheduler and kubelet: the last GPU, edits on the way, broken revisions, another operator.

The node's GPUs are numbers without a device. The server is a stub, put in the way of `octavo` by a ConfigMap and PATH.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster import lifecycle
from cluster.layout import Layout
from operator_harness import (
    NO_IMAGE,
    STUB,
    Kubectl,
    Manifest,
    OperatorProcess,
    World,
    condition,
    eventually,
    stubbed,
)

pytestmark = pytest.mark.cluster

MOVES = 60.0
"""Seconds for a rollout on the last GPU: 20 of patience, 5 before SIGTERM, and the starts."""


@pytest.fixture
def kubectl(world: World, operator: OperatorProcess) -> Iterator[Kubectl]:
    assert operator.is_ready()
    own = world.namespace()
    own.apply(STUB)
    yield own
    own("delete", "isvc", "--all", "--wait=false")
    eventually(lambda: not own.get("pods"), 60)


def templates(kubectl: Kubectl) -> list[Manifest]:
    """The revisions that keep a template: all but the record of decisions."""
    return [one for one in kubectl.get("controllerrevisions") if "template" in one["data"]]


def decisions(kubectl: Kubectl) -> list[tuple[str, str]]:
    """Subject and decision of each entry of the record."""
    annotations = [one["metadata"].get("annotations", {}) for one in kubectl.get("controllerrevisions")]
    (text,) = (one["octavo.dev/decisions"] for one in annotations if "octavo.dev/decisions" in one)
    return [(entry["subject"], entry["decision"]) for entry in json.loads(text)]


@pytest.fixture
def gpus(cluster: Layout) -> Iterator[None]:
    """One GPU."""
    lifecycle.set_gpus(cluster, 1)
    yield
    lifecycle.set_gpus(cluster, 0)


@pytest.fixture(scope="module")
def image(image_references: dict[str, str]) -> str:
    """An image with a Python for the stub."""
    return image_references["operator"]


def ready(kubectl: Kubectl) -> bool:
    return bool(condition(kubectl.get("isvc", "chat"))["status"] == "True")


def edit(kubectl: Kubectl, sequences: int | None) -> None:
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"maxNumSeqs": sequences}}})


def pods(kubectl: Kubectl) -> dict[str, dict[str, Any]]:
    """The pods that stay, by uid."""
    return {pod["metadata"]["uid"]: pod for pod in kubectl.get("pods") if "deletionTimestamp" not in pod["metadata"]}


def arguments(pod: dict[str, Any]) -> list[str]:
    listed: list[str] = pod["spec"]["containers"][0]["args"]
    return listed


def strategy(kubectl: Kubectl) -> tuple[int, int]:
    rolling = kubectl.get("deployment", "chat")["spec"]["strategy"]["rollingUpdate"]
    return rolling["maxSurge"], rolling["maxUnavailable"]


@pytest.mark.usefixtures("gpus")
def test_single_pod_on_the_last_gpu_is_replaced_by_nobody_s_hand(
    kubectl: Kubectl, operator: OperatorProcess, image: str
) -> None:
    kubectl.apply(stubbed(image))
    eventually(lambda: ready(kubectl), MOVES)
    (old,) = pods(kubectl)
    edit(kubectl, 8)
    began = time.monotonic()
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "WaitingForGPU", 15)
    assert old in pods(kubectl), "it serves while the new pod waits"
    assert strategy(kubectl) == (1, 0)
    eventually(lambda: strategy(kubectl) == (0, 1), 25)
    assert time.monotonic() - began > 19
    eventually(lambda: ready(kubectl), MOVES)
    (new,) = pods(kubectl).values()
    assert "--max-num-seqs=8" in arguments(new)
    eventually(lambda: strategy(kubectl) == (1, 0))
    eventually(lambda: decisions(kubectl)[-1] == ("Rollout", "maxSurge 1, maxUnavailable 0"))
    assert decisions(kubectl)[0][0] == "Template"
    assert ("Rollout", "maxSurge 0, maxUnavailable 1") in decisions(kubectl)
    writes = operator.writes()
    time.sleep(10)
    assert operator.writes() == writes


@pytest.mark.usefixtures("gpus")
def test_quota_of_gpus_blocks_no_rollout(kubectl: Kubectl, cluster: Layout, image: str) -> None:
    lifecycle.set_gpus(cluster, 2)
    hard = {"requests.nvidia.com/gpu": "1"}
    kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": hard}})
    eventually(lambda: kubectl.get("resourcequota", "one").get("status", {}).get("hard"))
    kubectl.apply(stubbed(image))
    eventually(lambda: ready(kubectl), MOVES)
    edit(kubectl, 8)
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "PodsRefused", 15)
    eventually(lambda: ready(kubectl), MOVES + 30)


@pytest.mark.usefixtures("gpus")
def test_edit_undone_during_a_rollout_restarts_nothing(kubectl: Kubectl, image: str) -> None:
    kubectl.apply(stubbed(image))
    eventually(lambda: ready(kubectl), MOVES)
    (old,) = pods(kubectl)
    edit(kubectl, 8)
    eventually(lambda: len(pods(kubectl)) == 2)
    edit(kubectl, None)
    eventually(lambda: ready(kubectl) and list(pods(kubectl)) == [old], 15)
    assert len(templates(kubectl)) == 1


@pytest.mark.usefixtures("gpus")
def test_spec_edited_during_a_rollout_ends_at_the_last_edit(kubectl: Kubectl, image: str) -> None:
    kubectl.apply(stubbed(image))
    eventually(lambda: ready(kubectl), MOVES)
    for sequences in (8, 9, 10):
        edit(kubectl, sequences)
        time.sleep(2)
    eventually(lambda: strategy(kubectl) == (0, 1), 40)
    edit(kubectl, 11)
    eventually(lambda: ready(kubectl), MOVES)
    (new,) = pods(kubectl).values()
    assert "--max-num-seqs=11" in arguments(new)
    eventually(lambda: len(templates(kubectl)) == 1)


@pytest.mark.usefixtures("gpus")
def test_broken_image_on_the_last_gpu_is_mended_by_an_edit(kubectl: Kubectl, image: str) -> None:
    kubectl.apply(stubbed(NO_IMAGE))
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "InvalidImageName", 30)
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"image": image}}})
    eventually(lambda: ready(kubectl), MOVES)


def test_broken_revision_never_takes_the_one_that_serves(kubectl: Kubectl, image: str) -> None:
    kubectl.apply(stubbed(image, gpus=0, replicas=2))
    eventually(lambda: ready(kubectl), MOVES)
    before = set(pods(kubectl))
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"image": NO_IMAGE}}})
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "InvalidImageName", 30)
    time.sleep(25)
    assert before < set(pods(kubectl))
    kubectl.patch("isvc/chat", {"spec": {"runtime": {"image": image}}})
    eventually(lambda: ready(kubectl) and set(pods(kubectl)) == before, 30)


@contextmanager
def other_operator(world: World, operator: OperatorProcess, *arguments: str) -> Iterator[None]:
    """Another operator in place of the one that runs."""
    operator.stop()
    other = world.operator(*arguments)
    try:
        other.start()
        yield
        assert other.stop() == 0
    finally:
        operator.start()


def test_operator_upgraded_rolls_nothing_until_it_is_asked_to(
    world: World, kubectl: Kubectl, operator: OperatorProcess
) -> None:
    """The new one has another default image."""

    def generation() -> int:
        number: int = kubectl.get("deployment", "chat")["metadata"]["generation"]
        return number

    def image() -> str:
        found: str = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"][0]["image"]
        return found

    spec = {"model": {"uri": "file:///model"}, "resources": {"requests": {"cpu": "10m"}}}
    given = {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    kubectl.apply(given)
    eventually(lambda: condition(kubectl.get("isvc", "chat"), "UpdatePending")["status"] == "False")
    eventually(lambda: pods(kubectl))
    before, made = generation(), set(pods(kubectl))
    with other_operator(world, operator, "--runtime-image=ANOTHER-IMAGE"):
        pending = eventually(
            lambda: (one := condition(kubectl.get("isvc", "chat"), "UpdatePending"))["status"] == "True" and one
        )
        assert isinstance(pending, dict)
        assert pending["reason"] == "OperatorChanged"
        assert f"spec.containers[server].image: {NO_IMAGE} to ANOTHER-IMAGE" in pending["message"]
        kubectl("scale", "isvc/chat", "--replicas=2")
        eventually(lambda: len(pods(kubectl)) == 2)
        kubectl.patch("deployment/chat", {"spec": {"template": {"spec": {"enableServiceLinks": True}}}})
        eventually(lambda: generation() == before + 3, 10)
        assert image() == NO_IMAGE
        assert made < set(pods(kubectl))
        command = shlex.split(pending["message"].split("`")[1])
        assert command[0] == "kubectl"
        kubectl(*command[1:])
        eventually(lambda: image() == "ANOTHER-IMAGE", 10)
        eventually(lambda: condition(kubectl.get("isvc", "chat"), "UpdatePending")["status"] == "False", 10)
        eventually(lambda: not made & set(pods(kubectl)), 60)
        eventually(lambda: len(templates(kubectl)) == 1, 30)
