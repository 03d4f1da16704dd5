"""`kubectl octavo status`: does it serve; if not, why, since when, and what to do."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import INFERENCE_SERVICE, Manifest
from octavo_operator.core.rollout import surge_of
from octavo_operator.plugin.advice import ADVICE
from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.pods import generation_of, restarts, state_of
from octavo_operator.plugin.screen import Paint, ago, amount, fields, plain, size, table, wrapped

__all__ = ["as_json", "is_ready", "plan_words", "screen"]

EVENTS = 6
LOOK_FOR_IT = "Does it run? `kubectl get pods -A -l app.kubernetes.io/name=octavo-operator`"


def is_ready(facts: Facts) -> bool:
    """Whether every desired pod runs the present spec and answers."""
    return _condition(facts, ConditionType.READY).get("status") == "True" and _is_seen(facts)


def screen(facts: Facts, now: datetime, paint: Paint = plain) -> str:
    """All of it as text.

    Args:
        facts: what was read.
        now: the time.
        paint: colours, where there are some.
    """
    status = facts.service.get("status", {})
    lines = [*_head(facts, now, paint), "", *fields(_rows(facts, status))]
    if facts.pods:
        lines += ["", *_pods(facts, now, paint)]
    elif not any("pods" in one for one in facts.missing):
        lines += ["", "There are no pods."]
    if facts.events:
        lines += ["", *_events(facts.events[-EVENTS:], _condition(facts, ConditionType.READY).get("message"), now)]
    for sentence in facts.missing:
        lines += ["", *wrapped(sentence, "not shown: ", "           ")]
    return "\n".join(lines)


def as_json(facts: Facts, now: datetime) -> dict[str, Any]:
    """The same for programs."""
    ready, status = _condition(facts, ConditionType.READY), facts.service.get("status", {})
    metadata, surge = facts.service["metadata"], surge_of(facts.deployment)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "ready": is_ready(facts),
        "seen": _is_seen(facts),
        "reason": ready.get("reason"),
        "message": ready.get("message"),
        "since": ready.get("lastTransitionTime"),
        "advice": _advice(facts, ready) or None,
        "url": status.get("url"),
        "replicas": {
            "wanted": _wanted(facts),
            **{name: status.get(name) for name in ("replicas", "readyReplicas", "updatedReplicas")},
        },
        "plan": status.get("plan"),
        "strategy": None if surge is None else {"maxSurge": surge[0], "maxUnavailable": surge[1]},
        "conditions": status.get("conditions", []),
        "pods": [
            {
                "name": pod["metadata"]["name"],
                "node": pod["spec"].get("nodeName"),
                "state": state_of(pod, now)[0],
                "restarts": restarts(pod),
                "template": generation_of(pod, facts.template),
            }
            for pod in facts.pods
        ],
        "missing": list(facts.missing),
    }


def _condition(facts: Facts, kind: ConditionType) -> Manifest:
    conditions = facts.service.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == kind), {})


def _is_seen(facts: Facts) -> bool:
    """Whether the operator's words are about the present spec."""
    seen = facts.service.get("status", {}).get("observedGeneration")
    return bool(seen == facts.service["metadata"]["generation"])


def _head(facts: Facts, now: datetime, paint: Paint) -> list[str]:
    metadata, status = facts.service["metadata"], facts.service.get("status", {})
    name = f"{metadata['name']} in namespace {metadata['namespace']}"
    ready = _condition(facts, ConditionType.READY)
    since = ago(ready.get("lastTransitionTime"), now)
    if "deletionTimestamp" in metadata:
        return [paint(f"{name} is being deleted", "yellow")]
    if not ready:
        return [
            paint(f"{name}: the operator has not looked at it since it was made, {_edited(facts, now)} ago", "yellow"),
            *wrapped(LOOK_FOR_IT, "  ", "  "),
        ]
    if ready["status"] == "True":
        lines = [paint(f"{name} serves", "green") + f", for {since}: {ready['message']}"]
    else:
        some = status.get("readyReplicas", 0)
        verdict = f"serves in part, with {some} of {_wanted(facts)} pods" if some else "does not serve"
        of_reason = _reason_age(facts, ready, now)
        lines = wrapped(
            f"{name} {verdict}: {ready['reason']}, for {of_reason}"
            + (f"; not ready for {since}" if since != of_reason else "")
        )
        lines[0] = lines[0].replace(f"{name} {verdict}", paint(f"{name} {verdict}", "yellow" if some else "red"))
        lines += wrapped(ready["message"], "  ", "  ")
        advice = _advice(facts, ready)
        lines += wrapped(advice, "  to do: ", "         ") if advice else []
    if not _is_seen(facts):
        unseen = f"The operator has not looked at the last edit, of {_edited(facts, now)} ago: this is about the spec before."
        lines += wrapped(f"{unseen} {LOOK_FOR_IT}", "  ", "  ")
    return lines


def _advice(facts: Facts, ready: Manifest) -> str:
    """What to do; empty where nothing is wrong."""
    return ADVICE.get(ready.get("reason", ""), "").replace("NAME", facts.service["metadata"]["name"])


