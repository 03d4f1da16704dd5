"""How an API server merges what clients send: server-side apply between managers, and the JSON merge patch.

Pure functions on plain JSON, for FakeCluster; as much of the rules as the operator's objects need.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from octavo_operator.api.names import Manifest

__all__ = ["copied", "merge_applied", "merge_patch"]

T = TypeVar("T")

LIST_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "initContainers": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Keys by which the items of a list are merged; other lists are replaced whole."""

ATOMIC = frozenset({"selector", "podSelector"})
"""Objects that are replaced whole."""


def copied(value: T) -> T:
    """JSON all over again, as it would be on its way to a real API server and back."""
    return msgspec.json.decode(msgspec.json.encode(value))  # type: ignore[no-any-return] # the same JSON


def merge_applied(live: Manifest | None, manager: str, sent: Manifest, applied: Mapping[str, Manifest]) -> Manifest:
    """An object after a manager's server-side apply, which takes over fields that others own.

    Args:
        live: the object; None when there is none yet.
        manager: who applies.
        sent: what is applied.
        applied: what each manager applied last.
    """
    merged = copied(live or {})
    others = [fields for name, fields in applied.items() if name != manager]
    _prune(merged, applied.get(manager, {}), sent, others)
    _merge(merged, sent)
    return merged


def _item_key(name: str, item: Any) -> tuple[object, ...] | None:
    """What identifies an item of the list `name`; None where the list is replaced whole."""
    if not isinstance(item, dict):
        return None
    keys = LIST_KEYS.get(name)
    if name == "ports":
        keys = ("containerPort", "protocol") if "containerPort" in item else ("port", "protocol")
    return tuple(item.get(key) for key in keys) if keys else None


def _by_key(name: str, items: Iterable[Any]) -> dict[tuple[object, ...], Any] | None:
    keyed = {_item_key(name, item): item for item in items}
    return None if None in keyed else {key: item for key, item in keyed.items() if key is not None}


def _prune(live: Any, before: Any, now: Any, others: list[Any]) -> None:
    """Removes from `live` what a manager applied before and leaves out now, unless another one applies it too."""
    for name, value in before.items():
        claimed = [other[name] for other in others if name in other]
        if name not in live:
            continue
        if name not in now:
            if not claimed:
                del live[name]
        elif isinstance(value, dict) and isinstance(now[name], dict):
            _prune(live[name], value, now[name], claimed)
        elif isinstance(value, list):
            old, new = _by_key(name, value), _by_key(name, now[name])
            if old is None or new is None:
                continue
            kept = set().union(*(set(_by_key(name, other) or ()) for other in claimed))
            live[name] = [
                item for item in live[name] if (key := _item_key(name, item)) in new or key in kept or key not in old
            ]
            for item in live[name]:
                key = _item_key(name, item)
                if key in old and key in new:
                    _prune(item, old[key], new[key], [])


def _merge(live: Any, sent: Any) -> None:
    for name, value in sent.items():
        if isinstance(value, dict) and isinstance(live.get(name), dict) and name not in ATOMIC:
            _merge(live[name], value)
        elif isinstance(value, list) and isinstance(live.get(name), list) and (items := _by_key(name, value)):
            present = _by_key(name, live[name]) or {}
            for key, item in items.items():
                if key in present:
                    _merge(present[key], item)
                else:
                    present[key] = copied(item)
            # The sent items have the order in which they were sent.
            live[name] = [present[key] for key in items] + [one for key, one in present.items() if key not in items]
        else:
            live[name] = copied(value)


def merge_patch(live: Any, patch: Any) -> None:
    """Changes an object by a JSON merge patch, but for nulls, which nobody sends."""
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(live.get(name), dict):
            merge_patch(live[name], value)
        else:
            live[name] = copied(value)
