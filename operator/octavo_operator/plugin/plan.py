"""`kubectl octavo plan`: what applying a manifest would do, found out without applying it.

The API server's verdict is kubectl's own, `kubectl apply --dry-run=server`, which also merges the file with what is
there. What the operator would do follows from its own code, run here on the object that the dry run returned.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.names import DEPLOYMENT, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.containers import container_fault
from octavo_operator.core.desired import PLAN, SERVER, pod_template
from octavo_operator.core.differences import differences
from octavo_operator.core.observed import Observed
from octavo_operator.core.pods import is_of
from octavo_operator.core.revision import applied_template, label_of, pin
from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.fit import NodeFit
from octavo_operator.plugin.screen import Paint, amount, fields, plain, size, table, wrapped

__all__ = ["Change", "Needs", "as_json", "change", "known_needs", "needs_of", "plan_of", "runtime_image_of", "screen"]

IMAGE_UNKNOWN = "(the operator's)"
NODES = 12
"""How many nodes are listed."""

NUMBERS = {
    "weightsBytes": "weights_bytes",
    "kvBytesPerToken": "kv_bytes_per_token",
    "kvTokens": "kv_tokens",
    "maxConcurrency": "max_concurrency",
    "maxModelLen": "max_model_len",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What applying would do.

    Attributes:
        name: of the InferenceService.
        namespace: of the InferenceService.
        action: created, changed or unchanged.
        edits: each value of the spec that changes.
        replaced: how many pods are replaced; None where the object is new.
        how: how that goes, a sentence.
        note: what is uncertain about it, empty when nothing.
        template: the pod template as this version of the operator renders it.
        plans_as_before: whether the pods that run have planned with the same arguments, image and mounts.
    """

    name: str
    namespace: str
    action: str
    edits: tuple[str, ...]
    replaced: int | None
    how: str
    note: str
    template: Manifest
    plans_as_before: bool


@dataclass(frozen=True, slots=True)
class Needs:
    """What the model needs; None where nobody knows.

    Attributes:
        weights_bytes: of the weights once loaded.
        kv_bytes_per_token: what a token keeps in the KV cache.
        kv_tokens: tokens that the KV cache of a pod holds.
        max_concurrency: requests of the longest length that fit at once.
        max_model_len: the longest request, prompt and answer.
        source: who says so.
        fault: why it cannot be served, instead of all of these.
        unknown: why nothing is known, instead of all of these.
    """

    weights_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    source: str = ""
    fault: str = ""
    unknown: str = ""


def change(dry: Manifest, facts: Facts | None, image: str | None) -> Change:
    """What applying would do.

    Args:
        dry: the object as the dry run returned it.
        facts: what is there now; None when the object is new.
        image: the runtime's image where the object names none, as far as it is known.

    Raises:
        SpecInvalid: the object has fields that this version does not know.
    """
    service = InferenceService.parse(dry)
    render = partial(pod_template, runtime_image=image or IMAGE_UNKNOWN)
    rendered = render(service)
    if facts is None:
        starts = f"{amount(service.wanted, 'pod')} would be started"
        return Change(service.name, service.namespace, "created", (), None, starts, "", rendered, plans_as_before=False)
    edits = tuple(text for _, text in differences(facts.service["spec"], dry["spec"]))
    children = {DEPLOYMENT: facts.deployment} if facts.deployment is not None else {}
    present = Observed(facts.service, children, facts.pods, facts.revisions)
    pinned = pin(service, replace(present, service=dry), render)
    label, before = applied_template(present), _container(_template_of(facts), PLAN)
    known = label is not None and bool(facts.revisions)
    staying = [pod for pod in facts.pods if "deletionTimestamp" not in pod["metadata"]]
    replaced = sum(not is_of(pod, label_of(pinned.template)) for pod in staying) if known else None
    return Change(
        service.name,
        service.namespace,
        "changed" if edits else "unchanged",
        edits,
        replaced,
        _how(service, facts, replaced),
        _note(facts, pin(InferenceService.parse(facts.service), present, render).pending) if known else "",
        pinned.template,
        before is not None and _plans_alike(before, _container(pinned.template, PLAN)),
    )


