from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.rollout import PATIENCE_SECONDS, Replica, next_step, replicas_of, surge_of


def test_next_step_misses_fewer_pods_when_room_comes() -> None:
    pods = [Replica(f"old{number}", is_new=False, is_ready=True, is_placed=True) for number in range(3)]
    step = next_step(4, pods, refused=False, current=(0, 3), stall=None, now=0)
    assert (step.max_surge, step.max_unavailable) == (0, 2)


def test_next_step_waits_for_a_pod_that_is_leaving() -> None:
    """The last rollout's pod still drains on the GPU that the next one's needs: no ready pod is stopped for that."""
    pods = (
        Replica("old", is_new=False, is_ready=True, is_placed=True),
        Replica("drains", is_new=False, is_placed=True, is_leaving=True),
        Replica("new", is_new=True),
    )
    stall = None
    for now in (0.0, 30.0, 120.0):
        step = next_step(1, pods, refused=False, current=(1, 0), stall=stall, now=now)
        assert (step.max_surge, step.max_unavailable) == (1, 0)
        stall = step.stall
    step = next_step(1, (pods[0], pods[2]), refused=False, current=(1, 0), stall=stall, now=130.0)
    assert (step.max_surge, step.look_again_after) == (1, PATIENCE_SECONDS)
    step = next_step(1, (pods[0], pods[2]), refused=False, current=(1, 0), stall=step.stall, now=150.0)
    assert (step.max_surge, step.max_unavailable) == (0, 1)


def pod(label: str | None, *, conditions: dict[str, str] | None = None, **fields: Any) -> Manifest:
    labels = {TEMPLATE_LABEL: label} if label else {}
    metadata = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels} | fields.pop("metadata", {})
    told = [
        {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:30Z"}
        for kind, status in (conditions or {}).items()
    ]
    return {"metadata": metadata, "status": {"conditions": told, **fields}}


NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        (pod("new"), Replica("u", is_new=True, unready_seconds=60)),
        (pod("old", conditions={"PodScheduled": "False"}), Replica("u", is_new=False, unready_seconds=60)),
        (
            pod("new", conditions={"PodScheduled": "True", "Ready": "False"}),
            Replica("u", is_new=True, is_placed=True, unready_seconds=30),
        ),
        (
            pod("new", conditions={"PodScheduled": "True", "Ready": "True"}),
            Replica("u", is_new=True, is_placed=True, is_ready=True),
        ),
        (
            pod("old", metadata={"deletionTimestamp": "2026-01-01T00:00:50Z"}),
            Replica("u", is_new=False, is_leaving=True, unready_seconds=60),
        ),
    ],
)
def test_replicas_of(manifest: Manifest, found: Replica) -> None:
    assert replicas_of([manifest], "new", NOW) == (found,)


@pytest.mark.parametrize(
    "manifest",
    [
        pod(None),
        pod("new", phase="Failed"),
        pod("old", metadata={"deletionTimestamp": "2026-01-01T00:00:30Z"}),
    ],
    ids=["stranger", "evicted", "on a lost node"],
)
def test_replicas_of_leaves_out(manifest: Manifest) -> None:
    assert replicas_of([manifest], "new", NOW + timedelta(seconds=1)) == ()


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, (0, 1)),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}, None),
        ({"type": "Recreate"}, None),
    ],
)
def test_surge_of(strategy: Manifest, found: tuple[int, int] | None) -> None:
    assert surge_of({"spec": {"strategy": strategy}}) == found
