from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import DEPLOYMENT, SERVICE, TEMPLATE_LABEL, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.containers import Cause
from octavo_operator.core.desired import desired_children, pod_template
from octavo_operator.core.observed import ClaimPhase, Observed
from octavo_operator.core.rollout import Step
from octavo_operator.core.status import desired_status, is_written, refused_status
from octavo_operator.testing import inference_service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = [{"controller": True, "uid": "uid-1"}]


def service(generation: int = 3, **spec: Any) -> Manifest:
    manifest = inference_service(**spec)
    manifest["metadata"] |= {"uid": "uid-1", "generation": generation}
    return manifest


def deployment(generation: int = 7, conditions: list[Any] | None = None, **counts: int) -> Manifest:
    counts.setdefault("observedGeneration", generation)
    status = {**counts, "conditions": conditions or []}
    return {"metadata": {"generation": generation, "ownerReferences": MINE}, "status": status}


def complete(count: int = 1) -> Manifest:
    return deployment(replicas=count, updatedReplicas=count, readyReplicas=count)


def verdicts(
    manifest: Manifest | None = None,
    child: Manifest | None = None,
    *,
    pods: tuple[Manifest, ...] = (),
    problems: tuple[Cause, ...] = (),
    claim: ClaimPhase | None = ClaimPhase.BOUND,
) -> dict[str, tuple[str, str]]:
    status = computed(manifest or service(), child, pods=pods, problems=problems, claim=claim)
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def computed(
    manifest: Manifest,
    child: Manifest | None = None,
    *,
    pods: tuple[Manifest, ...] = (),
    problems: tuple[Cause, ...] = (),
    claim: ClaimPhase | None = ClaimPhase.BOUND,
    now: datetime = NOW,
) -> Manifest:
    parsed = InferenceService.parse(manifest)
    children = {DEPLOYMENT: child} if child else {}
    return desired_status(
        parsed,
        Observed(manifest, children, pods),
        desired=desired_children(parsed, pod_template(parsed, runtime_image="image"), Step()),
        applied={},
        problems=problems,
        claim=claim,
        now=now,
    )


@pytest.mark.parametrize(
    ("spec", "child", "ready", "progressing"),
    [
        ({}, None, ("False", "Starting"), ("True", "Starting")),
        ({}, deployment(replicas=1, updatedReplicas=1), ("False", "Starting"), ("True", "Starting")),
        ({}, complete(), ("True", "Serving"), ("False", "Complete")),
        ({"replicas": 3}, complete(3), ("True", "Serving"), ("False", "Complete")),
        # Scaled up: two more are wanted.
        ({"replicas": 3}, complete(1), ("False", "Starting"), ("True", "Starting")),
        ({"replicas": 1}, complete(3), ("False", "ScalingDown"), ("True", "ScalingDown")),
        # The old revision still satisfies the count: that is not this spec.
        ({"replicas": 2}, deployment(replicas=2, readyReplicas=2), ("False", "RollingOut"), ("True", "RollingOut")),
        (
            {"replicas": 2},
            deployment(replicas=3, readyReplicas=3, updatedReplicas=1),
            ("False", "RollingOut"),
            ("True", "RollingOut"),
        ),
        # One more than is wanted, as every rollout has: the new one starts, or the last of the old is still there.
        (
            {"replicas": 1},
            deployment(replicas=2, readyReplicas=1, updatedReplicas=1),
            ("False", "RollingOut"),
            ("True", "RollingOut"),
        ),
        (
            {"replicas": 2},
            deployment(replicas=3, readyReplicas=2, updatedReplicas=2),
            ("False", "RollingOut"),
            ("True", "RollingOut"),
        ),
        # The Deployment's controller has not seen the change yet: its counts are those of the old spec.
        (
            {},
            deployment(observedGeneration=6, replicas=1, updatedReplicas=1, readyReplicas=1),
            ("False", "Starting"),
            ("True", "Starting"),
        ),
        ({"replicas": 0}, deployment(), ("False", "Stopped"), ("False", "Complete")),
        ({"replicas": 2, "suspend": True}, deployment(), ("False", "Suspended"), ("False", "Complete")),
        ({"replicas": 0, "suspend": True}, deployment(), ("False", "Suspended"), ("False", "Complete")),
        ({"replicas": 2, "suspend": True}, complete(2), ("False", "Suspended"), ("True", "ScalingDown")),
        ({"replicas": 2, "suspend": False}, complete(2), ("True", "Serving"), ("False", "Complete")),
        (
            {"suspend": True},
            deployment(conditions=[{"type": "ReplicaFailure", "status": "True", "message": "quota"}]),
            ("False", "Suspended"),
            ("False", "Complete"),
        ),
        (
            {},
            deployment(replicas=1, updatedReplicas=1, conditions=[{"type": "Progressing", "status": "False"}]),
            ("False", "Stuck"),
            ("False", "Stuck"),
        ),
        (
            {},
            deployment(conditions=[{"type": "ReplicaFailure", "status": "True", "message": "quota"}]),
            ("False", "PodsRefused"),
            ("True", "Starting"),
        ),
    ],
)
def test_desired_status_follows_the_deployment(
    spec: dict[str, Any], child: Manifest | None, ready: tuple[str, str], progressing: tuple[str, str]
) -> None:
    found = verdicts(service(**spec), child)
    assert (found["Ready"], found["Progressing"]) == (ready, progressing)