def runtime_image_of(facts: Facts) -> str | None:
    """The runtime's image that the operator gave to pods whose object names none; None when no pod tells."""
    named = facts.service["spec"].get("runtime", {}).get("image")
    server = _container(_template_of(facts), SERVER)
    return None if named or server is None else str(server["image"])


def known_needs(facts: Facts) -> Needs | None:
    """What the pods that run have planned, or the status keeps of it; None when neither does."""
    for pod in facts.pods:
        for container in pod.get("status", {}).get("initContainerStatuses", ()):
            ended = container.get("state", {}).get("terminated") or {}
            if container.get("name") == PLAN and ended.get("exitCode") == 0 and facts.template is not None:
                needs = plan_of(ended.get("message", ""), f"planned by pod {pod['metadata']['name']}")
                if needs is not None and is_of(pod, facts.template):
                    return needs
    plan = facts.service.get("status", {}).get("plan")
    longest = facts.service["spec"].get("runtime", {}).get("maxModelLen")
    if not plan:
        return None
    needs = _numbers(plan, "from the object's status")
    return replace(needs, max_model_len=longest) if isinstance(longest, int) else needs


def plan_of(text: str, source: str) -> Needs | None:
    """Reads the JSON of `octavo plan`; None for anything else."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return _numbers(said, source) if isinstance(said, dict) and "weightsBytes" in said else None


def needs_of(pod: Manifest, source: str) -> Needs:
    """What a pod that ran the plan says: numbers, or why the model cannot be served."""
    for container in pod["status"].get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated") or {}
        needs = plan_of(ended.get("message", ""), source) if ended.get("exitCode") == 0 else None
        if needs is not None:
            return needs
        fault = container_fault(container, init=True)
        if fault is not None:
            return Needs(fault=f"{fault[1].reason}: {fault[1].message}")
    reason = pod["status"].get("reason", "")
    return Needs(unknown=f"the plan's pod ended without a plan: {reason} {pod['status'].get('message', '')}".strip())


def screen(
    one: Change,
    needs: Needs,
    nodes: Sequence[NodeFit] | None,
    unseen: Sequence[str],
    missing: Sequence[str],
    paint: Paint = plain,
) -> str:
    """All of it as text.

    Args:
        one: what would change.
        needs: what the model needs.
        nodes: what the nodes say; None when nobody may ask.
        unseen: what the scheduler looks at beside that.
        missing: what could not be read, a sentence each.
        paint: colours, where there are some.
    """
    name = f"{one.name} in namespace {one.namespace}"
    lines = [f"{name} would be {paint(one.action, 'bold')}: the API server accepts it (dry run)"]
    lines += [line for edit in one.edits for line in wrapped(edit, "  ", "    ")]
    pods = [("pods", one.how), *([("", one.note)] if one.note else [])]
    lines += ["", *fields([*pods, *_rows(needs)])]
    if nodes is not None:
        lines += ["", *_nodes(nodes, unseen, paint)]
    for sentence in missing:
        lines += ["", *wrapped(sentence, "nodes are not shown: ", "                     ")]
    return "\n".join(lines)


def as_json(one: Change, needs: Needs, nodes: Sequence[NodeFit] | None, missing: Sequence[str]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "namespace": one.namespace,
        "name": one.name,
        "action": one.action,
        "edits": list(one.edits),
        "podsReplaced": one.replaced,
        "note": one.note or None,
        "plan": {key: getattr(needs, name) for key, name in NUMBERS.items()},
        "planSource": needs.source or None,
        "fault": needs.fault or None,
        "planUnknown": needs.unknown or None,
        "nodes": None
        if nodes is None
        else [{"name": node.name, "pods": node.count, "lacks": list(node.lacks)} for node in nodes],
        "missing": list(missing),
    }


def _template_of(facts: Facts) -> Manifest | None:
    if facts.deployment is None:
        return None
    template: Manifest = facts.deployment["spec"]["template"]
    return template


def _container(template: Manifest | None, name: str) -> Manifest | None:
    spec = template.get("spec", {}) if template else {}
    containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
    return next((one for one in containers if one["name"] == name), None)


def _plans_alike(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> bool:
    names = ("image", "args", "volumeMounts")
    return after is not None and all(before.get(name) == after.get(name) for name in names)


def _note(facts: Facts, pending: str) -> str:
    """What may be otherwise than told, judged by how this version would render what is there now."""
    conditions = facts.service.get("status", {}).get("conditions", ())
    told = any(one["type"] == ConditionType.UPDATE_PENDING and one["status"] == "True" for one in conditions)
    if told:
        return "an update of the operator is pending: pods that are replaced for another reason bring it too"
    if pending:
        return (
            "this program renders pods otherwise than the operator that made these, so it is of another version or does "
            "not know its settings; whether pods are replaced should be right all the same, but what they become may not"
        )
    return ""


def _how(service: InferenceService, facts: Facts, replaced: int | None) -> str:
    exist, wanted = InferenceService.parse(facts.service).wanted, service.wanted
    counted = ""
    if wanted != exist:
        difference = amount(abs(wanted - exist), "pod")
        counted = f"; {difference} {'more' if wanted > exist else 'fewer'}: {wanted} instead of {exist}"
    if replaced is None:
        return f"not known whether any is replaced: the Deployment and its revisions cannot be read{counted}"
    if not replaced:
        return f"none would be replaced{counted}"
    match service.spec.rollout.type:
        case "Auto":
            way = "a new one starts before an old one stops; where there is no room for it, old ones make room"
        case "Recreate":
            way = "all stop first, so that nothing serves meanwhile"
        case "RollingUpdate":
            way = "a Deployment's rolling update"
    return f"{amount(replaced, 'pod')} would be replaced (type {service.spec.rollout.type}: {way}){counted}"


def _numbers(said: Mapping[str, Any], source: str) -> Needs:
    numbers: dict[str, Any] = {name: said.get(key) for key, name in NUMBERS.items()}
    known: dict[str, Any] = {
        name: value for name, value in numbers.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return replace(Needs(source=source), **known)


def _rows(needs: Needs) -> list[tuple[str, str]]:
    if needs.fault:
        return [("plan", f"cannot be served: {needs.fault}")]
    if needs.unknown:
        return [("plan", f"not known: {needs.unknown}")]
    device = "known when it is loaded; runtime.kvCacheMemory would fix it"
    rows = [
        ("weights", size(needs.weights_bytes) if needs.weights_bytes is not None else "not known"),
        ("KV", f"{size(needs.kv_bytes_per_token)} per token" if needs.kv_bytes_per_token is not None else "not known"),
        ("KV cache", f"{amount(needs.kv_tokens, 'token')} per pod" if needs.kv_tokens is not None else device),
    ]
    if needs.max_model_len is not None:
        rows.append(("longest", f"request of {amount(needs.max_model_len, 'token')}, prompt and answer"))
    if needs.max_concurrency is not None:
        rows.append(("at once", f"{needs.max_concurrency:,.1f} such requests per pod, and more that are shorter"))
    return [*rows, ("source", needs.source)]


def _nodes(nodes: Sequence[NodeFit], unseen: Sequence[str], paint: Paint) -> list[str]:
    able = [node for node in nodes if node.count]
    room = sum(node.count for node in able)
    rows, colours = [], []
    for node in nodes[:NODES]:
        rows.append(
            (node.name, f"yes, {amount(node.count, 'pod')}" if node.count else "no", "; ".join(node.lacks) or "-")
        )
        colours.append(("", "green" if node.count else "red"))
    lines = table(("NODE", "FITS NOW", "WHAT IS LACKING"), rows, colours, paint)
    if len(nodes) > NODES:
        lines.append(f"and {amount(len(nodes) - NODES, 'more node')}")
    found = f"Room now, beside what runs: {amount(room, 'such pod')}, on {len(able)} of {amount(len(nodes), 'node')}."
    return [*lines, *wrapped(f"{found} Not looked at: {', '.join(unseen)}.")]
