"""`kubectl octavo` as a user types it: kubectl finds the plugin on the PATH, and the user has rights in one namespace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import models
from cluster.layout import Layout
from demo import CLAIM, MODEL, converted_model
from operator_harness import Kubectl, OperatorProcess, World, condition, eventually

pytestmark = pytest.mark.cluster

START = 180.0  # seconds for a pod to load on a busy machine
WEIGHTS, PER_TOKEN = 269030016, 30 * 2 * 3 * 64 * 4
PLANS = "--selector=app.kubernetes.io/name=octavo-plan"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with a kubeconfig of their own, whose context names the namespace."""

    kubeconfig: Path
    path: str

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        environment = {"PATH": self.path, "HOME": str(self.kubeconfig.parent), "KUBECONFIG": str(self.kubeconfig)}
        return ["kubectl", "octavo", *arguments], environment

    def octavo(self, *arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
        """Runs the plugin, whatever comes of it."""
        command, environment = self.command(*arguments)
        text = None if given is None else json.dumps(given)
        return subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)

    def ask(self, *arguments: str, given: object = None, code: int = 0) -> str:
        """What it prints; its exit code is to be this one."""
        done = self.octavo(*arguments, given=given)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str, given: object = None, code: int = 0) -> dict[str, Any]:
        """Its JSON."""
        found: dict[str, Any] = json.loads(self.ask(*arguments, "-o", "json", given=given, code=code))
        return found


@pytest.fixture(scope="module")
def operator(world: World, image_references: dict[str, str]) -> Iterator[OperatorProcess]:
    process = world.operator(f"--runtime-image={image_references['runtime']}")
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def kubectl(world: World, cluster: Layout, operator: OperatorProcess) -> Iterator[Kubectl]:
    """The administrator's kubectl in a namespace with the model."""
    assert operator.is_ready()
    own = world.namespace()
    models.publish(cluster, converted_model(), MODEL, CLAIM, own.namespace)
    yield own
    own("delete", "isvc", "--all", "--wait=false")


@pytest.fixture
def person(world: World, cluster: Layout, kubectl: Kubectl, tmp_path: Path) -> Callable[[str], Person]:
    """Makes somebody who has a role of Kubernetes' own, and the chart's part of it, in the namespace alone."""

    def make(role: str) -> Person:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": role}}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": kubectl.namespace}],
        }
        kubectl.apply(account, binding)
        context = {"cluster": "c", "user": "u", "namespace": kubectl.namespace}
        path = tmp_path / f"{role}.kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": world.cluster()}],
                    "users": [{"name": "u", "user": {"token": kubectl("create", "token", role)}}],
                    "contexts": [{"name": "x", "context": context}],
                    "current-context": "x",
                }
            )
        )
        folders = [str(Path(sys.executable).parent), str(cluster.state / "bin"), os.environ["PATH"]]
        return Person(path, ":".join(folders))

    return make


def service(**changes: Any) -> dict[str, Any]:
    runtime = {"dtype": "float32", "kvCacheMemory": "256Mi", **changes.pop("runtime", {})}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": f"pvc://{CLAIM}/{MODEL}"},
            "runtime": runtime,
            "resources": {"requests": {"cpu": "10m", "memory": "1Gi"}},
            "rollout": {"drainSeconds": 0},
            **changes,
        },
    }


