"""The operator stops, is killed, loses its API server, loses its place in a watch: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import namespaces
from cluster.layout import Layout
from faulty_proxy import FaultyProxy
from octavo_operator.api.names import CHILDREN
from octavo_operator.cluster.client import KubernetesClient
from octavo_operator.promises import PROMISES
from operator_harness import (
    NO_IMAGE,
    Kubectl,
    OperatorProcess,
    World,
    condition,
    eventually,
    fetch,
    process_named,
)

pytestmark = pytest.mark.cluster

SOON = 3.0
"""Seconds within which an edit must be followed once the API server is back."""


@pytest.fixture
def kubectl(world: World) -> Iterator[Kubectl]:
    own = world.namespace()
    yield own
    own("delete", "isvc", "--all", "--wait=false")


@pytest.fixture
def proxy(world: World) -> Iterator[FaultyProxy]:
    with FaultyProxy(world.cluster()) as between:
        yield between


@pytest.fixture
def proxied(world: World, proxy: FaultyProxy) -> Iterator[OperatorProcess]:
    process = world.operator(server=proxy.url)
    process.start()
    yield process
    process.stop()


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    defaults = {"model": {"uri": "file:///model"}, "resources": {"requests": {"cpu": "10m"}}, "replicas": 0}
    metadata = {"name": name}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": defaults | spec,
    }


def created(kubectl: Kubectl, name: str = "chat") -> None:
    kubectl.apply(service(name))
    eventually(lambda: kubectl.get("deployment", name) and kubectl.get("service", name))
    eventually(lambda: condition(kubectl.get("isvc", name)))


def follows(kubectl: Kubectl, replicas: int, seconds: float) -> None:
    kubectl("scale", "isvc/chat", f"--replicas={replicas}")
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == replicas, seconds)


def missing(kubectl: Kubectl, kind: str, name: str = "chat") -> bool:
    return not kubectl.get(kind, "--field-selector", f"metadata.name={name}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_restart_mends_what_happened_meanwhile(
    kubectl: Kubectl, own_operator: OperatorProcess, number: signal.Signals
) -> None:
    created(kubectl)
    created(kubectl, "goes")
    began = time.monotonic()
    assert own_operator.stop(number) == (0 if number == signal.SIGTERM else -number)
    assert time.monotonic() - began < 2.0
    kubectl("delete", "service", "chat")
    kubectl.patch("deployment/chat", {"spec": {"paused": True, "replicas": 3}})
    kubectl("delete", "isvc", "goes", "--timeout=10s")
    kubectl.apply(service("comes"))
    eventually(lambda: missing(kubectl, "deployment", "goes"), 30)
    own_operator.start()
    eventually(lambda: kubectl.get("service", "chat") and kubectl.get("deployment", "comes"))
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 0)
    assert missing(kubectl, "deployment", "goes")


def test_restart_changes_nothing_that_is_right(kubectl: Kubectl, own_operator: OperatorProcess) -> None:
    created(kubectl)
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "Stopped")
    kinds = "deployments,services,inferenceservices.octavo.dev"
    before = kubectl.get(kinds)
    own_operator.stop()
    own_operator.start()
    eventually(own_operator.has_looked)
    assert own_operator.writes() == 0
    follows(kubectl, 1, SOON)
    kubectl("scale", "isvc/chat", "--replicas=0")
    after = eventually(lambda: (now := kubectl.get(kinds)) and now[0]["spec"]["replicas"] == 0 and now)
    assert after[0]["spec"] == before[0]["spec"]
    assert after[1] == before[1]


def test_silent_api_server_is_waited_for(kubectl: Kubectl, own_operator: OperatorProcess, cluster: Layout) -> None:
    """SIGSTOP for a while: connections stay open, and nothing answers."""
    created(kubectl)
    api_server = process_named(sorted(namespaces.processes(cluster)), "kube-apiserver")
    os.kill(api_server, signal.SIGSTOP)
    try:
        time.sleep(8)
    finally:
        os.kill(api_server, signal.SIGCONT)
    eventually(lambda: kubectl("get", "--raw", "/readyz") == "ok", 30)
    follows(kubectl, 2, SOON)
    assert own_operator.is_ready()


@pytest.mark.parametrize("status", [503, 500, 403])
def test_outage_is_survived_and_mended_soon(
    kubectl: Kubectl, proxied: OperatorProcess, proxy: FaultyProxy, status: int
) -> None:
    created(kubectl)
    proxy.status = status
    proxy.down = True
    proxy.cut_watches()
    kubectl("delete", "service", "chat")
    kubectl("scale", "isvc/chat", "--replicas=2")
    errors = proxied.log.read_text().count("ERROR")
    time.sleep(12)
    assert proxied.process is not None
    assert proxied.process.poll() is None
    assert proxied.log.read_text().count("ERROR") - errors < 10, "an outage must not flood the log"
    proxy.down = False
    eventually(lambda: kubectl.get("deployment", "chat")["spec"]["replicas"] == 2, SOON)
    eventually(lambda: kubectl.get("service", "chat"), SOON)


def test_start_before_the_api_server_waits_for_it(world: World, kubectl: Kubectl, proxy: FaultyProxy) -> None:
    kubectl.apply(service())
    proxy.down = True
    process = world.operator(server=proxy.url)
    process.start(wait=False)
    try:
        eventually(lambda: "cannot list" in process.log.read_text(), 30)
        assert process.process is not None
        assert process.process.poll() is None
        assert not process.is_ready()
        proxy.down = False
        eventually(process.is_ready, 10)
        eventually(lambda: kubectl.get("deployment", "chat"), SOON)
    finally:
        process.stop()


def test_gap_in_the_watches_loses_nothing(kubectl: Kubectl, proxied: OperatorProcess, proxy: FaultyProxy) -> None:
    """410 Gone: what was deleted in the gap is never reported; the operator's own list finds it."""
    created(kubectl)
    created(kubectl, "goes")
    eventually(lambda: proxied.metrics()['octavo_operator_objects{kind="InferenceService"}'] >= 2)
    known = proxied.metrics()['octavo_operator_objects{kind="InferenceService"}']
    proxied.send(signal.SIGSTOP)
    proxy.gone_watches = 10
    proxy.cut_watches()
    kubectl("delete", "service", "chat")
    kubectl("delete", "isvc", "goes")
    eventually(lambda: missing(kubectl, "deployment", "goes"), 30)
    # News that a list by kopf brings: it is what tells the operator that there was a gap.
    kubectl("label", "isvc", "chat", "a=b")
    proxied.send(signal.SIGCONT)
    eventually(lambda: kubectl.get("service", "chat"), 10)
    eventually(lambda: proxied.metrics()['octavo_operator_objects{kind="InferenceService"}'] == known - 1, 10)
    assert proxy.gone_watches < 10, "no watch was answered 410"
    follows(kubectl, 2, SOON)


