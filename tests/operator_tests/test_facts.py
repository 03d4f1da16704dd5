"""What users of such operators have learnt the hard way, as situations with one right answer.

The numbers are those of the list that was collected from their reports; what concerns autoscaling, downloads and the
runtime is not here. Those without a test in this file have one that names the situation:

 11  impossible numbers are refused at admission                 e2e/stories/test_operator_admission.py
 14  the scale's selector matches this object's pods only        here
 15  one GPU, one replica, an edit: no deadlock, and it is told  here; test_rollout_simulation.py
 16  a broken revision does not hold up the one that mends it    here; test_rollout_simulation.py
 18  spelling of quantities, order of keys, defaults: no write   here; test_plan.py
 19  what others add to a child stays                            test_plan.py, selftest `drift`
 20  a Service deleted or edited is put right                    test_reconcile.py, selftest `drift`
 21  old pods that satisfy the count do not make it Ready        here; test_status.py
 22  no ready pod, no Ready                                      here
 23  WaitingForGPU in the scheduler's words, until there is one  here; test_pods.py
 25  what is missing is named, and heals without an edit         here; selftest `missing-claim`
 26  deleted while something is missing: gone                    here
 27  deleted while the operator is down: gone                    here
 28  a namespace that terminates: nothing is created, no errors  test_reconcile.py, selftest `refused`
 30  deleted in a watch gap: no ghost                            test_store.py, selftest `watch-gap`
 31  two operators: one works, the other takes over              test_lead.py, selftest `leader-killed`
 32  an upgrade replaces no pod, and is told as pending          test_reconcile_rollout.py, selftest `upgrade`
 34  extended resources are passed on as they are                test_desired.py; contract_tests/test_crd.py counts them
 35  what pods need reaches the init containers too              test_desired.py
 39  the grace period covers pre-stop and drain                  test_desired.py
 43  APIs that others install are not needed                     the chart asks for them: e2e/stories/test_monitoring_chart.py
 44  300 objects at once all get there                           here
 45  8,000 Secrets of nobody's cost no memory                    make bench-operator, `rss_foreign_objects_delta_mb`
 46  an hour without a change: no write                          selftest `steady-state`
 48  Roles in a namespace are enough there                       e2e/stories/test_operator_faults.py

 50 is about two versions of the API: there is one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import CHILDREN, DEPLOYMENT, INFERENCE_SERVICE, POD, Key, Manifest
from octavo_operator.selftest.program import play
from octavo_operator.selftest.promises.model import Promise
from octavo_operator.selftest.workloads import Fate
from octavo_operator.selftest.world import NAMESPACE, World
from octavo_operator.testing import inference_service
from tests.operator_tests.test_reconcile import KEY
from tests.operator_tests.test_reconcile import World as Looks

GPU = {"limits": {"nvidia.com/gpu": 1}}

Situation = Callable[[World], Awaitable[None]]
SITUATIONS: dict[str, Situation] = {}


def situation(play_it: Situation) -> Situation:
    """Registers a situation; the selftest's judge looks at it too."""
    SITUATIONS[play_it.__name__] = play_it
    return play_it


def condition(world: World, key: Key, kind: ConditionType = ConditionType.READY) -> Manifest:
    service = world.cluster.peek(INFERENCE_SERVICE, key)
    assert service is not None
    return next((one for one in service["status"]["conditions"] if one["type"] == kind), {})


@situation
async def fact_14_selector_matches_the_objects_own_pods(world: World) -> None:
    world.start_operator()
    keys = [world.create(name, replicas=2) for name in ("chat", "chat-2", "cha")]
    await world.rest()
    for key in keys:
        service = world.cluster.peek(INFERENCE_SERVICE, key)
        assert service is not None
        label, _, value = service["status"]["selector"].partition("=")
        chosen = {
            one["metadata"]["name"] for one in world.cluster.all(POD) if one["metadata"]["labels"].get(label) == value
        }
        assert chosen == {pod.key[1] for pod in world.workloads.of(key)}
        assert len(chosen) == 2


@situation
async def fact_15_edit_with_one_gpu_and_one_replica(world: World) -> None:
    world.workloads.gpus = 1
    world.start_operator()
    key = world.create("chat", resources=GPU)
    await world.rest()
    (before,) = world.workloads.of(key)
    world.edit(key, runtime={"image": Fate.WELL_TOO})
    told = set()
    while not before.leaves:
        await asyncio.sleep(1)
        told.add(condition(world, key, ConditionType.PROGRESSING)["reason"])
    assert Reason.ROLLING_OUT in told
    assert Reason.SCALING_DOWN not in told
    assert world.workloads.ready(key) == 0, "the old pod goes first"
    await world.rest(within=60)
    world.expect_ready(key, Reason.SERVING)


@situation
async def fact_16_a_broken_revision_is_in_nobodys_way(world: World) -> None:
    world.workloads.gpus = 2
    world.start_operator()
    key = world.create("chat", replicas=2, runtime={"image": Fate.CRASHES}, resources=GPU)
    await world.rest()
    world.expect_ready(key, Reason.BAD_WEIGHTS)
    world.edit(key, runtime={"image": Fate.WELL})
    await world.until(lambda: world.workloads.ready(key) == 2, within=30)
    assert world.workloads.ready(key) == 2
    await world.rest()


