from datetime import UTC, datetime
from typing import Any

import pytest

from octavo_operator.api.names import Manifest
from octavo_operator.core.events import ready_event

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def service(reason: str | None = None) -> Manifest:
    metadata = {"namespace": "default", "name": "chat", "uid": "uid-1"}
    return {"metadata": metadata, "status": with_ready(reason) if reason else {}}


def with_ready(reason: str, message: str = "because") -> dict[str, Any]:
    status = "True" if reason == "Serving" else "False"
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, "Starting", None),
        (None, "Stopped", None),
        (None, "ClaimNotFound", "Warning"),
        ("Starting", "Starting", None),
        ("Starting", "Serving", "Normal"),
        ("Serving", "RollingOut", "Normal"),
        ("Serving", "OOMKilled", "Warning"),
        ("Starting", "WaitingForGPU", "Warning"),
        ("OOMKilled", "OOMKilled", None),
    ],
)
def test_ready_event_is_one_per_change_of_the_reason(before: str | None, after: str, kind: str | None) -> None:
    event = ready_event(service(before), with_ready(after), NOW)
    assert (event["type"] if event else None) == kind
    if event is not None:
        assert (event["reason"], event["message"], event["count"]) == (after, "because", 1)
        assert event["involvedObject"]["uid"] == "uid-1"
        assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-01T00:00:00Z"


def test_ready_event_has_a_name_for_each_reason_of_each_object() -> None:
    def name(manifest: Manifest, reason: str) -> str:
        event = ready_event(manifest, with_ready(reason), NOW)
        assert event is not None
        return str(event["metadata"]["name"])

    successor = service("Starting")
    successor["metadata"]["uid"] = "uid-2"
    assert name(service("Starting"), "Serving") == name(service("Crashed"), "Serving")
    assert name(service("Starting"), "Serving") != name(service("Starting"), "Crashed")
    assert name(service("Starting"), "Serving") != name(successor, "Serving")
    assert name(service("Starting"), "Serving").startswith("chat.")


def test_ready_event_message_is_bounded() -> None:
    event = ready_event(service(), with_ready("Crashed", "x" * 5000), NOW)
    assert event is not None
    assert len(event["message"]) == 1024


def test_ready_event_of_a_status_without_ready_is_none() -> None:
    assert ready_event(service(), {"conditions": []}, NOW) is None
