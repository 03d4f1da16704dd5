"""The status of an InferenceService: conditions and counts, derived anew from what is observed each time.

Ready is strict: every desired pod runs the current spec and answers. Its reason is the most telling one that is
known, in this order: a child that could not be applied, a suspended spec, pods that the API server refuses, the
runtime's or the kubelet's own words about a container, a claim that is not there, the scheduler's words, and else how
far the rollout is. Nothing is remembered but the time of a condition's last change, so that a condition heals with its
cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import DEPLOYMENT, OWNER_LABEL, SERVICE, TEMPLATE_LABEL, Kind, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.core.report import Report
from octavo_operator.core.containers import Cause
from octavo_operator.core.desired import service_url
from octavo_operator.core.observed import ClaimPhase, Observed
from octavo_operator.core.plan import Applied, is_ours, record_of
from octavo_operator.core.pods import current_pods, placement_fault, serving_fault, told_plan
from octavo_operator.core.scaling import scaling_fields, scaling_verdicts
from octavo_operator.core.setup import setup_fault

__all__ = ["desired_status", "is_written", "refused_status", "refuses_pods"]

FIELDS = (
    "observedGeneration",
    "replicas",
    "readyReplicas",
    "updatedReplicas",
    "selector",
    "url",
    "plan",
    "applied",
    "cacheUsage",
    "queueLength",
    "lastScale",
)
"""The fields of the status beside the conditions."""

MESSAGE_LIMIT = 2048
"""Characters of a message; more would make the object unreadable."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: str
    cause: Cause


def desired_status(
    service: InferenceService,
    observed: Observed,
    *,
    desired: Sequence[Manifest],
    applied: Mapping[Kind, Applied],
    problems: Sequence[Cause],
    pending: str = "",
    claim: ClaimPhase | None,
    scaling: Report | None = None,
    now: datetime,
) -> Manifest:
    """The status that the object should have.

    Args:
        service: the object.
        observed: what exists.
        desired: its desired children.
        applied: what is remembered of their last applies.
        problems: what went wrong while applying them, the first the most telling.
        pending: what an update would change, empty when nothing.
        claim: the state of the claim that holds the model; None for a path inside the container.
        scaling: what the autoscaler tells.
        now: the time, for conditions that change.
    """
    deployment = _own(observed, DEPLOYMENT)
    counts = deployment.get("status", {}) if deployment else {}
    pod = next(child["spec"]["template"] for child in desired if child["kind"] == DEPLOYMENT.kind)
    template = pod["metadata"]["labels"][TEMPLATE_LABEL]
    pods = current_pods(observed.pods, template)
    model = _model(service, claim)
    scheduled = _scheduled(service, pods)
    progressing = _progressing(service, deployment)
    failure = _failure(service, problems, deployment, pods) or setup_fault(pods, pod["spec"]["volumes"], now)
    if failure is not None and problems:
        progressing = _Verdict("False", failure)
    ready = _ready(service, deployment, failure, model, scheduled, progressing)
    stored = observed.service.get("status", {})
    status: Manifest = {
        "observedGeneration": service.generation,
        "replicas": counts.get("replicas", 0),
        "readyReplicas": counts.get("readyReplicas", 0),
        "updatedReplicas": counts.get("updatedReplicas", 0),
        "selector": f"{OWNER_LABEL}={service.name}",
        "conditions": _conditions(
            {
                ConditionType.READY: ready,
                ConditionType.PROGRESSING: progressing,
                ConditionType.MODEL_RESOLVED: model,
                ConditionType.SCHEDULED: scheduled,
                ConditionType.UPDATE_PENDING: _update(pending),
                **{kind: _Verdict(*told) for kind, told in scaling_verdicts(service, scaling, stored).items()},
            },
            observed.service,
            now,
        ),
    }
    if _own(observed, SERVICE):
        status["url"] = service_url(service)
    plan = told_plan(pods, template)
    if plan is not None:
        status["plan"] = plan
    if applied:
        status["applied"] = record_of(applied)
    return status | scaling_fields(service, scaling, stored)


def refused_status(manifest: Manifest, cause: Cause, now: datetime) -> Manifest:
    """The status of an object that is not followed: what was known stays, and Ready says why.

    Args:
        manifest: the object as observed.
        cause: what is wrong with it.
        now: the time.
    """
    verdict = _Verdict("False", cause)
    kept: Manifest = manifest.get("status", {})
    return kept | {
        "observedGeneration": manifest["metadata"]["generation"],
        "conditions": [
            condition for condition in kept.get("conditions", ()) if condition["type"] != ConditionType.READY
        ]
        + _conditions({ConditionType.READY: verdict}, manifest, now),
    }


def is_written(status: Manifest, manifest: Manifest) -> bool:
    """Whether the object already has this status; fields and conditions of other controllers are not looked at."""
    present = manifest.get("status", {})
    types = {condition["type"] for condition in status["conditions"]}
    theirs = [condition for condition in present.get("conditions", ()) if condition["type"] in types]
    return all(present.get(name) == status.get(name) for name in FIELDS) and _by_type(theirs) == _by_type(
        status["conditions"]
    )


def _by_type(conditions: Sequence[Manifest]) -> list[Manifest]:
    return sorted(conditions, key=lambda condition: str(condition["type"]))


def _own(observed: Observed, kind: Kind) -> Manifest | None:
    child = observed.children.get(kind)
    if child is None or not is_ours(child, observed.service):
        return None
    return child


