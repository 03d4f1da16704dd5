import asyncio
import json
from typing import Any, cast

import pytest

from octavo_operator.api.names import POD, Kind, Manifest
from octavo_operator.cluster.user import UserCluster
from octavo_operator.errors import ClusterError, Gone, Rejected, Unavailable
from octavo_operator.plugin import plan_pod
from octavo_operator.plugin.plan import Needs
from octavo_operator.plugin.plan_pod import run_plan

MANIFEST: Manifest = {"metadata": {"name": "chat-plan-1", "namespace": "default"}}
ENDED = {
    "name": "plan",
    "ready": False,
    "state": {"terminated": {"exitCode": 0, "message": json.dumps({"weightsBytes": 7})}},
}


class Cluster:
    """Gives the pod the phases that a test lays out; keeps whether it was deleted."""

    def __init__(self, *phases: str | ClusterError | None) -> None:
        self.phases = list(phases)
        self.deleted: list[str] = []
        self.asked = asyncio.Event()
        self.refuses: ClusterError | None = None

    async def create(self, manifest: Manifest, kind: Kind) -> Manifest:
        assert kind is POD
        return cast("Manifest", await self.get(POD, "", manifest["metadata"]["name"]))

    async def get(self, _: Kind, __: str, name: str) -> Manifest | None:
        self.asked.set()
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        if isinstance(phase, ClusterError):
            raise phase
        if phase is None:
            return None
        status: dict[str, Any] = {"phase": phase, "containerStatuses": [ENDED] if phase == "Succeeded" else []}
        return {"metadata": {"name": name}, "status": status}

    async def delete(self, _: Kind, __: str, name: str) -> None:
        self.deleted.append(name)
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_pod, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(plan_pod, "PLAN_SECONDS", 5)


async def run(cluster: Cluster) -> tuple[Needs, list[str]]:
    told: list[str] = []
    return await run_plan(cast("UserCluster", cluster), MANIFEST, told.append), told


async def test_run_plan_waits_for_the_end_and_deletes_the_pod() -> None:
    cluster = Cluster("Pending", "Pending", "Running", "Succeeded")
    needs, told = await run(cluster)
    assert needs.weights_bytes == 7
    assert told == ["pod chat-plan-1 waits for a node"]
    assert cluster.deleted == ["chat-plan-1"]


async def test_run_plan_refused_deleted_or_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    needs, _ = await run(Cluster(Rejected("exceeded quota", status=403)))
    assert needs.unknown == "the API server refuses the pod that would plan: exceeded quota"
    needs, _ = await run(Cluster("Pending", None))
    assert needs.unknown == "someone deleted the pod chat-plan-1 that planned"
    monkeypatch.setattr(plan_pod, "PLAN_SECONDS", 0.05)
    late = Cluster("Pending")
    needs, _ = await run(late)
    assert "waits for a node; --no-pod leaves it out" in needs.unknown
    assert late.deleted == ["chat-plan-1"]


async def test_run_plan_api_server_away_still_tries_to_delete() -> None:
    cluster = Cluster("Pending", Unavailable("away"))
    with pytest.raises(Unavailable):
        await run(cluster)
    assert cluster.deleted == ["chat-plan-1"]


async def test_run_plan_interrupted_deletes_the_pod() -> None:
    cluster = Cluster("Pending")
    task = asyncio.create_task(run(cluster))
    await cluster.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.deleted == ["chat-plan-1"]


@pytest.mark.parametrize(("error", "said"), [(Gone("not found"), 0), (Rejected("may not delete", status=403), 1)])
async def test_run_plan_pod_that_cannot_be_deleted_is_told(error: ClusterError, said: int) -> None:
    cluster = Cluster("Succeeded")
    cluster.refuses = error
    needs, told = await run(cluster)
    assert needs.weights_bytes == 7
    assert len(told) == said
