"""Images by way of a registry: private, with a certificate of its own, and a cluster that has none of them yet.

The runtime's image is 6 GB, which two cores need minutes to push and to pull. A small image with the same command
line stands in for it; the operator's is the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster import images, lifecycle, models, node
from cluster.layout import REPOSITORY, Layout
from cluster.progress import Progress
from demo import CLAIM, MODEL
from operator_harness import CHART, Kubectl, condition, eventually
from registry_harness import PASSWORD, USER, Registry, running_registry

pytestmark = pytest.mark.cluster

ISVC = "inferenceservices.octavo.dev"
SECRET = "registry"  # noqa: S105 a name
SAYS = "I came from the registry."
STAND_IN = "localhost/octavo-story-runtime:1"
STAND_IN_PROGRAM = f"""\
#!/opt/octavo/bin/python
import json, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Routes(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        event = {{"choices": [{{"delta": {{"content": "{SAYS}"}}}}]}}
        self.answer(b"data: " + json.dumps(event).encode() + b"\\n\\ndata: [DONE]\\n\\n")

    def answer(self, body):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

if sys.argv[1] == "plan":
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
ThreadingHTTPServer(("", port), Routes).serve_forever()
"""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Layout]:
    """Somebody else's cluster, whose node has no image of ours. What a killed run has left of it goes first."""
    layout = Layout.of(REPOSITORY / ".cluster-registry")
    lifecycle.down(layout, purge=True, progress=Progress())
    lifecycle.up(layout, None, Progress())
    yield layout
    lifecycle.down(layout, purge=True, progress=Progress())


@pytest.fixture(scope="module")
def registry(elsewhere: Layout) -> Iterator[Registry]:
    with running_registry(elsewhere.state / "registry", str(elsewhere.host_ip)) as running:
        running.let_pull(elsewhere)
        yield running


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Local names of the operator's image and of the stand-in for the runtime's."""
    operator = images.build(None, None, Progress())["operator"]
    context = tmp_path_factory.mktemp("stand-in")
    (context / "octavo").write_text(STAND_IN_PROGRAM)
    (context / "octavo").chmod(0o755)
    (context / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY octavo /opt/octavo/bin/octavo\n")
    images.build_image(context / "Containerfile", context, STAND_IN, operator)
    yield {"operator": operator, "runtime": STAND_IN}
    images.forget(STAND_IN)


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """What a user types, with an environment that is the same on every machine."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"KUBECONFIG", "MAKEFLAGS"}}
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**inherited, "PYTHONPATH": str(REPOSITORY / "e2e"), **environment},
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def push(registry: Registry, image: str) -> str:
    """Pushes as `make images REGISTRY=…` does, but one image; its name in the registry."""
    command = registry.trusted_by(sys.executable, "-m", "cluster", "push", image, f"{registry.host}/you")
    done = run(command, REGISTRY_AUTH_FILE=str(registry.log_in()))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def pushed(registry: Registry, built: dict[str, str]) -> dict[str, str]:
    """Names in the registry."""
    return {name: push(registry, image) for name, image in built.items()}


@dataclass(frozen=True, slots=True)
class Installed:
    """The chart, installed as the README says."""

    kubectl: Kubectl
    images_before: set[str]


@pytest.fixture(scope="module")
def installed(elsewhere: Layout, registry: Registry, pushed: dict[str, str]) -> Installed:
    before = node.image_names(elsewhere)
    kubectl = Kubectl(elsewhere.state / "bin" / "kubectl", elsewhere.kubeconfig)
    kubectl("create", "namespace", "octavo-system")
    for namespace in ("octavo-system", "default"):
        add_secret(kubectl.within(namespace), registry)
    settings = [f"imagePullSecrets={{{SECRET}}}"]
    for value, reference in (("image", pushed["operator"]), ("runtimeImage", pushed["runtime"])):
        repository, _, tag = reference.rpartition(":")
        settings += [f"{value}.repository={repository}", f"{value}.tag={tag}"]
    helm = [str(elsewhere.state / "bin" / "helm"), f"--kubeconfig={elsewhere.kubeconfig}"]
    place = ["--namespace=octavo-system", "--create-namespace", "--wait", "--timeout=2m"]
    done = run([*helm, "install", "octavo", str(CHART), *place, *(f"--set-string={setting}" for setting in settings)])
    assert done.returncode == 0, done.stderr + kubectl("describe", "pods", "--namespace=octavo-system")
    return Installed(kubectl, before)


def add_secret(kubectl: Kubectl, registry: Registry) -> None:
    account = [f"--docker-server={registry.host}", f"--docker-username={USER}", f"--docker-password={PASSWORD}"]
    kubectl("create", "secret", "docker-registry", SECRET, *account)


@pytest.fixture
def namespace(installed: Installed, registry: Registry) -> Kubectl:
    """kubectl in a new namespace that has the Secret."""
    name = f"story-{uuid.uuid4().hex[:8]}"
    installed.kubectl("create", "namespace", name)
    kubectl = installed.kubectl.within(name)
    add_secret(kubectl, registry)
    return kubectl


