"""Pods are slow, crash, find no room, or are driven out."""

import asyncio

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import DEPLOYMENT, POD
from octavo_operator.selftest.promises.model import STARTED, Promise
from octavo_operator.selftest.workloads import Fate
from octavo_operator.selftest.world import World

__all__ = ["PROMISES"]

REASONS = {
    Fate.CRASHES: Reason.BAD_WEIGHTS,
    Fate.KILLED: Reason.OOM_KILLED,
    Fate.IMAGE_MISSING: Reason.IMAGE_PULL_BACK_OFF,
    Fate.NO_SECRET: Reason.SECRET_NOT_FOUND,
    Fate.NO_VOLUME: Reason.VOLUMES_OR_NETWORK_NOT_READY,
    Fate.NO_ROOM: Reason.WAITING_FOR_GPU,
}
GPU = {"limits": {"nvidia.com/gpu": 1}}


async def _failing(world: World) -> str:
    world.start_operator()
    keys = {fate: world.create(str(fate), replicas=2, runtime={"image": fate}, resources=GPU) for fate in REASONS}
    await world.rest()
    for fate, key in keys.items():
        world.expect_ready(key, REASONS[fate])
        world.edit(key, runtime={"image": Fate.WELL})
    # Pods that never served are in nobody's way.
    took = await world.rest(within=20 + 2 * STARTED)
    for key in keys.values():
        world.expect_ready(key, Reason.SERVING)
    return f"{len(keys)} kinds of failing pods told by their reasons; mended by an edit within {took:.1f} s"


async def _chaos(world: World) -> str:
    world.start_operator()
    keys = world.create_many(8)
    crashes = evictions = 0
    for _ in range(60):
        pods = [pod for pod in world.workloads.pods.values() if pod.ready]
        if pods and world.random.random() < 0.5:
            world.workloads.crash(world.random.choice(pods))
            crashes += 1
        elif pods:
            world.workloads.evict(world.random.choice(pods))
            evictions += 1
        if world.random.random() < 0.3:
            world.edit_somehow(world.random.choice(keys))
        await asyncio.sleep(world.random.uniform(0, 3))
    took = await world.rest(within=20 + 2 * STARTED)
    return f"{crashes} crashes and {evictions} evictions in 8 objects under edits; at rest {took:.1f} s later"


async def _last_gpu(world: World) -> str:
    world.workloads.gpus = 4
    world.start_operator()
    keys = [world.create("one", replicas=1, resources=GPU), world.create("three", replicas=3, resources=GPU)]
    await world.rest(within=STARTED)
    world.judge.floors.update({keys[0]: 0, keys[1]: 2})
    longest = 0.0
    for image in (Fate.WELL_TOO, Fate.WELL, Fate.WELL_TOO):
        for key in keys:
            world.edit(key, runtime={"image": image})
            longest = max(longest, await world.rest(within=3 * 40 + STARTED))
            world.expect_ready(key, Reason.SERVING)
    world.edit(keys[1], runtime={"image": Fate.CRASHES})
    await world.rest()
    if world.workloads.ready(keys[1]) != 2:
        world.judge.fail("a broken revision has cost more than one pod")
    world.edit(keys[1], runtime={"image": Fate.WELL})
    await world.rest(within=3 * 40 + STARTED)
    return f"8 rollouts of 1 and 3 replicas without a free GPU, one of them broken; the longest took {longest:.1f} s"


async def _room(world: World) -> str:
    operator = world.start_operator()
    keys = [world.create(f"model-{replicas}", replicas=replicas) for replicas in (1, 2, 4)]
    await world.rest(within=STARTED)
    world.judge.floors.update({key: int(key[1][-1]) for key in keys})
    for number in range(6):
        for key in keys:
            world.edit(key, runtime={"maxNumSeqs": number + 1})
        await asyncio.sleep(world.random.uniform(0, 6))
        await operator.kill()
        operator = world.start_operator()
        if number % 2:
            await world.rest(within=60)
    await world.rest(within=60)
    return "18 rollouts with room for a pod more, the operator killed in each: no ready pod was ever missing"


async def _upgrade(world: World) -> str:
    first = world.start_operator()
    keys = world.create_many(6)
    await world.rest(within=STARTED)
    pods = world.uids(POD)
    await first.kill()
    second = world.start_operator(Fate.WELL_TOO)
    await world.rest(within=STARTED)
    for key in keys:
        world.cluster.delete(DEPLOYMENT, key) if key == keys[5] else world.vandalise(key)
    await world.rest(within=STARTED)
    for key in keys[:2]:
        world.ask_for_update(key, "now")
    await world.rest(within=60)
    updated = {pod.owner for pod in world.workloads.pods.values() if pod.fate == Fate.WELL_TOO}
    if updated != set(keys[:2]):
        world.judge.fail(f"asked for an update were 2 objects, and it came to {sorted(name for _, name in updated)}")
    await second.kill()
    return f"6 objects, {len(pods)} pods: another image for new pods replaced none until 2 users asked"


PROMISES = (
    Promise("failing-pods", "Each kind of failure is told by its reason, and an edit mends it.", _failing),
    Promise("crashes", "The status follows pods that crash and are evicted in the middle of rollouts.", _chaos),
    Promise("last-gpu", "A rollout without a free GPU ends, and misses one pod at most.", _last_gpu),
    Promise("room-to-surge", "A rollout with room for one pod more misses none, whoever is killed meanwhile.", _room),
    Promise("upgrade", "A newer operator replaces no pod until it is asked to.", _upgrade),
)
