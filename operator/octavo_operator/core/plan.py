"""Which children must be written: desired against observed, without endless writes.

The API server rewrites some of what is applied (`1000m` becomes `1`) and adds defaults, so that desired and observed
can never be compared as they are. Server-side apply itself knows the answer but costs a request. Therefore the
operator remembers, per child, two digests from its last apply: of what it sent, and of what the server made of the
fields that were sent. They are on record in the object's status too, so that the next process remembers what this one
did (ADR 21). A child is written again when

- the desired manifest is another one than was sent, or
- one of the fields that were sent now reads otherwise than the server answered (drift), or
- nothing is remembered: the process that applied it ended before it wrote the status. An apply that changes nothing is
  not even a new resourceVersion for the server.

Fields that other managers add, and the status, are not looked at, so that they cause no writes.

Invariant: applying a plan and remembering the answers makes the next plan empty, and so does recalling them from the
record (tests/operator_tests/test_plan.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.names import CHILDREN, MANAGED_BY, OPERATOR, OWNER_LABEL, Kind, Manifest
from octavo_operator.core.digest import digest
from octavo_operator.core.observed import Observed

__all__ = ["Applied", "Plan", "is_ours", "kind_of", "plan", "recall", "record_of", "remember", "same_fields"]

CHILD_KINDS = {(kind.api_version, kind.kind): kind for kind in CHILDREN}

SELECTORS = ("selector", "podSelector")
"""Fields that the API server replaces whole, and that select less with each key which someone adds."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Digests of one apply: of the manifest sent, and of the same fields in the server's answer."""

    sent: str
    answered: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order.

    Attributes:
        create: children that were not observed. Whether the name is free must be looked up first: an object that is
            not ours is never applied over.
        apply: children that exist, are ours, and differ.
        taken: children whose name an object of someone else bears.
    """

    create: tuple[Manifest, ...] = ()
    apply: tuple[Manifest, ...] = ()
    taken: tuple[Manifest, ...] = ()


def plan(desired: Iterable[Manifest], observed: Observed, applied: Mapping[Kind, Applied]) -> Plan:
    """Compares the desired children with the observed ones.

    Args:
        desired: manifests from desired_children.
        observed: what exists.
        applied: what is remembered of the last apply of each kind.
    """
    create, apply, taken = [], [], []
    for manifest in desired:
        kind = kind_of(manifest)
        child = observed.children.get(kind)
        if child is None:
            create.append(manifest)
        elif not is_ours(child, observed.service):
            taken.append(manifest)
        elif applied.get(kind) != remember(manifest, child):
            apply.append(manifest)
    return Plan(tuple(create), tuple(apply), tuple(taken))


def remember(sent: Manifest, answer: Manifest) -> Applied:
    """What to keep of an apply, or of an observed child in order to compare it."""
    # The items of a list bear no kind.
    fields = {name: value for name, value in sent.items() if name not in {"apiVersion", "kind"}}
    return Applied(digest(sent), digest(same_fields(answer, fields)))


def record_of(applied: Mapping[Kind, Applied]) -> dict[str, str]:
    """What is remembered, as the status keeps it: `SENT/ANSWERED` by kind."""
    return {kind.kind: f"{one.sent}/{one.answered}" for kind, one in applied.items()}


def recall(service: Manifest) -> dict[Kind, Applied]:
    """What an InferenceService's status has on record of the last applies.

    A record that somebody changed is at worst of another apply: then the child is applied once more.
    """
    on_record: dict[str, str] = service.get("status", {}).get("applied", {})
    pairs = ((kind, on_record[kind.kind].partition("/")) for kind in CHILDREN if kind.kind in on_record)
    return {kind: Applied(sent, answered) for kind, (sent, _, answered) in pairs}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a child."""
    return CHILD_KINDS[manifest["apiVersion"], manifest["kind"]]


def is_ours(child: Manifest, service: Manifest) -> bool:
    """Whether a child belongs to an InferenceService.

    It does when the object is its controller. An orphan does too if it bears our labels and that name: it was ours
    before its owner reference was lost, by `kubectl delete --cascade=orphan` or by hand.
    """
    owner = next((one for one in child["metadata"].get("ownerReferences", ()) if one.get("controller")), None)
    if owner is not None:
        return bool(owner["uid"] == service["metadata"]["uid"])
    labels: dict[str, str] = child["metadata"].get("labels", {})
    return labels.get(MANAGED_BY) == OPERATOR and labels.get(OWNER_LABEL) == service["metadata"]["name"]


def same_fields(answer: Any, sent: Any) -> Any:
    """The part of `answer` that lies where `sent` has something; lists of another length are taken whole."""
    if answer == sent:
        return answer  # most is, and the comparison is done in C
    if isinstance(answer, dict) and isinstance(sent, dict):
        return {
            name: answer[name] if name in SELECTORS else same_fields(answer[name], value)
            for name, value in sent.items()
            if name in answer
        }
    if isinstance(answer, list) and isinstance(sent, list) and len(answer) == len(sent):
        return [same_fields(one, other) for one, other in zip(answer, sent, strict=True)]
    return answer
