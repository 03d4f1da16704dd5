import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api.names import Manifest
from octavo_operator.errors import Unavailable
from octavo_operator.plugin import plan_pod
from octavo_operator.plugin.plan import Needs
from octavo_operator.plugin.plan_pod import run_plan
from tests.operator_tests.plugin_api import CORE, Api, serve

MANIFEST: Manifest = {"metadata": {"name": "chat-plan-1", "namespace": "team-a"}}
ENDED = {
    "name": "plan",
    "ready": False,
    "state": {"terminated": {"exitCode": 0, "message": json.dumps({"weightsBytes": 7})}},
}
POD = f"{CORE}/pods/chat-plan-1"
DELETE = f"DELETE {POD}"


def pod(phase: str) -> tuple[int, Any]:
    containers = [ENDED] if phase == "Succeeded" else []
    return 200, {"metadata": {"name": "chat-plan-1"}, "status": {"phase": phase, "containerStatuses": containers}}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(plan_pod, "POLL_SECONDS", 0.001)
    async with serve(tmp_path) as scripted:
        scripted.answers[f"POST {CORE}/pods"] = pod("Pending")
        scripted.answers[DELETE] = 200, {"metadata": {}}
        yield scripted


async def plan(api: Api) -> tuple[Needs, list[str]]:
    told: list[str] = []
    async with api.client() as cluster:
        return await run_plan(cluster, MANIFEST, told.append), told


async def test_run_plan_waits_for_the_end_and_deletes_the_pod(api: Api) -> None:
    api.answers[POD] = [pod("Pending"), pod("Running"), pod("Succeeded")]
    needs, told = await plan(api)
    assert needs.weights_bytes == 7
    assert told == ["pod chat-plan-1 waits for a node"]
    assert api.asked[-1] == DELETE


async def test_run_plan_refused_is_told(api: Api) -> None:
    api.answers[f"POST {CORE}/pods"] = 403, {"message": "exceeded quota"}
    api.answers[DELETE] = 404, {"message": "not found"}
    needs, told = await plan(api)
    assert needs.unknown == "the API server refuses the pod that would plan: exceeded quota"
    assert told == []


async def test_run_plan_pod_that_someone_else_deletes_is_told(api: Api) -> None:
    api.answers[POD] = [pod("Pending"), (404, {"message": "not found"})]
    needs, _ = await plan(api)
    assert needs.unknown == "someone deleted the pod chat-plan-1 that planned"


async def test_run_plan_pod_that_does_not_end_is_deleted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_pod, "PLAN_SECONDS", 0.2)
    status, waiting = pod("Pending")
    told = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    waiting["status"]["conditions"] = [told]
    api.answers[POD] = status, waiting
    needs, _ = await plan(api)
    assert "it waits for a node: 0/3 nodes are available; --no-pod leaves it out" in needs.unknown
    assert api.asked[-1] == DELETE


async def test_run_plan_api_server_away_still_tries_to_delete(api: Api) -> None:
    api.answers[POD] = 503, {"message": "away"}
    with pytest.raises(Unavailable):
        await plan(api)
    assert DELETE in api.asked


async def test_run_plan_interrupted_deletes_the_pod(api: Api) -> None:
    api.answers[POD] = pod("Pending")
    looked = asyncio.Event()
    async with api.client() as cluster:
        task = asyncio.create_task(run_plan(cluster, MANIFEST, lambda _: looked.set()))
        await looked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert api.asked[-1] == DELETE


async def test_run_plan_pod_that_may_not_be_deleted_is_told(api: Api) -> None:
    api.answers[POD] = pod("Succeeded")
    api.answers[DELETE] = 403, {"message": "may not delete"}
    needs, told = await plan(api)
    assert needs.weights_bytes == 7
    assert told[-1] == "pod chat-plan-1 is still there: may not delete"
