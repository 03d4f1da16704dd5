"""An installation without the admission policy: the operator itself refuses what reaches beyond the pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.layout import Layout
from operator_harness import (
    BEYOND_THE_POD,
    Kubectl,
    OperatorProcess,
    World,
    condition,
    eventually,
    operator_world,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def world(cluster: Layout) -> Iterator[World]:
    commands = cluster.state / "bin"
    with operator_world(commands / "kubectl", commands / "helm", cluster.kubeconfig, policy=False) as prepared:
        yield prepared


@pytest.fixture
def operator(world: World) -> Iterator[OperatorProcess]:
    process = world.operator()
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def kubectl(world: World, operator: OperatorProcess) -> Iterator[Kubectl]:
    assert operator.is_ready()
    own = world.namespace()
    yield own
    own("delete", "isvc", "--all", "--wait=false")


def service(**pod: Any) -> dict[str, Any]:
    spec = {"model": {"uri": "file:///model"}, "replicas": 0, "podTemplate": {"spec": pod}}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": spec,
    }


def ready(kubectl: Kubectl) -> tuple[str, str]:
    found = condition(kubectl.get("isvc", "chat"))
    return found["reason"], found["message"]


@pytest.mark.parametrize("what", BEYOND_THE_POD)
def test_object_that_reaches_beyond_the_pod_gets_nothing_and_says_why(kubectl: Kubectl, what: str) -> None:
    privilege, fields = BEYOND_THE_POD[what]
    kubectl.apply(service(**fields))
    reason, message = eventually(lambda: ready(kubectl))
    assert reason == "NotAllowed"
    assert f"--allow={privilege} " in message
    assert kubectl.get("deployments,services,networkpolicies,poddisruptionbudgets,controllerrevisions") == []


def test_what_runs_goes_on_when_its_object_asks_for_too_much(kubectl: Kubectl) -> None:
    kubectl.apply(service())
    eventually(lambda: ready(kubectl)[0] == "Stopped")
    before = kubectl.get("deployment", "chat")
    kubectl.apply(service(hostNetwork=True))
    eventually(lambda: ready(kubectl)[0] == "NotAllowed")
    assert kubectl.get("deployment", "chat") == before
    kubectl.apply(service())
    eventually(lambda: ready(kubectl)[0] == "Stopped")


def test_service_account_missing_then_unlabelled_then_allowed(kubectl: Kubectl) -> None:
    kubectl.apply(service(serviceAccountName="reader"))
    eventually(lambda: ready(kubectl)[0] == "ServiceAccountNotFound")
    kubectl("create", "serviceaccount", "reader")
    eventually(lambda: ready(kubectl)[0] == "NotAllowed", 20)
    assert kubectl.get("deployments") == []
    assert "octavo.dev/allowed=true" in ready(kubectl)[1]
    kubectl("label", "serviceaccount", "reader", "octavo.dev/allowed=true")
    eventually(lambda: ready(kubectl)[0] == "Stopped", 20)
    pod = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("reader", False)


def test_operator_that_was_told_so_allows_it(world: World) -> None:
    kubectl = world.namespace()
    generous = world.operator("--allow=hostPath,hostNamespaces,privileged")
    generous.start()
    for _, fields in BEYOND_THE_POD.values():
        kubectl.apply(service(**fields))
        eventually(lambda: ready(kubectl)[0] == "Stopped")
    assert kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["initContainers"][1]["name"] == "own"
    kubectl("delete", "isvc", "--all")
    assert generous.stop() == 0
