from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.names import Manifest
from octavo_operator.core.setup import seconds_until_overdue, setup_fault

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VOLUMES: list[dict[str, Any]] = [
    {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    {"name": "tmp", "emptyDir": {}},
    {"name": "keys", "secret": {"secretName": "keys"}},
    {"name": "more", "configMap": {"name": "settings"}},
]


def pod(age: float, *, status: str = "False", phase: str = "Pending", **metadata: str) -> Manifest:
    since = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": status, "lastTransitionTime": since},
    ]
    return {"metadata": {"name": "chat-1", **metadata}, "status": {"phase": phase, "conditions": conditions}}


def test_setup_fault_names_what_the_volumes_need() -> None:
    fault = setup_fault([pod(1), pod(30)], VOLUMES, NOW)
    assert fault is not None
    assert fault.reason == "VolumesOrNetworkNotReady"
    assert fault.message == (
        "its volumes need persistentVolumeClaim models, secret keys, configMap settings: "
        "`kubectl describe pod chat-1` tells what is missing [pod chat-1]"
    )
    bare = setup_fault([pod(30)], [{"name": "tmp", "emptyDir": {}}], NOW)
    assert bare is not None
    assert bare.message == "`kubectl describe pod chat-1` tells what is missing [pod chat-1]"


@pytest.mark.parametrize(
    "one",
    [
        pod(29),
        pod(99, status="True"),
        pod(99, phase="Succeeded"),
        pod(99, deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "chat-1"}, "status": {"phase": "Pending"}},
    ],
    ids=["young", "set up", "ended", "going", "not scheduled"],
)
def test_setup_fault_of_other_pods_is_none(one: Manifest) -> None:
    assert setup_fault([one], VOLUMES, NOW) is None


def test_seconds_until_overdue_is_the_next_pod_that_is_not_told_yet() -> None:
    assert seconds_until_overdue([pod(5), pod(20), pod(99)], NOW) == 10
    assert seconds_until_overdue([pod(99), pod(5, status="True")], NOW) is None
