"""The alerts and what is scraped, as files: by promtool, and as the chart makes them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import binaries
from cluster.layout import REPOSITORY, Layout
from cluster.progress import Progress
from operator_harness import CHART, Kubectl, Manifest, chart_manifests, eventually
from prometheus_harness import CONFIGURATION, RULES

# The first run builds Prometheus.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

TEST = REPOSITORY / "e2e" / "stories" / "alerts.yaml"
API = "monitoring.coreos.com"
MONITORS = [("PodMonitor", "octavo-operator"), ("PodMonitor", "octavo-operator-services")]


@pytest.fixture(scope="module")
def promtool() -> Path:
    return binaries.ensure(Progress(), binaries.PROMETHEUS)["promtool"]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def monitoring(cluster: Layout, *arguments: str) -> list[Manifest]:
    helm = cluster.state / "bin" / "helm"
    forced = ("--set=monitoring.enabled=true", *arguments)
    return chart_manifests(helm, "octavo", "octavo-system", "monitoring", arguments=forced)


def rules(cluster: Layout, alerts: object) -> dict[str, Manifest]:
    """The rules of the chart's PrometheusRule by name, with this value of `monitoring.alerts`."""
    groups = monitoring(cluster, f"--set-json=monitoring.alerts={json.dumps(alerts)}")[-1]["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_promtool_accepts_rules_and_configuration(promtool: Path) -> None:
    for command in (("rules", RULES), ("config", "--syntax-only", CONFIGURATION)):
        done = run(promtool, "check", *command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_tests_pass(promtool: Path) -> None:
    done = run(promtool, "test", "rules", TEST)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("avg by (namespace, inferenceservice)", "max by (namespace, inferenceservice)"),
        ("and octavo:kv_cache_blocks > 0", "and octavo:kv_cache_blocks"),
        ('vllm:gpu_cache_usage_perc{inferenceservice!=""} >= 0', 'vllm:gpu_cache_usage_perc{inferenceservice!=""}'),
        (") > 0.9\n", ") >= 0.9\n"),
        (") > 100\n", ") > 101\n"),
        (") > 100\n", ") >= 100\n"),
        ('{inferenceservice!=""} >= 0 and octavo:kv_cache_blocks\n', '{inferenceservice!=""}\n'),
        ("Stopped|Suspended|Starting", "Stopped|Suspended"),
        ("unless on (namespace, inferenceservice)", "and on (namespace, inferenceservice)"),
        ("MetricsMissing|Contested", "MetricsMissing"),
        ("or 0 * max", "or 1 * max"),
        ("absent(octavo_operator_leader) or ", ""),
        ("sum by (namespace) (octavo_operator_leader)", "min by (namespace) (octavo_operator_leader)"),
        ("increase(octavo_operator_reconciles_total", "delta(octavo_operator_reconciles_total"),
        ("[10m])) > 0\n", "[5m])) > 0\n"),
        *((f"for: {minutes}m\n", f"for: {minutes - 1}m\n") for minutes in (3, 5, 10, 15, 20)),
        *((f"for: {minutes}m\n", f"for: {minutes + 1}m\n") for minutes in (3, 5, 10, 15, 20)),
    ],
)
def test_promtool_tests_fail_for_other_rules(promtool: Path, tmp_path: Path, right: str, wrong: str) -> None:
    """Each place of that text is changed by itself, so that no rule hides behind another one."""
    text = RULES.read_text()
    test = re.sub(r"^rule_files: .*$", "rule_files: [rules.yaml]", TEST.read_text(), flags=re.MULTILINE)
    (tmp_path / "test.yaml").write_text(test)
    places = [place.start() for place in re.finditer(re.escape(right), text)]
    assert places
    for place in places:
        (tmp_path / "rules.yaml").write_text(text[:place] + wrong + text[place + len(right) :])
        assert run(promtool, "check", "rules", tmp_path / "rules.yaml").returncode == 0
        assert run(promtool, "test", "rules", tmp_path / "test.yaml").returncode != 0, text[place : place + 80]


def test_chart_has_the_rules_of_the_file(cluster: Layout) -> None:
    *monitors, rule = monitoring(cluster, "--set-json=monitoring.labels=" + json.dumps({"release": "prometheus"}))
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert [(one["kind"], one["metadata"]["name"]) for one in monitors] == MONITORS
    assert all(one["metadata"]["labels"]["release"] == "prometheus" for one in (*monitors, rule))