def test_silent_watch_is_told_by_livez(world: World, kubectl: Kubectl, proxy: FaultyProxy) -> None:
    """It stays open and lists work: the operator still follows, late, and asks to be started anew."""
    process = world.operator("--resync-seconds=5", server=proxy.url)
    process.start()
    try:
        created(kubectl)
        proxy.mute = True
        follows(kubectl, 1, 10)  # by the list; the answer to its own write must not count as news from the watch
        livez = f"http://127.0.0.1:{process.port}/livez"
        assert fetch(livez)[0] == 200
        eventually(lambda: fetch(livez)[0] == 503, 110, every=1.0)
        found = fetch(livez)[1]
        assert "watches that deliver nothing any more" in found
        assert "InferenceService" in found
        assert "silent watches" in process.log.read_text()
    finally:
        assert process.stop() == 0


def test_namespaced_operator_needs_roles_only(world: World, kubectl: Kubectl) -> None:
    """In the namespaces that it is given, with a Role in each and no rights on the cluster."""
    other = world.namespace()
    rules = world.admin.get("clusterrole", world.home)["rules"]
    world.admin.within(world.home)("create", "serviceaccount", "narrow")
    subject = {"kind": "ServiceAccount", "name": "narrow", "namespace": world.home}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "narrow"}
    kubectl.apply(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "narrow"}, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "narrow"},
         "roleRef": reference, "subjects": [subject]},
    )  # fmt: skip
    process = world.operator(f"--namespaces={kubectl.namespace}", account="narrow")
    process.start()
    try:
        other.apply(service())
        created(kubectl)
        follows(kubectl, 2, SOON)
        assert missing(other, "deployment")
        assert "orbidden" not in process.log.read_text()
    finally:
        assert process.stop() == 0
    # A namespace in which it has no Role, as one that was deleted, holds up no other.
    process = world.operator(f"--namespaces={other.namespace},{kubectl.namespace}", account="narrow")
    process.start()
    try:
        follows(kubectl, 3, SOON)
        assert missing(other, "deployment")
        assert "a namespace is left alone" in process.log.read_text()
    finally:
        assert process.stop() == 0


def test_role_grants_these_rights_and_no_others(world: World) -> None:
    """What each is for; that none is missing all the other stories show."""
    rules = world.admin.get("clusterrole", world.home)["rules"]
    granted = sorted(f"{resource} {verb}" for rule in rules for resource in rule["resources"] for verb in rule["verbs"])
    children = [f"{kind.plural} {verb}" for kind in CHILDREN for verb in ("create", "get", "list", "patch", "watch")]
    watched = ["inferenceservices list", "inferenceservices watch", "pods list", "pods watch"]
    scaling = ["inferenceservices/scale patch", "pods patch"]
    read = ["persistentvolumeclaims get", "serviceaccounts get"]
    revisions = [f"controllerrevisions {verb}" for verb in ("create", "delete", "list", "patch", "watch")]
    told = ["events create", "events get", "events patch"]
    assert granted == sorted(
        [*children, *revisions, *watched, *scaling, *read, *told, "inferenceservices/status patch"]
    )
    create, use = world.admin.within(world.home).get("role", f"{world.home}-lease")["rules"]
    assert (create["resources"], create["verbs"]) == (["leases"], ["create"])
    assert (use["resources"], use["resourceNames"], use["verbs"]) == (["leases"], [world.home], ["get", "update"])


def test_start_without_the_crd_ends_with_a_sentence(world: World, proxy: FaultyProxy) -> None:
    proxy.missing = "inferenceservices"
    process = world.operator(server=proxy.url)
    process.start(wait=False)
    assert process.process is not None
    assert process.process.wait(30) == 1
    assert "the CRD inferenceservices.octavo.dev is not installed: kubectl apply" in process.log.read_text()


def test_start_with_a_wrong_kubeconfig_ends_with_a_sentence(world: World) -> None:
    command = [sys.executable, "-m", "octavo_operator", "--runtime-image", NO_IMAGE, "--kubeconfig", str(world.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "no way to the cluster" in done.stderr


@pytest.mark.parametrize("promise", PROMISES)
def test_api_server_keeps_the_promises_that_the_fake_keeps(world: World, kubectl: Kubectl, promise: str) -> None:
    async def check() -> None:
        client = await KubernetesClient.connect(str(world.admin.kubeconfig))
        try:
            await PROMISES[promise](client, kubectl.namespace)
        finally:
            await client.close()

    asyncio.run(check())
