"""What the operator's stories share: kubectl, the operator as a process on this machine, and a world for it.

The operator runs with the rights that the chart grants it and no others, so that every story is also a test of the
role. An operator that is installed in the cluster is paused meanwhile: two would fight over the same objects.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cluster.layout import REPOSITORY

T = TypeVar("T")
Manifest = dict[str, Any]

CRD = REPOSITORY / "crds" / "octavo.dev_inferenceservices.yaml"
CHART = REPOSITORY / "charts" / "octavo"
NO_IMAGE = "NOT-AN-IMAGE"
"""Pods of this image stay, stay unready, and say the same thing for ever."""


PROGRAM = """#!/usr/bin/env python3
import http.server, os, signal, sys
if sys.argv[1] == "plan":
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
told = b""
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if self.path == "/readyz" and "UNREADY" in os.environ else 200)
        self.end_headers()
        self.wfile.write(told if self.path == "/metrics" else b"")
    def do_PUT(self):
        global told
        told = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""

STUB = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stub"}, "data": {"octavo": PROGRAM}}
"""What serves in the place of `octavo` in the pods of `stubbed`; it must be in their namespace. As its metrics each tells
what was PUT to it."""

BEYOND_THE_POD: dict[str, tuple[str, Manifest]] = {
    "volume of the node": ("hostPath", {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}),
    "network of the node": ("hostNamespaces", {"hostNetwork": True}),
    "processes of the node": ("hostNamespaces", {"hostPID": True}),
    "memory of the node": ("hostNamespaces", {"hostIPC": True}),
    **{
        next(iter(context)): (
            "privileged",
            {
                "initContainers": [
                    {"name": "plain", "image": NO_IMAGE},
                    {"name": "own", "image": NO_IMAGE, "securityContext": context},
                ]
            },
        )
        for context in (
            {"privileged": True},
            {"allowPrivilegeEscalation": True},
            {"runAsUser": 0},
            {"runAsNonRoot": False},
            {"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_PTRACE"]}},
        )
    },
}
"""What `podTemplate.spec` must not have, by name: the privilege that would allow it, and the fields."""


def eventually(read: Callable[[], T], seconds: float = 10.0, *, every: float = 0.05) -> T:
    """Reads until something true comes; a failing read counts as nothing.

    Raises:
        AssertionError: nothing true came in time; it tells the last.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            value = read()
        except (AssertionError, KeyError, StopIteration, KubectlError, OSError) as error:
            last = error
        else:
            if value:
                return value
            last = value
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s; last: {last!r}")


class KubectlError(Exception):
    """kubectl did not do what it was asked; the message is its own."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace."""

    command: Path
    kubeconfig: Path
    namespace: str = "default"

    def __call__(self, *arguments: str, given: object = None) -> str:
        """Runs it; what it printed. `given` is sent as a manifest."""
        done = self.run(*arguments, given=given)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def run(self, *arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
        """Runs it, whatever comes of it."""
        return subprocess.run(
            [self.command, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *arguments],
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )

    def apply(self, *manifests: Manifest, arguments: Sequence[str] = ()) -> str:
        """`kubectl apply`."""
        return self(
            "apply", *arguments, "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        )

    def get(self, *arguments: str) -> Any:
        """`kubectl get` as JSON; the items of a list."""
        found = json.loads(self("get", *arguments, "-o", "json"))
        return found["items"] if found["kind"].endswith("List") else found

    def patch(self, resource: str, patch: object, kind: str = "merge") -> str:
        """`kubectl patch`."""
        return self("patch", *resource.split("/"), f"--type={kind}", f"--patch={json.dumps(patch)}")

    def within(self, namespace: str) -> Kubectl:
        """The same in another namespace."""
        return Kubectl(self.command, self.kubeconfig, namespace)


def condition(service: Manifest, kind: str = "Ready") -> Manifest:
    """One condition of an InferenceService, if it speaks of the present generation."""
    status = service.get("status", {})
    assert status.get("observedGeneration") == service["metadata"]["generation"]
    found: Manifest = next(one for one in status["conditions"] if one["type"] == kind)
    return found


def stubbed(image: str, gpus: int = 1, **spec: Any) -> Manifest:
    """An InferenceService whose pods become ready.

    Args:
        image: an image with a Python.
        gpus: the GPUs of each pod.
        spec: more of its spec.
    """
    runtime = {
        "image": image,
        "env": [{"name": "PATH", "value": "/stub:/usr/local/bin:/usr/bin:/bin"}],
        "volumeMounts": [{"name": "stub", "mountPath": "/stub"}],
        **spec.pop("runtime", {}),
    }
    volume = {"name": "stub", "configMap": {"name": "stub", "defaultMode": 0o755}}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "file:///model"},
            "runtime": runtime,
            "resources": {"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": gpus} if gpus else {}},
            "rollout": {"drainSeconds": 0},
            "podTemplate": {"spec": {"volumes": [volume]}},
            **spec,
        },
    }