@situation
async def fact_21_old_pods_do_not_make_a_new_generation_ready(world: World) -> None:
    world.start_operator()
    key = world.create("chat", replicas=2)
    await world.rest()
    world.workloads.start_seconds = (30.0, 30.0)
    world.edit(key, runtime={"image": Fate.WELL_TOO})
    await asyncio.sleep(10)
    service = world.cluster.peek(INFERENCE_SERVICE, key)
    assert service is not None
    assert world.workloads.ready(key) == 2
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"] == 2
    assert (condition(world, key)["status"], condition(world, key)["reason"]) == ("False", Reason.ROLLING_OUT)
    await world.rest()
    assert condition(world, key)["status"] == "True"


@situation
async def fact_22_no_ready_pod_is_told_within_a_second(world: World) -> None:
    world.start_operator()
    key = world.create("chat")
    await world.rest()
    (pod,) = world.workloads.of(key)
    world.workloads.start_seconds = (30.0, 30.0)
    world.workloads.crash(pod)
    await asyncio.sleep(1)
    assert condition(world, key)["status"] == "False"
    await world.rest()
    assert condition(world, key)["status"] == "True"


@situation
async def fact_23_waiting_for_a_gpu_in_the_schedulers_words(world: World) -> None:
    world.workloads.gpus = 0
    world.start_operator()
    key = world.create("chat", resources=GPU)
    await world.rest()
    for kind in (ConditionType.READY, ConditionType.SCHEDULED):
        assert condition(world, key, kind)["reason"] == Reason.WAITING_FOR_GPU
        assert "Insufficient nvidia.com/gpu" in condition(world, key, kind)["message"]
    world.workloads.gpus = 1
    world.workloads.start_seconds = (30.0, 30.0)
    world.workloads.schedule()
    await asyncio.sleep(5)
    assert condition(world, key, ConditionType.SCHEDULED)["status"] == "True"
    world.expect_ready(key, Reason.STARTING)
    await world.rest()
    world.expect_ready(key, Reason.SERVING)


@situation
async def fact_25_what_is_missing_is_named_and_heals_without_an_edit(world: World) -> None:
    world.start_operator()
    key = world.create("chat", runtime={"image": Fate.NO_SECRET})
    await world.rest()
    world.expect_ready(key, Reason.SECRET_NOT_FOUND)
    assert '"token"' in condition(world, key)["message"]
    (pod,) = world.workloads.of(key)
    world.workloads.mend(pod)
    await world.rest(within=10)
    world.expect_ready(key, Reason.SERVING)


@situation
async def fact_26_deleted_while_its_claim_is_missing(world: World) -> None:
    world.start_operator()
    key = world.create("chat", model={"uri": "pvc://models/one"})
    await world.rest()
    world.expect_ready(key, Reason.CLAIM_NOT_FOUND)
    writes = world.judge.writes.total()
    world.delete(key)
    await world.rest(within=5)
    assert [world.cluster.all(kind) for kind in (*CHILDREN, POD)] == [[]] * (len(CHILDREN) + 1)
    assert world.judge.writes.total() == writes


@situation
async def fact_27_deleted_while_the_operator_is_down(world: World) -> None:
    operator = world.start_operator()
    keys = world.create_many(3)
    await world.rest()
    await operator.kill()
    world.delete(keys[0])
    await asyncio.sleep(60)
    assert world.cluster.peek(DEPLOYMENT, keys[0]) is None, "owner references need no operator"
    world.start_operator()
    await world.rest()
    assert len(world.cluster.all(DEPLOYMENT)) == 2


@situation
async def fact_44_three_hundred_objects_at_once(world: World) -> None:
    world.start_operator()
    for number in range(300):
        world.create(f"model-{number}")
    await world.rest(within=60)
    for number in range(300):
        world.expect_ready((NAMESPACE, f"model-{number}"), Reason.SERVING)


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation(name: str) -> None:
    async def played(world: World) -> str:
        await SITUATIONS[name](world)
        return ""

    assert play(Promise(name, "", played), 1).broken == ()


async def test_fact_18_spelling_and_order_write_nothing() -> None:
    looks = Looks()
    looks.claim("Bound")
    amounts = {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}
    looks.cluster.put(inference_service(resources={"limits": amounts, "requests": {"cpu": "250m"}}))
    await looks.look()
    await looks.look()
    (service,) = looks.cluster.all(INFERENCE_SERVICE)
    writes = looks.cluster.writes
    for number in range(10):
        service = _reversed(service)
        service["metadata"]["resourceVersion"] = str(1000 + number)
        assert looks.store.upsert(INFERENCE_SERVICE, service) == {KEY}
        await looks.look()
    assert looks.cluster.writes == writes


def _reversed(value: Any) -> Any:
    """The same with every object's keys in the other order."""
    if isinstance(value, dict):
        return {name: _reversed(one) for name, one in reversed(value.items())}
    return [_reversed(one) for one in value] if isinstance(value, list) else value