@pytest.mark.parametrize(
    ("claim", "uri", "model", "ready"),
    [
        (ClaimPhase.BOUND, "pvc://models/m", ("True", "ClaimBound"), "Starting"),
        (ClaimPhase.MISSING, "pvc://models/m", ("False", "ClaimNotFound"), "ClaimNotFound"),
        (ClaimPhase.PENDING, "pvc://models/m", ("False", "ClaimPending"), "ClaimPending"),
        (ClaimPhase.LOST, "pvc://models/m", ("False", "ClaimLost"), "ClaimLost"),
        (None, "file:///m", ("True", "PathInContainer"), "Starting"),
    ],
)
def test_desired_status_of_the_claim(claim: ClaimPhase | None, uri: str, model: tuple[str, str], ready: str) -> None:
    found = verdicts(service(model={"uri": uri}), claim=claim)
    assert found["ModelResolved"] == model
    assert found["Ready"] == ("False", ready)


def test_desired_status_names_the_missing_claim_and_what_to_do() -> None:
    status = computed(service(), claim=ClaimPhase.MISSING)
    assert status["conditions"][0]["message"] == (
        "PersistentVolumeClaim default/models does not exist; create it, or change spec.model.uri"
    )


def pod(template: str | None = None, **status: Any) -> Manifest:
    if template is None:
        parsed = InferenceService.parse(service())
        template = pod_template(parsed, runtime_image="image")["metadata"]["labels"][TEMPLATE_LABEL]
    return {"metadata": {"name": "chat-1", "labels": {TEMPLATE_LABEL: template}}, "status": status}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: 1 Insufficient nvidia.com/gpu."}
CRASHED = [{"name": "server", "ready": False, "lastState": {"terminated": {"exitCode": 1, "message": "x"}}}]


@pytest.mark.parametrize(
    ("found", "ready", "scheduled"),
    [
        (
            verdicts(service(resources={"limits": {"nvidia.com/gpu": 1}}), pods=(pod("any", conditions=[UNSCHEDULABLE]),)),
            ("False", "WaitingForGPU"),
            ("False", "WaitingForGPU"),
        ),
        (verdicts(pods=(pod(conditions=[UNSCHEDULABLE]),)), ("False", "Unschedulable"), ("False", "Unschedulable")),
        (verdicts(pods=(pod(),)), ("False", "Starting"), ("Unknown", "Unknown")),
        (verdicts(), ("False", "Starting"), ("Unknown", "NoPods")),
        (
            verdicts(pods=(pod(conditions=[{"type": "PodScheduled", "status": "True"}]),)),
            ("False", "Starting"),
            ("True", "Placed"),
        ),
        # What is missing explains more than the scheduler does.
        (
            verdicts(pods=(pod(conditions=[UNSCHEDULABLE]),), claim=ClaimPhase.MISSING),
            ("False", "ClaimNotFound"),
            ("False", "Unschedulable"),
        ),
        # A claim that waits for its first pod does not hide that the pod finds no node.
        (
            verdicts(pods=(pod(conditions=[UNSCHEDULABLE]),), claim=ClaimPhase.PENDING),
            ("False", "Unschedulable"),
            ("False", "Unschedulable"),
        ),
        (verdicts(pods=(pod(containerStatuses=CRASHED),)), ("False", "Crashed"), ("Unknown", "Unknown")),
        # A crash of the old revision says nothing about the new one.
        (
            verdicts(pods=(pod("old", containerStatuses=CRASHED), pod())),
            ("False", "Starting"),
            ("Unknown", "Unknown"),
        ),
        (verdicts(child=complete(), pods=(pod(containerStatuses=CRASHED),)), ("True", "Serving"), ("Unknown", "Unknown")),
    ],
    ids=[
        "gpu", "node", "unseen", "no pods", "placed", "claim first", "node before pending claim", "crash", "old crash",
        "ready wins",
    ],
)  # fmt: skip
def test_desired_status_of_pods(
    found: dict[str, tuple[str, str]], ready: tuple[str, str], scheduled: tuple[str, str]
) -> None:
    assert (found["Ready"], found["Scheduled"]) == (ready, scheduled)


