"""Operators die, are cut off, and stand by for each other."""

import asyncio

from octavo_operator.errors import NotLeading, Unavailable
from octavo_operator.selftest.clock import seconds
from octavo_operator.selftest.connection import Faults
from octavo_operator.selftest.promises.model import AT_ONCE, STARTED, Promise
from octavo_operator.selftest.world import Operator, World

__all__ = ["PROMISES"]

FAILOVER = 19.0
"""Seconds until another one leads: the Lease lasts 15 s, and is looked at every 2 s; requests take a while."""


async def _restarts(world: World) -> str:
    operator = world.start_operator()
    keys = world.create_many(6)
    for _ in range(15):
        operator.connection.writes_left = world.random.randint(1, 12)
        while not operator.connection.died.is_set():
            world.edit_somehow(world.random.choice(keys))
            await asyncio.sleep(world.random.uniform(0, 2))
        await operator.kill()
        operator = world.start_operator()
    took = await world.rest(within=STARTED, applied=AT_ONCE)
    return f"the operator died 15 times after a write, before it read the answer; at rest {took:.1f} s after the last"


async def _takes_over(world: World) -> str:
    leader = world.start_operator(alone=False)
    keys = world.create_many(6)
    await world.rest(within=STARTED)
    for _ in range(3):
        written = world.judge.writes.total()
        following = world.start_operator(alone=False)
        await leader.kill()
        leader = following
        await world.rest()
        if world.judge.writes.total() != written:
            world.judge.fail(
                f"a takeover wrote {world.judge.writes.total() - written} objects, though nothing had changed"
            )
    await leader.kill()
    damaged = sum(world.vandalise(key) for key in keys)
    world.start_operator(alone=False)
    await world.rest(within=STARTED + FAILOVER)
    return f"3 takeovers of a cluster at rest wrote nothing; {damaged} children damaged while no operator ran were put right"


async def _killed(world: World) -> str:
    candidates = [world.start_operator(alone=False) for _ in range(2)]
    keys = world.create_many(5)
    longest = 0.0
    for _ in range(6):
        leader = await _leader(world, candidates)
        leader.connection.writes_left = world.random.randint(1, 8)
        while not leader.connection.died.is_set():
            world.edit_somehow(world.random.choice(keys))
            await asyncio.sleep(world.random.uniform(0, 2))
        longest = max(longest, await _fails_over(world, leader, candidates, keys))
    await world.rest(within=STARTED)
    return f"the leader was killed 6 times in the middle of a look; the other one wrote within {longest:.1f} s"


async def _cut_off(world: World) -> str:
    lines = [Faults(world.random) for _ in range(2)]
    candidates = [world.start_operator(alone=False, faults=line) for line in lines]
    keys = world.create_many(5)
    longest = 0.0
    for _ in range(4):
        leader = await _leader(world, candidates)
        line = leader.connection.faults
        line.down = lambda: Unavailable("no route to host")
        began = seconds()
        world.edit_somehow(world.random.choice(keys))
        await asyncio.wait([leader.task], timeout=FAILOVER)
        if not leader.task.done() or not _is_deposed(leader):
            world.judge.fail("a leader that is cut off from the API server goes on")
        longest = max(longest, await _fails_over(world, leader, candidates, keys, since=began))
        line.down = None
    await world.rest(within=STARTED)
    return f"the leader was cut off 4 times, and ended; the other one wrote within {longest:.1f} s"


async def _leader(world: World, candidates: list[Operator]) -> Operator:
    """Waits until one leads."""
    async with asyncio.timeout(60):
        while True:
            leaders = [one for one in candidates if one.elector is not None and one.elector.leads]
            if len(leaders) > 1:
                world.judge.fail("two lead at once")
            if leaders:
                return leaders[0]
            await asyncio.sleep(0.5)


async def _fails_over(
    world: World,
    leader: Operator,
    candidates: list[Operator],
    keys: list[tuple[str, str]],
    *,
    since: float | None = None,
) -> float:
    """Ends the leader, lets users edit until another one has written, and starts a third one to stand by."""
    began = seconds() if since is None else since
    gone = leader.connection.name
    await leader.kill()
    candidates.remove(leader)
    while world.judge.writer == gone and seconds() - began < 60:
        world.edit_somehow(world.random.choice(keys))
        await asyncio.sleep(0.5)
    took = world.judge.writer_since - began if world.judge.writer != gone else 60.0
    if took > FAILOVER:
        world.judge.fail(f"{took:.1f} s until another one wrote, {FAILOVER:.0f} s are promised")
    candidates.append(world.start_operator(alone=False, faults=leader.connection.faults))
    return took


def _is_deposed(operator: Operator) -> bool:
    error = operator.task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return isinstance(error, NotLeading)


PROMISES = (
    Promise("restarts", "An operator that dies in the middle of a look leaves nothing half done.", _restarts),
    Promise("takeover", "An operator that takes over writes nothing, but for what has changed.", _takes_over),
    Promise("leader-killed", "When the leader dies another one goes on, and never two at once.", _killed),
    Promise("leader-cut-off", "A leader that cannot renew its Lease ends before another one begins.", _cut_off),
)