def _model(service: InferenceService, claim: ClaimPhase | None) -> _Verdict:
    name = f"PersistentVolumeClaim {service.namespace}/{service.claim}"
    match claim:
        case None:
            return _Verdict(
                "True", Cause(Reason.PATH_IN_CONTAINER, f"{service.model_path} is read inside the container")
            )
        case ClaimPhase.BOUND:
            return _Verdict("True", Cause(Reason.CLAIM_BOUND, f"{name} is bound"))
        case ClaimPhase.PENDING:
            return _Verdict("False", Cause(Reason.CLAIM_PENDING, f"{name} is not bound to a volume yet"))
        case ClaimPhase.LOST:
            return _Verdict(
                "False", Cause(Reason.CLAIM_LOST, f"{name} has lost its volume; restore it or use another claim")
            )
        case ClaimPhase.MISSING:
            message = f"{name} does not exist; create it, or change spec.model.uri"
            return _Verdict("False", Cause(Reason.CLAIM_NOT_FOUND, message))


def _scheduled(service: InferenceService, pods: Sequence[Manifest]) -> _Verdict:
    fault = placement_fault(pods, service.spec.resources.limits)
    if fault is not None:
        return _Verdict("False", fault)
    if not pods:
        return _Verdict("Unknown", Cause(Reason.NO_PODS, "there are no pods"))
    if not all(_is_placed(pod) for pod in pods):
        return _Verdict("Unknown", Cause(Reason.UNKNOWN, "the scheduler has not looked at every pod yet"))
    return _Verdict("True", Cause(Reason.PLACED, "every pod has a node"))


def _is_placed(pod: Manifest) -> bool:
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", ())
    )


def _update(pending: str) -> _Verdict:
    if pending:
        return _Verdict("True", Cause(Reason.OPERATOR_CHANGED, pending))
    return _Verdict("False", Cause(Reason.UP_TO_DATE, "the pods are what this operator would make of the spec now"))


def _progressing(service: InferenceService, deployment: Manifest | None) -> _Verdict:
    wanted = service.wanted
    counts = deployment.get("status", {}) if deployment else {}
    total, updated, ready = (counts.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas"))
    seen = deployment is not None and counts.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    if seen and total == updated == ready == wanted:
        return _Verdict("False", Cause(Reason.COMPLETE, f"{wanted} of {wanted} pods run the current spec"))
    if deployment is not None and any(
        condition["type"] == "Progressing" and condition["status"] == "False"
        for condition in counts.get("conditions", ())
    ):
        return _Verdict("False", Cause(Reason.STUCK, f"no progress for long: {ready} of {wanted} pods are ready"))
    if total > updated:
        return _Verdict("True", Cause(Reason.ROLLING_OUT, f"{updated} of {total} pods run the current spec"))
    if seen and total > wanted:
        return _Verdict("True", Cause(Reason.SCALING_DOWN, f"{total} pods exist, {wanted} are wanted"))
    return _Verdict("True", Cause(Reason.STARTING, f"{ready} of {wanted} pods are ready"))


def _failure(
    service: InferenceService, problems: Sequence[Cause], deployment: Manifest | None, pods: Sequence[Manifest]
) -> Cause | None:
    if problems:
        return problems[0]
    if service.spec.suspend:
        return Cause(
            Reason.SUSPENDED, f"spec.suspend is true; replicas: {service.spec.replicas} counts again when it is false"
        )
    return refuses_pods(deployment) or serving_fault(pods)


def refuses_pods(deployment: Manifest | None) -> Cause | None:
    """Why the API server does not let a Deployment's pods be created; None when it does."""
    for condition in deployment.get("status", {}).get("conditions", ()) if deployment else ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Cause(Reason.PODS_REFUSED, condition.get("message", "the API server refuses the pods"))
    return None


def _ready(
    service: InferenceService,
    deployment: Manifest | None,
    failure: Cause | None,
    model: _Verdict,
    scheduled: _Verdict,
    progressing: _Verdict,
) -> _Verdict:
    complete = progressing.cause.reason == Reason.COMPLETE
    if complete and deployment is not None and service.wanted > 0:
        count = service.wanted
        return _Verdict("True", Cause(Reason.SERVING, f"{count} of {count} pods are ready"))
    if failure is not None:
        return _Verdict("False", failure)
    if complete:
        return _Verdict("False", Cause(Reason.STOPPED, "replicas is 0; kubectl scale starts the service"))
    if model.cause.reason in {Reason.CLAIM_NOT_FOUND, Reason.CLAIM_LOST}:
        return _Verdict("False", model.cause)
    if scheduled.status == "False":
        return _Verdict("False", scheduled.cause)
    if model.status == "False":
        return _Verdict("False", model.cause)
    return _Verdict("False", progressing.cause)


def _conditions(verdicts: dict[ConditionType, _Verdict], manifest: Manifest, now: datetime) -> list[Manifest]:
    """Conditions as they are written: the time of the last change is kept while the status stays."""
    present = {condition["type"]: condition for condition in manifest.get("status", {}).get("conditions", ())}
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = []
    for kind, verdict in verdicts.items():
        before = present.get(kind)
        unchanged = before is not None and before["status"] == verdict.status
        conditions.append(
            {
                "type": str(kind),
                "status": verdict.status,
                "reason": str(verdict.cause.reason),
                "message": verdict.cause.message[:MESSAGE_LIMIT],
                "lastTransitionTime": before["lastTransitionTime"] if before and unchanged else moment,
                "observedGeneration": manifest["metadata"]["generation"],
            }
        )
    return conditions