def test_chart_changes_and_leaves_out_alerts(cluster: Layout) -> None:
    before = rules(cluster, {})
    given = {"OctavoRequestsWaiting": {"for": "15m", "labels": {"team": "a"}}, "OctavoServiceDegraded": False}
    after = rules(cluster, given)
    assert before.keys() - after.keys() == {"OctavoServiceDegraded"}
    changed = before["OctavoRequestsWaiting"] | {"for": "15m", "labels": {"severity": "warning", "team": "a"}}
    assert after["OctavoRequestsWaiting"] == changed
    assert all(after[name] == before[name] for name in after if name != "OctavoRequestsWaiting")
    everything_of_the_operator = {"OctavoOperatorGone": False, "OctavoOperatorFailing": False}
    manifest = monitoring(cluster, f"--set-json=monitoring.alerts={json.dumps(everything_of_the_operator)}")[-1]
    assert [group["name"] for group in manifest["spec"]["groups"]] == ["octavo-services"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("monitoring.alerts.OctavoServiceGone=false", "there is no such alert, only OctavoCacheNearlyFull, "),
        ("monitoring.alerts.OctavoServiceDown.for=soon", "'soon' does not match pattern"),
        ("monitoring.alerts.OctavoServiceDown.severity=page", "additional properties 'severity' not allowed"),
        ("monitoring.enabled=perhaps", "must be one of 'auto', true, false"),
    ],
)
def test_chart_refuses_what_would_be_ignored(cluster: Layout, setting: str, sentence: str) -> None:
    """Also where nothing of it would be made."""
    helm, images = cluster.state / "bin" / "helm", "--set=image.repository=a,runtimeImage.repository=b"
    done = run(helm, "template", "octavo", CHART, "--kube-version=1.34.0", images, f"--set={setting}")
    assert done.returncode != 0
    assert sentence in done.stderr


def test_chart_scrapes_like_the_plain_configuration(cluster: Layout) -> None:
    """Prometheus' operator turns a PodMonitor's relabelings into these, after the labels of its own."""
    plain = {job["job_name"]: job for job in yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]}
    operator, services, _ = monitoring(cluster)
    for monitor, name in ((operator, "octavo-operator"), (services, "octavo-runtime")):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        job = plain[name]
        assert endpoint.get("honorLabels", False) == job.get("honor_labels", False)
        given = [_plain(rule) for rule in endpoint["relabelings"]]
        assert {"target_label": "job", "replacement": name} == given[-1]
        assert all(rule in job["relabel_configs"] for rule in given[:-1])
        [selector] = job["kubernetes_sd_configs"][0]["selectors"]
        assert selector["label"].split("=", 1)[1] in monitor["spec"]["selector"]["matchLabels"].values()


def _plain(relabeling: dict[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", key): value for key, value in relabeling.items()}


def test_chart_scrapes_the_namespaces_that_it_serves(cluster: Layout) -> None:
    everywhere, here = monitoring(cluster)[1], monitoring(cluster, "--set=watchNamespaces={a,b}")[1]
    assert everywhere["spec"]["namespaceSelector"] == {"any": True}
    assert here["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


@contextmanager
def monitoring_api(kubectl: Kubectl) -> Iterator[None]:
    """Gives the cluster the API of Prometheus' operator; nobody serves it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    kinds = {f"{kind.lower()}s": kind for kind in ("PodMonitor", "PrometheusRule")}
    names = [f"{plural}.{API}" for plural in kinds]
    for plural, kind in kinds.items():
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        spec = {"group": API, "scope": "Namespaced", "names": {"kind": kind, "plural": plural}, "versions": [version]}
        metadata = {"name": f"{plural}.{API}"}
        manifest = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
        kubectl.apply(manifest | {"metadata": metadata})
    try:
        eventually(lambda: kubectl.get(",".join(names)) == [])
        yield
    finally:
        kubectl("delete", "crd", *names)


def test_chart_looks_for_the_api(cluster: Layout, kubectl: Kubectl) -> None:
    helm: list[str | Path] = [cluster.state / "bin" / "helm", f"--kubeconfig={cluster.kubeconfig}", "install", "x"]
    images = "--set=image.repository=a,runtimeImage.repository=b,crds.enabled=false"

    def made(*arguments: str) -> list[str]:
        done = run(*helm, CHART, "--dry-run=server", f"--namespace={kubectl.namespace}", images, *arguments)
        assert done.returncode == 0, done.stderr
        return re.findall(rf"^apiVersion: {API}/v1\nkind: (\w+)$", done.stdout, re.MULTILINE)

    assert made() == []
    with monitoring_api(kubectl):
        assert sorted(made()) == ["PodMonitor", "PodMonitor", "PrometheusRule"]
        assert made("--set=monitoring.enabled=false") == []
