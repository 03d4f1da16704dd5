"""The chart: what it refuses, and the operator that it installs for one namespace."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.layout import Layout
from operator_harness import CHART, Kubectl, World, condition, eventually

pytestmark = pytest.mark.cluster


def helm(cluster: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [cluster.state / "bin" / "helm", f"--kubeconfig={cluster.kubeconfig}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("", "image.repository is required, such as registry.example/you/octavo-operator: `make images REGISTRY="),
        ("image.repository=a", "runtimeImage.repository is required, such as registry.example/you/octavo-runtime"),
        ("image.repository=a,runtimeImage.repository=b,watchNamespace=x", "'watchNamespace' not allowed"),
        ("image.repository=a,runtimeImage.repository=b,logLevel=loud", "logLevel"),
        (
            "image.repository=a,runtimeImage.repository=b,allow={root}",
            "must be one of 'hostPath', 'hostNamespaces', 'privileged'",
        ),
    ],
)
def test_chart_refuses_with_a_sentence(cluster: Layout, settings: str, sentence: str) -> None:
    done = helm(cluster, "install", "octavo", str(CHART), "--dry-run=server", f"--set={settings}")
    assert done.returncode != 0
    assert sentence in done.stderr


@pytest.fixture(scope="module")
def installed(world: World, cluster: Layout, image_references: dict[str, str]) -> Iterator[tuple[Kubectl, str]]:
    """The chart for one namespace, in that namespace."""
    kubectl = world.namespace()
    release = f"octavo-{kubectl.namespace}"
    repository, _, tag = image_references["operator"].rpartition(":")
    values = {
        "image.repository": repository,
        "image.tag": tag,
        "runtimeImage.repository": "octavo.invalid/runtime",
        "watchNamespaces": f"{{{kubectl.namespace}}}",
        "crds.enabled": "false",
        "rbac.aggregate": "false",
        "admissionPolicy.enabled": "false",
        "resources.requests.cpu": "10m",
    }
    place = ["--namespace", kubectl.namespace]
    settings = [f"--set={name}={value}" for name, value in values.items()]
    done = helm(cluster, "install", release, str(CHART), *place, "--wait", "--timeout=2m", *settings)
    assert done.returncode == 0, done.stderr + kubectl.run("describe", "pods").stdout
    yield kubectl, release
    helm(cluster, "uninstall", release, *place)


def test_installed_operator_serves_its_namespace(installed: tuple[Kubectl, str]) -> None:
    kubectl, _ = installed
    spec = {"model": {"uri": "file:///model"}, "replicas": 0}
    metadata = {"name": "chat"}
    kubectl.apply({"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata, "spec": spec})
    eventually(lambda: kubectl.get("deployment", "chat") and kubectl.get("service", "chat"), 20)
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "Stopped", 20)


def test_installed_operator_can_do_nothing_but_its_job(installed: tuple[Kubectl, str]) -> None:
    """The namespace admits restricted pods only; the root file system is read-only, the user is not root."""
    kubectl, release = installed
    program = "import os; assert os.getuid() == 65532; open('/tmp/x', 'w')"
    done = kubectl.run("exec", f"deployment/{release}-operator", "--", "python3", "-c", program)
    assert "Read-only file system" in done.stderr
    account = f"system:serviceaccount:{kubectl.namespace}:{release}-operator"
    for verb, resource in (("get", "secrets"), ("list", "nodes"), ("delete", "pods"), ("create", "pods/exec")):
        answer = kubectl.run("auth", "can-i", verb, resource, f"--as={account}")
        assert answer.stdout.strip() == "no", f"{verb} {resource}"
    assert kubectl.run("auth", "can-i", "patch", "deployments", f"--as={account}").stdout.strip() == "yes"


def test_installed_operators_hand_over(installed: tuple[Kubectl, str]) -> None:
    """Two pods; when the one that leads is deleted, as by a drain, the other one leads at once."""
    kubectl, release = installed
    kubectl("rollout", "status", f"deployment/{release}-operator", "--timeout=60s")

    def holder() -> str:
        return str(kubectl.get("lease", f"{release}-operator")["spec"]["holderIdentity"]).partition("_")[0]

    leader = eventually(holder)
    began = time.monotonic()
    kubectl("delete", "pod", leader, "--wait=false")
    eventually(lambda: holder() not in {"", leader}, 8)
    print(f"handover after {time.monotonic() - began:.1f} s")
    assert kubectl.get("poddisruptionbudget", f"{release}-operator")["status"]["expectedPods"] == 2
    account = f"system:serviceaccount:{kubectl.namespace}:{release}-operator"
    for verb in ("list", "delete"):
        assert kubectl.run("auth", "can-i", verb, "leases", f"--as={account}").stdout.strip() == "no"
    assert kubectl.run("auth", "can-i", "update", "lease/other", f"--as={account}").stdout.strip() == "no"


def test_uninstall_leaves_what_it_served(installed: tuple[Kubectl, str], cluster: Layout) -> None:
    kubectl, release = installed
    assert helm(cluster, "uninstall", release, "--namespace", kubectl.namespace, "--wait").returncode == 0
    assert kubectl.get("crd", "inferenceservices.octavo.dev")
    assert kubectl.get("isvc", "chat")
    assert kubectl.get("deployment", "chat")
    kubectl("delete", "isvc", "chat", "--timeout=10s")
    eventually(lambda: not kubectl.get("deployments"), 30)