def service(secret: str | None, **runtime: object) -> dict[str, Any]:
    pod = {"imagePullSecrets": [{"name": secret}]} if secret else {}
    spec = {"model": {"uri": "file:///model"}, "runtime": runtime, "podTemplate": {"spec": pod}}
    metadata = {"name": "chat"}
    return {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("trusted", "place", "says"),
    [
        (False, "HOST:1", "connection refused; is the registry up, and is this its name?"),
        (False, "REGISTRY", "put its authority's certificate into /etc/containers/certs.d/REGISTRY/ca.crt"),
        (True, "REGISTRY", "log in with `buildah login REGISTRY`"),
    ],
    ids=["nobody there", "unknown authority", "no credentials"],
)
@pytest.mark.usefixtures("built")
def test_make_images_says_in_a_sentence_why_it_cannot_push(
    registry: Registry, *, trusted: bool, place: str, says: str
) -> None:
    place, says = (
        text.replace("HOST", registry.host.partition(":")[0]).replace("REGISTRY", registry.host)
        for text in (place, says)
    )
    command = ("make", "images", f"REGISTRY={place}/you")
    nobody = registry.folder / "nobody.json"
    nobody.write_text("{}")
    done = run(registry.trusted_by(*command) if trusted else [*command], REGISTRY_AUTH_FILE=str(nobody))
    assert done.returncode != 0
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("cluster: error: ")]
    assert f"cannot push {place}/you/octavo-operator:" in sentence
    assert says in sentence


def test_a_second_push_sends_nothing(registry: Registry, built: dict[str, str], pushed: dict[str, str]) -> None:
    so_far = registry.requests()
    assert any(request.sends_content for request in so_far)
    assert push(registry, built["operator"]) == pushed["operator"]
    again = registry.requests()[len(so_far) :]
    assert any(request.method == "PUT" and "/manifests/" in request.path for request in again)
    assert not any(request.sends_content for request in again)


def test_operator_installed_as_the_readme_says_is_pulled_whole(
    elsewhere: Layout, registry: Registry, installed: Installed, pushed: dict[str, str]
) -> None:
    assert not any(name.startswith(registry.host) for name in installed.images_before)
    assert pushed["operator"] in node.image_names(elsewhere)
    # Helm waited for them; a probe that is late on a busy machine takes one back for a moment.
    installed.kubectl("wait", "pods", "--all", "--namespace=octavo-system", "--for=condition=Ready", "--timeout=60s")
    pods = installed.kubectl.get("pods", "--namespace=octavo-system")
    assert len(pods) == 2  # one works, one stands by
    for pod in pods:
        [status] = pod["status"]["containerStatuses"]
        assert status["ready"]
        assert status["image"] == pushed["operator"]
    pulls = [request for request in registry.requests() if request.agent.startswith("containerd/")]
    assert any("/octavo-operator/manifests/" in pull.path and pull.status == 401 for pull in pulls), "it is not private"
    layers = [pull.size for pull in pulls if "/octavo-operator/blobs/" in pull.path and pull.status == 200]
    assert sum(layers) > 50e6


def test_service_pulls_its_image_with_the_secret_of_its_pod_template(
    namespace: Kubectl, pushed: dict[str, str]
) -> None:
    namespace.apply(service(SECRET))
    namespace("wait", f"{ISVC}/chat", "--for=condition=Ready", "--timeout=60s")
    [pod] = namespace.get("pods")
    assert pod["status"]["containerStatuses"][0]["image"] == pushed["runtime"]
    address = namespace.get("service", "chat")["spec"]["clusterIP"]
    with urllib.request.urlopen(f"http://{address}/v1/chat/completions", data=b"{}", timeout=5) as answer:
        assert SAYS in answer.read().decode()


@pytest.mark.parametrize(
    ("secret", "says"), [(SECRET, "not found"), (None, "401 Unauthorized")], ids=["no such tag", "no secret"]
)
def test_condition_names_the_image_that_cannot_be_pulled(
    namespace: Kubectl, pushed: dict[str, str], secret: str | None, says: str
) -> None:
    image = f"{pushed['runtime'].rpartition(':')[0]}:never-pushed"
    namespace.apply(service(secret, image=image))
    found = eventually(
        lambda: (ready := condition(namespace.get(ISVC, "chat")))["reason"] == "ImagePullBackOff" and ready, 30
    )
    assert isinstance(found, dict)
    assert found["status"] == "False"
    assert image in found["message"]
    assert says in found["message"]


def make_demo(elsewhere: Layout, pushed: dict[str, str], secret: str) -> subprocess.CompletedProcess[str]:
    return run(
        [
            *("make", "--no-print-directory", "demo", f"KUBECONFIG={elsewhere.kubeconfig}", f"PULL_SECRET={secret}"),
            *(f"OPERATOR_IMAGE={pushed['operator']}", f"RUNTIME_IMAGE={pushed['runtime']}"),
        ],
        PATH=f"{elsewhere.state / 'bin'}:{os.environ['PATH']}",
    )


@pytest.mark.usefixtures("installed")
def test_demo_runs_on_a_private_registry(elsewhere: Layout, pushed: dict[str, str], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    models.publish(elsewhere, tmp_path, MODEL, CLAIM, "default")
    done = make_demo(elsewhere, pushed, SECRET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS in done.stdout


@pytest.mark.usefixtures("installed")
def test_demo_asks_for_the_secret_before_anything_else(elsewhere: Layout, pushed: dict[str, str]) -> None:
    done = make_demo(elsewhere, pushed, "nobody-made-it")
    assert done.returncode != 0
    assert "there is no Secret nobody-made-it in the namespace octavo-system" in done.stderr
    assert "kubectl create secret docker-registry nobody-made-it" in done.stderr
