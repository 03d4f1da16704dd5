"""`kubectl octavo why`: the operator's last decisions, and what each was decided from."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_operator.core.decisions import read_record
from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.screen import Paint, ago, amount, plain, wrapped

__all__ = ["as_json", "screen"]

INDENT = "    "


def screen(facts: Facts, now: datetime, *, last: int, paint: Paint = plain) -> str:
    """The record as text, the latest decision last.

    Args:
        facts: what was read.
        now: the time.
        last: how many decisions to show.
        paint: colours, where there are some.
    """
    metadata = facts.service["metadata"]
    entries = read_record(facts.revisions, metadata["uid"])
    name = f"{metadata['name']} in namespace {metadata['namespace']}"
    if facts.missing and not entries:
        return "\n".join(wrapped(f"{name}: the record cannot be read: {'; '.join(facts.missing)}"))
    if not entries:
        return "\n".join(
            wrapped(
                f"{name}: nothing was decided since it was made, {ago(metadata['creationTimestamp'], now)} ago. Its pods "
                "are of its first template, and no child had to be put right."
            )
        )
    shown = entries[-last:]
    kept = "" if len(shown) == len(entries) else f", the last {len(shown)} of {len(entries)} on record"
    lines = [f"{name}: {amount(entries[-1]['number'], 'decision')} so far{kept}"]
    for entry in shown:
        when = f"{ago(entry['time'], now)} ago, {entry['time']}"
        lines += ["", paint(f"{entry['number']}. {entry['subject']}", "bold") + paint(f"   {when}", "dim")]
        lines += wrapped(entry["decision"], INDENT, INDENT)
        lines += wrapped(entry["because"], f"{INDENT}because ", f"{INDENT}        ")
        given = "; ".join(_given(key, value) for key, value in entry["inputs"].items())
        lines += wrapped(given, f"{INDENT}from    ", f"{INDENT}        ") if given else []
    return "\n".join(lines)


def as_json(facts: Facts) -> dict[str, Any]:
    """The record for programs."""
    metadata = facts.service["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "decisions": read_record(facts.revisions, metadata["uid"]),
        "missing": list(facts.missing),
    }


def _given(name: str, value: object) -> str:
    """One of the inputs in words."""
    if name == "pods" and isinstance(value, Mapping):
        return "pods: " + (", ".join(f"{count} {state}" for state, count in value.items()) or "none")
    if isinstance(value, Mapping):
        return f"{name}: " + ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return f"{name}: {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