def test_desired_status_refused_child_is_told_first() -> None:
    problem = Cause(Reason.APPLY_REJECTED, "Deployment chat: no")
    found = verdicts(problems=(problem,), pods=(pod(containerStatuses=CRASHED),), claim=ClaimPhase.MISSING)
    assert found["Ready"] == found["Progressing"] == ("False", "ApplyRejected")


def test_desired_status_foreign_deployment_is_not_counted() -> None:
    foreign = complete()
    foreign["metadata"]["ownerReferences"] = [{"controller": True, "uid": "other"}]
    status = computed(service(), foreign)
    assert (status["replicas"], status["readyReplicas"]) == (0, 0)


def test_desired_status_url_comes_with_the_service() -> None:
    manifest = service()
    parsed = InferenceService.parse(manifest)
    own = {"metadata": {"ownerReferences": MINE}}
    status = desired_status(
        parsed,
        Observed(manifest, {SERVICE: own}),
        desired=desired_children(parsed, pod_template(parsed, runtime_image="image"), Step()),
        applied={},
        problems=(),
        claim=None,
        now=NOW,
    )
    assert status["url"] == "http://chat.default.svc"
    assert "url" not in computed(manifest)


def test_desired_status_transition_time_moves_only_with_the_status() -> None:
    manifest = service()
    manifest["status"] = computed(manifest, claim=ClaimPhase.MISSING)
    later = NOW + timedelta(hours=1)
    times = {one["type"]: one["lastTransitionTime"] for one in computed(manifest, now=later)["conditions"]}
    assert times["Ready"] == times["Progressing"] == "2026-01-01T00:00:00Z"
    assert times["ModelResolved"] == "2026-01-01T01:00:00Z"


def test_is_written_ignores_order_and_others() -> None:
    manifest = service()
    status = computed(manifest)
    manifest["status"] = {
        **status,
        "theirs": 1,
        "conditions": [{"type": "Theirs", "status": "True"}, *reversed(status["conditions"])],
    }
    assert is_written(status, manifest)
    assert is_written(computed(manifest, now=NOW + timedelta(days=1)), manifest)


@pytest.mark.parametrize(
    "change",
    [{"replicas": 5}, {"url": "http://left.over"}, {"observedGeneration": 2}, {"conditions": []}],
    ids=lambda change: next(iter(change)),
)
def test_is_written_sees_each_difference(change: dict[str, Any]) -> None:
    manifest = service()
    status = computed(manifest)
    manifest["status"] = status | change
    assert not is_written(status, manifest)


def test_refused_status_keeps_what_was_known() -> None:
    manifest = service()
    manifest["status"] = computed(manifest, complete())
    status = refused_status(manifest, Cause(Reason.SPEC_INVALID, "unknown field"), NOW)
    assert status["replicas"] == 1
    found = {one["type"]: one["reason"] for one in status["conditions"]}
    assert found == {
        "Ready": "SpecInvalid", "Progressing": "Complete", "ModelResolved": "ClaimBound", "Scheduled": "NoPods",
        "UpdatePending": "UpToDate",
    }  # fmt: skip
    manifest["status"] = status
    assert is_written(refused_status(manifest, Cause(Reason.SPEC_INVALID, "unknown field"), NOW), manifest)


def test_desired_status_message_is_bounded() -> None:
    status = computed(service(), problems=(Cause(Reason.APPLY_REJECTED, "x" * 100_000),))
    assert len(status["conditions"][0]["message"]) == 2048
    assert status["conditions"][0]["observedGeneration"] == 3
