"""The record of what the operator decided about one InferenceService, when and why: what `kubectl octavo why` shows.

Invariants (tests/operator_tests/test_decisions.py, test_reconcile_decisions.py):

- Recorded is what was carried out and changed something: another pod template, another step of a rollout, a child that
  was put right. A look that changes nothing records nothing, nor does an operator that starts anew, nor an object that
  only starts. So a quiet cluster is written to not once, and a thousand new objects make no records.
- A decision that is the latest of its subject, for the same reason, is not recorded again within ten minutes: whoever
  fights over a child makes one entry, not six hundred an hour.
- The record is bounded: the last 32 decisions, and 16 KiB.

It is an annotation of a ControllerRevision of its own: its data never change, its name holds the object's uid, and it
goes with the object. The format is part of the API (docs/kubectl.md): a JSON list, the latest decision last, of

    {"number": 7, "time": "…Z", "subject": "Rollout", "decision": "…", "because": "…", "inputs": {…}}
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from octavo_operator.api.names import DECISIONS_ANNOTATION, DEPLOYMENT, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.core.report import Scaled
from octavo_operator.core.desired import revision
from octavo_operator.core.differences import differences, told
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import kind_of, same_fields
from octavo_operator.core.revision import Pinned, applied_template, label_of
from octavo_operator.core.rollout import Replica, Step, surge_of

__all__ = [
    "Decision",
    "Subject",
    "deployment_decisions",
    "read_record",
    "record",
    "repair",
    "scale_decision",
    "unpinned",
]

KEPT_DECISIONS = 32
KEPT_BYTES = 16 * 1024
QUIET_SECONDS = 600.0
KEPT_FIELDS = 16
SENTENCE_LIMIT = 500
"""Characters of a decision or a reason."""

DATA = {"record": "decisions"}
FOLLOWED = ("spec.replicas", "spec.strategy", "spec.template", "spec.progressDeadlineSeconds")
"""Fields of a Deployment that change because of the spec, of the plan that a pod tells, or of a decision which is
recorded as such."""


class Subject(StrEnum):
    """What a decision is about."""

    TEMPLATE = "Template"
    ROLLOUT = "Rollout"
    REPAIR = "Repair"
    SCALE = "Scale"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision.

    Attributes:
        subject: what it is about.
        decision: what was done.
        because: why.
        inputs: what it was decided from, as JSON.
    """

    subject: Subject
    decision: str
    because: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


def deployment_decisions(
    service: InferenceService, observed: Observed, pinned: Pinned, step: Step, replicas: Sequence[Replica]
) -> tuple[Decision, ...]:
    """The decisions that writing the Deployment carries out; none for a new one.

    Args:
        service: the object.
        observed: what exists.
        pinned: the template that is applied.
        step: of the rollout.
        replicas: the pods that the step was decided from.
    """
    before = applied_template(observed)
    if before is None:
        return ()
    made = []
    if pinned.change:
        what = f"pods are to be of template {label_of(pinned.template)}"
        inputs = {"before": before, "generation": service.generation}
        made.append(Decision(Subject.TEMPLATE, what, pinned.change, inputs))
    surge = surge_of(observed.children[DEPLOYMENT])
    if service.spec.rollout.type == "Auto" and surge != (step.max_surge, step.max_unavailable):
        pods = (f"{'new' if one.is_new else 'old'} {_state(one)}" for one in replicas)
        inputs = {
            "before": None if surge is None else {"maxSurge": surge[0], "maxUnavailable": surge[1]},
            "wanted": service.wanted,
            "pods": dict(sorted(Counter(pods).items())),
        }
        what = f"maxSurge {step.max_surge}, maxUnavailable {step.max_unavailable}"
        made.append(Decision(Subject.ROLLOUT, what, step.why, inputs))
    return tuple(made)


