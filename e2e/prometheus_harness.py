"""A real Prometheus for the stories: outside the cluster, with a service account that may look at pods and no more."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.layout import REPOSITORY
from operator_harness import Kubectl, cluster_entry, eventually, fetch, free_port, write_kubeconfig

__all__ = ["CONFIGURATION", "RULES", "Alert", "Prometheus", "running_prometheus"]

CONFIGURATION = REPOSITORY / "examples" / "monitoring" / "prometheus.yaml"
RULES = REPOSITORY / "charts" / "octavo" / "alerts.yaml"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as Prometheus shows it: `state` is `pending` or `firing`."""

    name: str
    state: str
    labels: dict[str, str]
    summary: str


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus at work, by its address."""

    url: str

    def alerts(self, namespace: str) -> dict[str, Alert]:
        """What is pending or fires for a namespace, by name."""
        found = self._ask("alerts")["alerts"]
        alerts = [
            Alert(one["labels"]["alertname"], one["state"], one["labels"], one["annotations"]["summary"])
            for one in found
        ]
        return {alert.name: alert for alert in alerts if alert.labels.get("namespace") == namespace}

    def firing(self, namespace: str) -> set[str]:
        """Names of the alerts that fire for a namespace."""
        return {name for name, alert in self.alerts(namespace).items() if alert.state == "firing"}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query: `metric` has the labels, `value` time and value."""
        found: list[dict[str, Any]] = self._ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return found

    def _ask(self, what: str) -> Any:
        status, text = fetch(f"{self.url}/api/v1/{what}")
        assert status == 200, text
        return json.loads(text)["data"]


@contextmanager
def running_prometheus(
    program: Path, folder: Path, kubectl: Kubectl, groups: list[dict[str, Any]]
) -> Iterator[Prometheus]:
    """Runs a Prometheus with the shipped configuration. It ends with this process, however that ends.

    Args:
        program: the binary.
        folder: for everything that it has.
        kubectl: in the namespace of its service account, which is made here with the role that docs/alerts.md shows.
        groups: its rules.
    """
    name = f"prometheus-{kubectl.namespace}"
    account = {"kind": "ServiceAccount", "name": "prometheus", "namespace": kubectl.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [account],
        },
    )
    kubeconfig = folder / "kubeconfig"
    write_kubeconfig(kubeconfig, cluster_entry(kubectl), kubectl("create", "token", "prometheus"))
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration(folder / "alerts.yaml", kubeconfig)))
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        *("setpriv", "--pdeathsig=KILL", program, f"--config.file={folder / 'prometheus.yaml'}"),
        *(f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"),
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        return fetch(f"http://{address}/-/ready")[0] == 200

    try:
        eventually(is_ready, 60)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)
        kubectl("delete", "clusterrole,clusterrolebinding", name)


def _configuration(rules: Path, kubeconfig: Path) -> dict[str, Any]:
    """The shipped configuration for a Prometheus outside the cluster, in a hurry."""
    configuration: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(rules)]
    for job in configuration["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(kubeconfig)
    return configuration
