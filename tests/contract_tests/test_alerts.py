"""The alerts ask for metrics, labels and reasons that exist, and the page speaks of each."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import MANAGED_BY, OPERATOR, OWNER_LABEL
from octavo_operator.core.arguments import PORT
from octavo_operator.core.desired import SERVER
from octavo_operator.metrics import PUBLISHED
from octavo_operator.metrics import Metrics as OperatorMetrics
from octavo_runtime.server.metrics import Metrics as RuntimeMetrics

REPOSITORY = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((REPOSITORY / "charts" / "octavo" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PAGE = (REPOSITORY / "docs" / "alerts.md").read_text()
EXPRESSIONS = " ".join(rule["expr"] for rule in RULES)


def test_alerts_ask_for_metrics_that_exist() -> None:
    operator = OperatorMetrics()
    operator.tell_of(list)
    client: Any = SimpleNamespace(num_open=0, pid=0, silent_for=float)
    registries = (operator.registry, RuntimeMetrics("tiny", client, max_num_queued_reqs=9).registry)
    exposed = {
        name + suffix
        for registry in registries
        for metric in registry.collect()
        for name, suffix in [(metric.name, "_total" if metric.type == "counter" else "")]
    }
    asked = set(re.findall(r"\b(?:vllm:|octavo:|octavo_operator_)\w+", EXPRESSIONS))
    assert {"vllm:gpu_cache_usage_perc", "vllm:num_requests_waiting"} < asked <= exposed


def test_alerts_ask_for_conditions_and_reasons_that_exist() -> None:
    assert {*re.findall(r'type="(\w+)"', EXPRESSIONS)} == {*PUBLISHED} < {*ConditionType}
    named = {reason for one in re.findall(r'reason[!=]~"([^"]+)"', EXPRESSIONS) for reason in one.split("|")}
    assert named < {*Reason}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_is_explained(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert (page, anchor) == ("docs/alerts.md", rule["alert"].lower())
    assert f"\n### {rule['alert']}\n" in PAGE
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}


def test_page_explains_no_other_alert() -> None:
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_scraping_finds_the_pods_as_they_are_made() -> None:
    """The label of managed-by, the container, its port, and the label that names the InferenceService."""
    label = re.sub(r"\W", "_", OWNER_LABEL)
    for file in ("examples/monitoring/prometheus.yaml", "charts/octavo/templates/monitoring.yaml"):
        text = (REPOSITORY / file).read_text()
        assert re.search(rf"{MANAGED_BY}(=|: ){OPERATOR}\b", text)
        assert f"regex: {SERVER};{PORT}\n" in text
        assert f"[__meta_kubernetes_pod_label_{label}]" in text
