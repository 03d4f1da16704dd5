"""What the status says of autoscaling: two conditions, how busy the pods are, and the last change."""

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.core.report import Report
from octavo_operator.autoscale.core.values import Verdict
from octavo_operator.core.containers import Cause

__all__ = ["scaling_fields", "scaling_verdicts"]

KEPT = ("cacheUsage", "queueLength", "lastScale")
KINDS = (ConditionType.METRICS_AVAILABLE, ConditionType.SCALING_ACTIVE)
REASONS = frozenset(Reason)


def scaling_verdicts(
    service: InferenceService, report: Report | None, stored: Manifest
) -> dict[ConditionType, tuple[str, Cause]]:
    """Status and cause of MetricsAvailable and ScalingActive; none where autoscaling is not asked for.

    The words change only with what they tell: a figure that moves each second is no condition's.

    Args:
        service: the object.
        report: what is known.
        stored: the present status. What it says of the same spec stays until the pods have been asked.
    """
    autoscaling = service.spec.autoscaling
    if autoscaling is None:
        return {}
    bounds = f"between {autoscaling.min_replicas} and {autoscaling.max_replicas}"
    if service.wanted == 0:
        reason = Reason.SUSPENDED if service.spec.suspend else Reason.STOPPED
        paused = Cause(reason, "there is nothing to scale; autoscaling goes on when the service does")
        return _both("Unknown", Cause(Reason.NO_PODS, "there are no pods"), "False", paused)
    if report is None:
        known = {one["type"]: one for one in stored.get("conditions", ()) if _speaks_of(service, one)}
        if all(kind in known for kind in KINDS):
            return {
                kind: (known[kind]["status"], Cause(Reason(known[kind]["reason"]), known[kind]["message"]))
                for kind in KINDS
            }
        waits = Cause(Reason.UNKNOWN, "the pods have not been asked yet")
        return _both("Unknown", waits, "Unknown", waits)
    metrics = _metrics(report)
    if report.rivalled:
        message = (
            "something else keeps setting replicas, so that nothing is written for a while; `kubectl get "
            "hpa,scaledobject` shows what it may be: remove it, or spec.autoscaling"
        )
        return _both(*metrics, "False", Cause(Reason.CONTESTED, message))
    if autoscaling.mode == "Observe":
        message = f"mode is Observe: it would set {report.decision.replicas} replicas, {bounds}, and writes nothing"
        return _both(*metrics, "False", Cause(Reason.OBSERVING, message))
    if report.decision.verdict is Verdict.NO_METRICS:
        held = Cause(Reason.METRICS_MISSING, "replicas stay as they are: no data is not no load")
        return _both(*metrics, "False", held)
    return _both(*metrics, "True", Cause(Reason.FOLLOWING, f"replicas follow the load of the pods, {bounds}"))


def scaling_fields(service: InferenceService, report: Report | None, stored: Manifest) -> Manifest:
    """The fields of the status; what this operator does not know yet stays as it is stored.

    Args:
        service: the object.
        report: what is known.
        stored: the present status.
    """
    if service.spec.autoscaling is None:
        return {}
    fields: Manifest = {name: stored[name] for name in KEPT if name in stored}
    if service.wanted == 0:
        fields |= {"cacheUsage": 0, "queueLength": 0}
    if report is not None and report.load is not None:
        fields |= {"cacheUsage": report.load.cache_usage, "queueLength": report.load.queue_length}
    if report is not None and report.scaled is not None:
        scaled = report.scaled
        fields["lastScale"] = {
            "time": scaled.time,
            "from": scaled.before,
            "to": scaled.after,
            "reason": scaled.reason,
        }
    return fields


def _speaks_of(service: InferenceService, condition: Manifest) -> bool:
    return condition.get("observedGeneration") == service.generation and condition["reason"] in REASONS


def _both(
    metrics: str, metrics_cause: Cause, scaling: str, scaling_cause: Cause
) -> dict[ConditionType, tuple[str, Cause]]:
    return {
        ConditionType.METRICS_AVAILABLE: (metrics, metrics_cause),
        ConditionType.SCALING_ACTIVE: (scaling, scaling_cause),
    }


def _metrics(report: Report) -> tuple[str, Cause]:
    decision = report.decision
    ready = decision.answered + decision.silent
    if ready == 0:
        return "Unknown", Cause(Reason.NO_PODS, "no pod is ready yet")
    if decision.answered == 0:
        return "False", Cause(Reason.METRICS_MISSING, f"none of {ready} ready pods tells its load: {report.trouble}")
    if decision.silent:
        message = f"{decision.silent} of {ready} ready pods do not tell their load: {report.trouble}"
        return "True", Cause(Reason.SOME_METRICS_MISSING, message)
    return "True", Cause(Reason.METRICS_READ, "every ready pod tells its load")
