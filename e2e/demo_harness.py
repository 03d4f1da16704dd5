"""The service that `make demo` leaves, for the stories of those who use it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from cluster.layout import REPOSITORY
from operator_harness import Kubectl, condition, eventually

__all__ = ["ISVC", "START", "Demo", "call", "metric", "run_demo", "service"]

ISVC = "inferenceservices.octavo.dev"
START = 240.0  # seconds for a pod to load on a busy machine


def run_demo(*variables: str, path: Path) -> str:
    """`make demo`, as typed; what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in {"KUBECONFIG", "MAKEFLAGS"}}
    environment["PATH"] = f"{path}:{environment['PATH']}"
    command = ["make", "--no-print-directory", "demo", *variables]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass(frozen=True, slots=True)
class Demo:
    """What `make demo` has left: the InferenceService smollm2 in the namespace default."""

    kubectl: Kubectl
    output: str
    path: Path

    @property
    def address(self) -> str:
        """The Service's address; ClusterIPs can be reached from this machine."""
        address: str = self.kubectl.get("service", "smollm2")["spec"]["clusterIP"]
        return address

    def client(self) -> OpenAI:
        """A new client of the service; it fails at the first error."""
        return OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0, timeout=120)

    def scale(self, replicas: int) -> None:
        """`kubectl scale`, and until it is done."""
        self.kubectl("scale", "isvc/smollm2", f"--replicas={replicas}")

        def settled() -> bool:
            service = self.kubectl.get(ISVC, "smollm2")
            return condition(service)["status"] == "True" and len(self.pods()) == replicas

        eventually(settled, START)
        self.kubectl("wait", "isvc/smollm2", "--for=condition=Ready", "--timeout=10s")

    def pods(self) -> list[dict[str, Any]]:
        """The server's pods, those that are going included."""
        return list(self.kubectl.get("pods", "--selector", self.kubectl.get(ISVC, "smollm2")["status"]["selector"]))


def service(name: str, uri: str, **runtime: object) -> dict[str, Any]:
    """An InferenceService for a small model on a CPU."""
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": uri},
            "runtime": {"device": "cpu", "dtype": "float32", "kvCacheMemory": "256Mi", **runtime},
            "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
        },
    }


def call(address: str, port: int, path: str, body: object = None) -> str:
    """One request on a connection of its own, as a new client makes it; the answer's body."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 200, f"{answer.status}: {text}"
    return text


def metric(address: str, name: str) -> float:
    """One metric of the pod at an address."""
    lines = call(address, 8000, "/metrics").splitlines()
    return float(next(line for line in lines if line.startswith(name + "{")).rsplit(" ", 1)[1])