def _wanted(facts: Facts) -> int:
    spec = facts.service["spec"]
    return 0 if spec.get("suspend") else int(spec.get("replicas", 1))


def _reason_age(facts: Facts, ready: Manifest, now: datetime) -> str:
    """How long Ready has had its reason: its Event knows. Without one, as long as it has had its status."""
    uid = facts.service["metadata"]["uid"]
    for event in reversed(facts.events):
        if event["involvedObject"].get("uid") == uid and event.get("reason") == ready["reason"]:
            return ago(event.get("lastTimestamp"), now)
    return ago(ready.get("lastTransitionTime"), now)


def _edited(facts: Facts, now: datetime) -> str:
    """How long ago the spec was last written."""
    metadata = facts.service["metadata"]
    writers = [one for one in metadata.get("managedFields", ()) if one.get("subresource") is None and "time" in one]
    return ago(max((one["time"] for one in writers), default=metadata["creationTimestamp"]), now)


def _rows(facts: Facts, status: Manifest) -> list[tuple[str, str]]:
    rows = [("model", facts.service["spec"]["model"]["uri"])]
    ready = _condition(facts, ConditionType.READY)
    model = _condition(facts, ConditionType.MODEL_RESOLVED)
    if model.get("status") == "False" and model["message"] != ready.get("message"):
        rows.append(("", f"{model['reason']}: {model['message']}"))
    if "url" in status:
        rows.append(("address", f"{status['url']}/v1"))
    rows.append(("pods", _counts(facts, status)))
    scheduled = _condition(facts, ConditionType.SCHEDULED)
    if scheduled.get("status") == "False" and scheduled["message"] != ready.get("message"):
        rows.append(("", f"{scheduled['reason']}: {scheduled['message']}"))
    rows.append(("plan", _plan(status)))
    rollout = _rollout(facts)
    if rollout:
        rows.append(("rollout", rollout))
    update = _condition(facts, ConditionType.UPDATE_PENDING)
    if update.get("status") == "True":
        rows.append(("update", update["message"]))
    return rows


def _counts(facts: Facts, status: Manifest) -> str:
    exist, ready, updated = (status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas"))
    return f"{_wanted(facts)} wanted: {exist} exist, {ready} answer, {updated} run the present spec"


def _plan(status: Manifest) -> str:
    """The plan in words."""
    plan = status.get("plan")
    if not plan:
        return "not known yet: no pod of the present spec has planned"
    return plan_words(plan)


def plan_words(plan: Manifest) -> str:
    """What a model needs, as far as it is known."""
    words = []
    if "weightsBytes" in plan:
        words.append(f"weights {size(plan['weightsBytes'])}")
    if "kvBytesPerToken" in plan:
        words.append(f"KV {size(plan['kvBytesPerToken'])} per token")
    if "kvTokens" in plan:
        words.append(f"room for {amount(plan['kvTokens'], 'token')} per pod")
    if "maxConcurrency" in plan:
        words.append(f"{amount(plan['maxConcurrency'], 'request')} of the longest length at once")
    return ", ".join(words)


def _rollout(facts: Facts) -> str:
    progressing = _condition(facts, ConditionType.PROGRESSING)
    if progressing.get("reason") not in {Reason.ROLLING_OUT, Reason.SCALING_DOWN, Reason.STUCK}:
        return ""
    surge = surge_of(facts.deployment)
    kind = facts.service["spec"].get("rollout", {}).get("type", "Auto")
    room = f"; at most {surge[0]} more and {surge[1]} fewer than wanted" if surge else ""
    return f"{progressing['message']} (type {kind}{room})"


def _pods(facts: Facts, now: datetime, paint: Paint) -> list[str]:
    head = ("POD", "NODE", "STATE", "RESTARTS", "TEMPLATE", "AGE")
    rows, colours = [], []
    for pod in facts.pods:
        state, colour = state_of(pod, now)
        metadata = pod["metadata"]
        node = pod["spec"].get("nodeName", "-")
        age = ago(metadata["creationTimestamp"], now)
        rows.append((metadata["name"], node, state, str(restarts(pod)), generation_of(pod, facts.template), age))
        colours.append(("", "", colour))
    return table(head, rows, colours, paint)


def _events(events: Sequence[Manifest], above: str | None, now: datetime) -> list[str]:
    rows = []
    for event in events:
        last = (
            (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
        )
        who = event["involvedObject"]
        about = (
            ""
            if who.get("kind") == INFERENCE_SERVICE.kind
            else f"{who.get('kind', '').lower()} {who.get('name', '')}: "
        )
        count = event.get("count") or 1
        times = f" ({count} times)" if count > 1 else ""
        said = event.get("message", "").strip()
        text = f"{about}{'as above' if said == above else said}{times}"
        rows.append((ago(last, now), event.get("reason", ""), text))
    width = max(len(age) for age, _, _ in rows)
    reasons = max(len(reason) for _, reason, _ in rows)
    lines = ["LAST EVENTS"]
    for age, reason, text in rows:
        first = f"{age.rjust(width)} ago  {reason.ljust(reasons)}  "
        lines += wrapped(" ".join(text.split()), first, " " * len(first))
    return lines
