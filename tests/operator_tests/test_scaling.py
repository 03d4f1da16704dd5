"""What the status says of autoscaling."""

from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.core.report import Load, Report, Scaled, stored_load, worth_telling
from octavo_operator.autoscale.core.values import Decision, Verdict
from octavo_operator.core.scaling import scaling_fields, scaling_verdicts
from octavo_operator.testing import inference_service

DECISION = Decision(3, Verdict.ENOUGH, 2.4, 2.4, 0.1, 0.0, 3, 0, 3, 3, 0.8, 0.0)
REPORT = Report(DECISION, Load(40, 7), None, rivalled=False, trouble="")
SILENT = replace(DECISION, verdict=Verdict.NO_METRICS, answered=0, silent=3)
PARTLY = replace(DECISION, verdict=Verdict.SOME_METRICS, answered=2, silent=1)


def service(**spec: Any) -> InferenceService:
    manifest = inference_service(**{"autoscaling": {"maxReplicas": 8}} | spec)
    manifest["metadata"] |= {"uid": "u", "generation": 1}
    return InferenceService.parse(manifest)


@pytest.mark.parametrize(
    ("spec", "report", "metrics", "scaling", "says"),
    [
        ({}, REPORT, "True MetricsRead", "True Following", "between 1 and 8"),
        ({}, None, "Unknown Unknown", "Unknown Unknown", "not been asked"),
        ({}, replace(REPORT, decision=PARTLY, trouble="x: 500"), "True SomeMetricsMissing", "True Following", "follow"),
        (
            {},
            replace(REPORT, decision=SILENT, trouble="x: 500"),
            "False MetricsMissing",
            "False MetricsMissing",
            "stay",
        ),
        (
            {},
            replace(REPORT, decision=replace(SILENT, silent=0)),
            "Unknown NoPods",
            "False MetricsMissing",
            "replicas stay",
        ),
        ({}, replace(REPORT, rivalled=True), "True MetricsRead", "False Contested", "kubectl get hpa,scaledobject"),
        (
            {"autoscaling": {"maxReplicas": 8, "mode": "Observe"}},
            REPORT,
            "True MetricsRead",
            "False Observing",
            "it would set 3 replicas",
        ),
        ({"suspend": True}, None, "Unknown NoPods", "False Suspended", "goes on when"),
        ({"replicas": 0}, None, "Unknown NoPods", "False Stopped", "goes on when"),
    ],
)
def test_scaling_verdicts(spec: dict[str, Any], report: Report | None, metrics: str, scaling: str, says: str) -> None:
    found = scaling_verdicts(service(**spec), report, {})
    status, cause = found[ConditionType.METRICS_AVAILABLE]
    assert f"{status} {cause.reason}" == metrics
    if report is not None and report.trouble:
        assert report.trouble in cause.message
    status, cause = found[ConditionType.SCALING_ACTIVE]
    assert f"{status} {cause.reason}" == scaling
    assert says in cause.message


def test_scaling_without_autoscaling_says_nothing() -> None:
    assert scaling_verdicts(service(autoscaling=None), REPORT, {}) == {}
    assert scaling_fields(service(autoscaling=None), REPORT, {"cacheUsage": 3, "lastScale": {}}) == {}


def test_scaling_words_do_not_move_with_the_figures() -> None:
    """A condition that changed with each sample would be a write with each sample."""
    moved = replace(REPORT, decision=replace(DECISION, demand=2.9, expected=3.1, busiest=0.9, kept=4))
    assert scaling_verdicts(service(), moved, {}) == scaling_verdicts(service(), REPORT, {})
    assert scaling_fields(service(), moved, {}) == scaling_fields(service(), REPORT, {})


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ({}, True),
        ({"observedGeneration": 0}, False),
        ({"reason": "OfAnotherVersion"}, False),
        ({"type": "Ready"}, False),
    ],
)
def test_scaling_verdicts_of_an_earlier_operator_stay_until_the_pods_are_asked(
    stored: dict[str, Any], kept: bool
) -> None:
    before = scaling_verdicts(service(), replace(REPORT, rivalled=True), {})
    conditions: list[dict[str, Any]] = [
        {"type": str(kind), "status": status, "reason": cause.reason, "message": cause.message, "observedGeneration": 1}
        for kind, (status, cause) in before.items()
    ]
    conditions[0] |= stored
    found = scaling_verdicts(service(), None, {"conditions": conditions})
    assert found == (before if kept else scaling_verdicts(service(), None, {}))


def test_scaling_fields_keep_what_an_earlier_operator_wrote() -> None:
    stored = {"cacheUsage": 10, "queueLength": 2, "lastScale": {"from": 1, "to": 2}, "replicas": 1}
    assert scaling_fields(service(), None, stored) == {name: stored[name] for name in stored if name != "replicas"}
    assert scaling_fields(service(), REPORT, stored) == {
        "cacheUsage": 40,
        "queueLength": 7,
        "lastScale": {"from": 1, "to": 2},
    }
    scaled = Scaled("2026-01-01T00:00:00Z", 2, 3, replace(DECISION, verdict=Verdict.TREND, expected=2.9))
    assert scaling_fields(service(), replace(REPORT, scaled=scaled), stored)["lastScale"] == {
        "time": "2026-01-01T00:00:00Z",
        "from": 2,
        "to": 3,
        "reason": "2.4 replicas' worth of work come in, and 2.9 are expected when a new pod serves",
    }


def test_stored_load() -> None:
    assert stored_load({"cacheUsage": 10, "queueLength": 2}) == Load(10, 2)
    assert stored_load({"cacheUsage": 10}) is None


@pytest.mark.parametrize(
    ("told", "load", "seconds", "worth"),
    [
        (None, Load(0, 0), 0, True),
        (Load(40, 5), Load(49, 14), 3600, False),
        (Load(40, 5), Load(50, 5), 59, False),
        (Load(40, 5), Load(50, 5), 60, True),
        (Load(40, 5), Load(40, 15), 60, True),
        (Load(5, 2), Load(0, 0), 60, True),
        (Load(0, 0), Load(1, 0), 60, True),
    ],
)
def test_worth_telling(told: Load | None, load: Load, seconds: float, worth: bool) -> None:
    assert worth_telling(told, 100.0, load, 100.0 + seconds) == worth
