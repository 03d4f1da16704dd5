"""The watches lag, repeat themselves, lose their place, or lose what they should tell."""

import asyncio

from octavo_operator.api.names import DEPLOYMENT, INFERENCE_SERVICE, SERVICE
from octavo_operator.selftest.promises.model import AT_ONCE, STARTED, Promise
from octavo_operator.selftest.world import World

__all__ = ["PROMISES"]

RESYNC = 300.0
"""Seconds between two complete lists."""


async def _gap(world: World) -> str:
    operator = world.start_operator()
    keys = world.create_many(12)
    await world.rest(within=STARTED)
    done = dict.fromkeys(("created", "edited", "deleted", "meddled with"), 0)
    for round_ in range(3):
        world.faults.deaf = True
        for number in range(3):
            keys.append(world.create(f"gap-{round_}-{number}"))
            done["created"] += 1
        for key in world.random.sample(keys, 4):
            world.edit_somehow(key)
            done["edited"] += 1
        for key in world.random.sample(keys, 3):
            done["meddled with"] += world.vandalise(key)
        for kind in (DEPLOYMENT, SERVICE):
            key = world.random.choice(keys[:5])
            if world.cluster.peek(kind, key) is not None:
                world.cluster.delete(kind, key)
                done["meddled with"] += 1
        for key in world.random.sample(keys[5:], 3):
            keys.remove(key)
            world.delete(key)
            done["deleted"] += 1
        await asyncio.sleep(world.random.uniform(5, 60))
        world.faults.deaf = False
        operator.watch.relist()
        await world.rest(within=STARTED, applied=AT_ONCE)
    told = ", ".join(f"{count} {what}" for what, count in done.items())
    return f"3 gaps: {told}; {world.faults.injected} events lost"


async def _lost_deletions(world: World) -> str:
    world.start_operator()
    keys = world.create_many(8)
    await world.rest(within=STARTED)
    world.faults.keeps_deletions = True
    for key in keys[:3]:
        world.delete(key)
    for key in keys[3:5]:
        world.cluster.delete(SERVICE, key)
    await asyncio.sleep(5)
    world.faults.keeps_deletions = False
    took = await world.rest(within=RESYNC + STARTED)
    if len(world.cluster.all(SERVICE)) != 5 or len(world.cluster.all(INFERENCE_SERVICE)) != 5:
        world.judge.fail("not every object has its Service again, or one came back from the dead")
    return f"3 objects and 2 Services deleted, {world.faults.injected} events lost; put right {took:.0f} s later"


async def _silent(world: World) -> str:
    operator = world.start_operator()
    keys = world.create_many(6)
    await world.rest(within=STARTED)
    world.faults.deaf = True
    for key in keys:
        world.edit_somehow(key)
    await asyncio.sleep(2 * RESYNC)
    world.judge.check()
    if not operator.controller.silent_watches():
        world.judge.fail("/livez does not tell that the watches are silent")
    world.faults.deaf = False
    operator.watch.relist()
    await world.rest(within=STARTED)
    if operator.controller.silent_watches():
        world.judge.fail("/livez tells of silent watches when none is")
    return f"{world.faults.injected} events lost in ten minutes; complete lists found 6 edits, and /livez told"


async def _lag(world: World) -> str:
    world.start_operator()
    keys = world.create_many(8)
    world.faults.lag = (0.0, 6.0)
    world.faults.disorder = True
    done = 0
    for _ in range(60):
        key = world.random.choice(keys)
        if world.random.random() < 0.15:
            world.delete(key)
            await asyncio.sleep(world.random.uniform(0, 4))
            world.create(key[1])
        else:
            world.edit_somehow(key)
        done += 1
        await asyncio.sleep(world.random.uniform(0, 4))
    took = await world.rest(within=RESYNC + STARTED)
    return f"8 objects, {done} changes, events 0 to 6 s late, in any order, {world.faults.injected} twice; at rest {took:.1f} s later"


async def _edit_in_answer(world: World) -> str:
    world.start_operator()
    keys = world.create_many(10, replicas=0)
    await world.rest()
    world.faults.lag = (0.5, 2.0)
    for number in range(10):
        for key in keys:
            world.edit(key, service={"type": "ClusterIP", "port": 100 + 2 * number})
            await asyncio.sleep(world.random.uniform(0, 1))
            world.edit(key, service={"type": "ClusterIP", "port": 101 + 2 * number})
        await world.rest(applied=AT_ONCE)
    return "100 edits made while the status of the edit before was written, and told by the watch after that"


PROMISES = (
    Promise("watch-gap", "What happens while a watch has lost its place (410) is found when it lists again.", _gap),
    Promise(
        "lost-deletions", "A deletion of which no watch tells is found by the next complete list.", _lost_deletions
    ),
    Promise("silent-watch", "A watch that delivers nothing costs five minutes, and /livez tells.", _silent),
    Promise(
        "edit-in-answer",
        "An edit is followed, whether its event or the answer to a write tells of it first.",
        _edit_in_answer,
    ),
    Promise("lagging-watch", "Events that are late, repeated or out of order undo nothing.", _lag),
)