def repair(manifest: Manifest, observed: Observed, answer: Manifest, *, repeats: bool) -> Decision | None:
    """What writing a child has put right; None when it only followed the spec, or changed nothing.

    Args:
        manifest: what was applied.
        observed: what existed before.
        answer: the child afterwards.
        repeats: whether the same manifest had been applied before.
    """
    service, kind, name = observed.service, manifest["kind"], manifest["metadata"]["name"]
    if not repeats and service.get("status", {}).get("observedGeneration") != service["metadata"]["generation"]:
        return None
    child = observed.children.get(kind_of(manifest))
    if child is None:
        if not repeats:
            return None
        return Decision(Subject.REPAIR, f"{kind} {name} was created again", "it had been deleted")
    fields = {part: value for part, value in manifest.items() if part not in {"apiVersion", "kind"}}
    changed = list(differences(same_fields(child, fields), same_fields(answer, fields)))
    if repeats:
        why = "someone else had changed it"
    else:
        changed = [(path, text) for path, text in changed if not path.startswith(FOLLOWED)]
        why = "the spec did not change: another version of the operator had made it, or its last apply is not on record"
    if not changed:
        return None
    what = f"{kind} {name} was put right: {told([text for _, text in changed])}"
    return Decision(Subject.REPAIR, what, why, {"fields": [path for path, _ in changed[:KEPT_FIELDS]]})


def scale_decision(scaled: Scaled) -> Decision:
    """The decision to set another number of replicas."""
    inputs = {
        name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(scaled.decision).items()
    }
    what = f"replicas {scaled.before} → {scaled.after}"
    return Decision(Subject.SCALE, what, scaled.reason, inputs)


def unpinned(manifest: Manifest) -> Decision:
    """The decision to delete a ControllerRevision that keeps a pod template."""
    what = f"ControllerRevision {manifest['metadata']['name']} was deleted"
    return Decision(Subject.TEMPLATE, what, "no pod of its template is left, and the spec does not ask for it")


def read_record(revisions: Iterable[Manifest], uid: str | None = None) -> list[dict[str, Any]]:
    """The decisions on record, the latest last; none when there is no record, or it cannot be read.

    Args:
        revisions: the ControllerRevisions of an InferenceService.
        uid: of the InferenceService, where a record of its predecessor may be among them.
    """
    for manifest in revisions:
        metadata = manifest["metadata"]
        owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
        text = metadata.get("annotations", {}).get(DECISIONS_ANNOTATION)
        if text is None or (uid is not None and uid not in owners):
            continue
        try:
            entries = json.loads(text)
        except ValueError:
            return []
        # Someone may have edited it: what cannot be read is left out, and goes with the next decision.
        return [one for one in entries if _is_entry(one)] if isinstance(entries, list) else []
    return []


def record(
    service: InferenceService, revisions: Iterable[Manifest], decisions: Iterable[tuple[datetime, Decision]]
) -> Manifest | None:
    """The ControllerRevision to apply; None when nothing is new.

    Args:
        service: the object.
        revisions: its ControllerRevisions.
        decisions: what was decided since the last call, with the times.
    """
    entries = read_record(revisions, service.uid)
    known = len(entries)
    for time, decision in decisions:
        if not _is_repeated(entries, time, decision):
            entries.append(_entry(decision, time, entries))
    if len(entries) == known:
        return None
    kept = entries[-KEPT_DECISIONS:]
    while len(text := json.dumps(kept)) > KEPT_BYTES:
        kept = kept[1:]
    manifest = revision(service, DATA, entries[-1]["number"])
    manifest["metadata"]["annotations"] = {DECISIONS_ANNOTATION: text}
    return manifest


def _entry(decision: Decision, time: datetime, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "number": entries[-1]["number"] + 1 if entries else 1,
        "time": time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "subject": str(decision.subject),
        "decision": decision.decision[:SENTENCE_LIMIT],
        "because": decision.because[:SENTENCE_LIMIT],
        "inputs": dict(decision.inputs),
    }


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("number"), int):
        return False
    if not isinstance(entry.get("inputs"), dict):
        return False
    if not all(isinstance(entry.get(name), str) for name in ("time", "subject", "decision", "because")):
        return False
    try:
        return datetime.fromisoformat(entry["time"]).tzinfo is not None
    except ValueError:
        return False


def _is_repeated(entries: Sequence[Mapping[str, Any]], time: datetime, decision: Decision) -> bool:
    latest = next((one for one in reversed(entries) if one["subject"] == decision.subject), None)
    said = decision.decision[:SENTENCE_LIMIT], decision.because[:SENTENCE_LIMIT]
    if latest is None or (latest["decision"], latest["because"]) != said:
        return False
    return (time - datetime.fromisoformat(latest["time"])).total_seconds() < QUIET_SECONDS


def _state(pod: Replica) -> str:
    if pod.is_leaving:
        return "leaving"
    if pod.is_ready:
        return "ready"
    return "not ready" if pod.is_placed else "without a node"