@dataclass(slots=True)
class OperatorProcess:
    """The operator as a process on this machine."""

    kubeconfig: Path
    folder: Path
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def log(self) -> Path:
        """Everything it said, over all its lives."""
        return self.folder / "operator.log"

    def start(self, *, wait: bool = True) -> None:
        """Starts it and waits until it is ready."""
        self.port = free_port()
        command = [
            *("setpriv", "--pdeathsig=KILL"),  # a test run that is killed leaves no operator behind
            *(sys.executable, "-m", "octavo_operator", f"--runtime-image={NO_IMAGE}"),
            *("--host=127.0.0.1", f"--port={self.port}", f"--kubeconfig={self.kubeconfig}", "--log-format=text"),
            *self.arguments,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        if wait:
            eventually(self.is_ready, 30)

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return fetch(f"http://127.0.0.1:{self.port}/readyz")[0] == 200

    def metrics(self) -> dict[str, float]:
        """Its samples by name and labels, as in the exposition."""
        _, text = fetch(f"http://127.0.0.1:{self.port}/metrics")
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def writes(self) -> float:
        """How many objects it has written."""
        return sum(value for name, value in self.metrics().items() if name.startswith("octavo_operator_writes_total"))

    def has_looked(self) -> bool:
        """Whether it has looked at an object and found nothing left to do."""
        return self.metrics().get('octavo_operator_reconciles_total{outcome="done"}', 0) > 0

    def send(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        return self.process.wait(20)


@dataclass(slots=True)
class World:
    """A cluster with the CRD and the operator's identity, and nobody else at work.

    Attributes:
        admin: kubectl with all rights.
        folder: for files; it goes with the world.
        home: namespace of the operator's identity; also the name of its service account, its role and its Lease.
        namespaces: the stories' namespaces.
    """

    admin: Kubectl
    folder: Path
    home: str
    namespaces: list[str] = field(default_factory=list)

    def namespace(self) -> Kubectl:
        """kubectl in a new namespace that admits restricted pods only."""
        name = f"story-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        self.namespaces.append(name)
        return self.admin.within(name)

    def operator(self, *arguments: str, server: str | None = None, account: str | None = None) -> OperatorProcess:
        """An operator that is not started yet.

        Args:
            arguments: more flags.
            server: URL of the API server, if not the cluster's own.
            account: its service account, if not the one with the chart's role.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        token = self.admin.within(self.home)("create", "token", account or self.home, "--duration=4h")
        path = folder / "kubeconfig"
        write_kubeconfig(path, self.cluster() if server is None else {"server": server}, token)
        return OperatorProcess(path, folder, arguments)

    def cluster(self) -> dict[str, str]:
        """The cluster's entry in the administrator's kubeconfig."""
        return cluster_entry(self.admin)


def cluster_entry(kubectl: Kubectl) -> dict[str, str]:
    """The cluster's entry in a kubeconfig."""
    entry: dict[str, str] = yaml.safe_load(kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
    return entry


def write_kubeconfig(path: Path, cluster: dict[str, str], token: str) -> None:
    """A kubeconfig for whoever has the token.

    Args:
        path: the file.
        cluster: its entry for the cluster.
        token: of a service account.
    """
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )


@contextmanager
def operator_world(kubectl: Path, helm: Path, kubeconfig: Path, *, policy: bool = True) -> Iterator[World]:
    """Prepares a cluster for the operator's stories, and leaves it as it was.

    Args:
        kubectl: the program.
        helm: the program.
        kubeconfig: the administrator's.
        policy: whether the chart's admission policy is at the door.
    """
    admin = Kubectl(kubectl, kubeconfig)
    with tempfile.TemporaryDirectory(prefix="octavo-stories-") as folder, _others_paused(admin):
        was_there = not admin.run("get", "-f", str(CRD)).returncode
        admin("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        # kubectl wait fails on an object that has no conditions yet.
        eventually(lambda: admin("wait", "--for=condition=Established", "-f", str(CRD)))
        release = f"octavo-{uuid.uuid4().hex[:8]}"
        home = f"{release}-operator"
        rights = chart_manifests(helm, release, home, *["rbac", "policy"][: 1 + policy])
        admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": home}}
        admin.within(home).apply(account, *rights)
        world = World(admin, Path(folder), home)
        try:
            if policy:
                eventually(lambda: _is_guarded(admin.within(home)))
            yield world
        finally:
            admin("delete", "namespace", "--wait=false", "--ignore-not-found", home, *world.namespaces)
            for manifest in rights:
                if "namespace" not in manifest["metadata"]:
                    admin("delete", manifest["kind"], manifest["metadata"]["name"])
            if not was_there:
                # Helm would not adopt a CRD that it did not install.
                admin("delete", "-f", str(CRD))


def _is_guarded(kubectl: Kubectl) -> bool:
    """Whether the API server has come to enforce the admission policy."""
    _, pod = BEYOND_THE_POD["network of the node"]
    spec = {"model": {"uri": "file:///model"}, "podTemplate": {"spec": pod}}
    manifest = {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "x"},
        "spec": spec,
    }
    return "is not allowed" in kubectl.run("create", "--dry-run=server", "-f", "-", given=manifest).stderr


def chart_manifests(
    helm: Path, release: str, namespace: str, *templates: str, arguments: Sequence[str] = ()
) -> list[Manifest]:
    """What some templates of the chart make.

    Args:
        helm: the program.
        release: the release's name.
        namespace: its namespace.
        templates: their names.
        arguments: more of `helm template`.
    """
    command: list[str | Path] = [
        *(helm, "template", release, CHART, f"--namespace={namespace}"),
        *(f"--show-only=templates/{name}.yaml" for name in templates),
        *("--kube-version=1.34.0", "--set=image.repository=none,runtimeImage.repository=none", *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


@contextmanager
def _others_paused(admin: Kubectl) -> Iterator[None]:
    """Scales operators that the chart has installed to zero and lets their policies only audit, and back."""
    label = "--selector=app.kubernetes.io/name=octavo-operator"
    installed = admin.get("deployments", "--all-namespaces", label)

    def scale(one: Manifest, replicas: int) -> None:
        kubectl = admin.within(one["metadata"]["namespace"])
        kubectl("scale", f"deployment/{one['metadata']['name']}", f"--replicas={replicas}")

    bindings = admin.get("validatingadmissionpolicybindings", label)

    def bind(action: str) -> None:
        for one in bindings:
            name = f"validatingadmissionpolicybinding/{one['metadata']['name']}"
            admin.patch(name, {"spec": {"validationActions": [action]}})

    for one in installed:
        scale(one, 0)
    bind("Audit")
    eventually(lambda: not admin.get("pods", "--all-namespaces", label), 60)
    try:
        yield
    finally:
        bind("Deny")
        for one in installed:
            scale(one, one["spec"]["replicas"])


def fetch(url: str) -> tuple[int, str]:
    """Status and text of a URL on this machine."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 the callers' own http:// addresses
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def free_port(address: str = "127.0.0.1") -> int:
    """A port of one of this machine's addresses that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def process_named(pids: Sequence[int], name: str) -> int:
    """The process of these whose program is `name`."""
    for pid in pids:
        with suppress(OSError):
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            if Path(program).name == name:
                return pid
    raise AssertionError(f"no process {name}")