def words(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def asking(address: str) -> Iterator[None]:
    """One request after the other meanwhile."""
    body = json.dumps({"model": "chat", "prompt": "The capital of France is", "max_tokens": 16}).encode()
    request = urllib.request.Request(f"http://{address}/v1/completions", body, {"Content-Type": "application/json"})
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 the Service's own address
                answer.read()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_life_of_a_service_for_a_user_with_rights_in_one_namespace(
    kubectl: Kubectl, person: Callable[[str], Person], image_references: dict[str, str]
) -> None:
    ann, image = person("edit"), f"--runtime-image={image_references['runtime']}"
    told = ann.json("plan", "-f", "-", image, given=service())["objects"][0]
    tokens = (256 << 20) // (16 * PER_TOKEN) * 16
    assert told["action"] == "created"
    assert told["plan"]["weightsBytes"] == WEIGHTS
    assert (told["plan"]["kvBytesPerToken"], told["plan"]["kvTokens"]) == (PER_TOKEN, tokens)
    assert told["plan"]["maxModelLen"] > 1000
    assert told["nodes"] is None
    assert 'cannot list resource "nodes"' in " ".join(told["missing"])
    assert kubectl.get("isvc") == [], "nothing is applied"
    eventually(lambda: kubectl.get("pods", PLANS) == [])

    kubectl.apply(service())
    eventually(lambda: ann.json("status", "chat", code=1)["reason"] == "Starting", 30)
    kubectl("wait", "isvc/chat", "--for=condition=Ready", f"--timeout={START:.0f}s")
    screen = ann.ask("status", "chat")
    assert re.match(rf"chat in namespace {kubectl.namespace} serves, for \d+s: 1 of 1 pods are ready\n", screen)
    assert re.search(r"chat-\S+ +\S+ +ready +0 +current +\d+s", screen)
    assert "weights 257 MiB, KV 45 KiB per token" in screen
    assert "nothing was decided since it was made" in ann.ask("why", "chat")

    (pod,) = kubectl.get("pods")
    short = pod["metadata"]["name"].removeprefix("chat-")
    assert all(line.startswith(f"{short} | ") for line in ann.ask("logs", "chat").splitlines())
    address = kubectl.get("service", "chat")["spec"]["clusterIP"]
    with asking(address):
        (load,) = ann.json("top", "chat", "--interval", "15")["pods"]
    assert load["state"] == "ready"
    assert load["tokensPerSecond"] > 1
    assert load["ttftP50"] > 0

    again = ann.json("plan", "-f", "-", given=service(replicas=2))["objects"][0]
    assert (again["podsReplaced"], again["edits"], again["note"]) == (0, ["replicas: 1 to 2"], None)
    assert again["planSource"].startswith("planned by pod chat-")
    larger = ann.ask("plan", "-f", "-", "--no-pod", given=service(runtime={"kvCacheMemory": "128Mi"}))
    assert "1 pod would be replaced (type Auto: a new one starts" in words(larger)
    assert "not known: --no-pod was given" in words(larger)

    kubectl("delete", "service", "chat")
    eventually(lambda: "Service chat was created again" in ann.ask("why", "chat"))
    (decision,) = ann.json("why", "chat")["decisions"]
    assert (decision["subject"], decision["because"]) == ("Repair", "it had been deleted")


def test_view_is_enough_to_ask_and_what_more_is_needed_is_told(
    kubectl: Kubectl, person: Callable[[str], Person]
) -> None:
    bob = person("view")
    kubectl.apply(service(model={"uri": "pvc://nobody/model"}))
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "ClaimNotFound")
    eventually(lambda: kubectl.get("pods"))
    shown = bob.ask("status", "chat", code=1)
    assert "does not serve: ClaimNotFound" in shown
    assert "to do: create it, or change model.uri; heals by itself" in words(shown)
    assert "not shown" not in shown
    kubectl.patch("service/chat", {"spec": {"type": "NodePort"}})
    eventually(lambda: "spec.type: NodePort to ClusterIP" in bob.ask("why", "chat"))
    assert "because someone else had changed it" in bob.ask("why", "chat")
    refused = bob.octavo("top", "chat", "--once")
    assert refused.returncode == 3
    assert 'cannot get resource "pods/proxy"' in refused.stdout
    refused = bob.octavo("plan", "-f", "-", given=service(replicas=2))
    assert refused.returncode == 1
    assert "is forbidden" in refused.stderr
    missing = bob.octavo("status", "chta")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert f"no InferenceService chta in namespace {kubectl.namespace}: there are chat" in missing.stderr
    elsewhere = bob.octavo("status", "chat", "-n", "default")
    assert elsewhere.returncode == 3
    assert "hint: ask for this right" in elsewhere.stderr


def test_plan_shows_admissions_words_the_plans_words_and_the_nodes(
    kubectl: Kubectl, cluster: Layout, tmp_path: Path, image_references: dict[str, str]
) -> None:
    folders = [str(Path(sys.executable).parent), str(cluster.state / "bin"), os.environ["PATH"]]
    admin = Person(cluster.kubeconfig, ":".join(folders))
    where: Sequence[str] = ("plan", "-n", kubectl.namespace, f"--runtime-image={image_references['runtime']}", "-f")
    refused = admin.octavo(*where, "-", given=service(runtime={"quantization": "w4a8"}))
    assert refused.returncode == 1
    assert "quantization" in refused.stderr
    assert "Traceback" not in refused.stderr
    path = tmp_path / "chat.yaml"
    path.write_text(yaml.safe_dump(service(runtime={"kvCacheMemory": "1Mi", "maxModelLen": 4096})))
    screen = admin.ask(*where, str(path), code=1)
    assert "cannot be served: NotEnoughMemoryForKV" in words(screen)
    assert "runtime.kvCacheMemory 188743680" in words(screen)
    assert re.search(r"^\S+ +yes, \d+ pods? +-$", screen, re.MULTILINE)
    gpus = service(resources={"limits": {"nvidia.com/gpu": 1}})
    screen = admin.ask(*where, "-", "--no-pod", given=gpus)
    assert "nvidia.com/gpu: 1 wanted, 0 of 0 free" in screen
    other = admin.octavo(*where, "-", given={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    assert other.returncode == 2
    assert "there is no InferenceService in it" in other.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_plan_interrupted_leaves_no_pod(kubectl: Kubectl, cluster: Layout, number: signal.Signals) -> None:
    folders = [str(Path(sys.executable).parent), str(cluster.state / "bin"), os.environ["PATH"]]
    _, environment = Person(cluster.kubeconfig, ":".join(folders)).command()
    # kubectl's process becomes the plugin's: a signal reaches it.
    command = ["kubectl", "octavo", "plan", "-n", kubectl.namespace, "-f", "-"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(service(runtime={"image": "octavo.invalid/none:1"})).encode())
            process.stdin.close()
            eventually(lambda: kubectl.get("pods", PLANS), 30)
            process.send_signal(number)
            assert process.wait(30) == 130
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    eventually(lambda: kubectl.get("pods", PLANS) == [])
