"""The API server answers late, wrongly, or not at all."""

import asyncio

from octavo_operator.api.names import Key
from octavo_operator.errors import ClusterError, Rejected, Unavailable
from octavo_operator.selftest.promises.model import AT_ONCE, STARTED, Promise
from octavo_operator.selftest.world import World

__all__ = ["PROMISES"]


async def _edits(world: World, keys: list[Key], count: int, *, within: float) -> None:
    """Users edit for some time."""
    for _ in range(count):
        world.edit_somehow(world.random.choice(keys))
        await asyncio.sleep(world.random.uniform(0, 2 * within / count))


async def _conflicts(world: World) -> str:
    world.start_operator()
    keys = world.create_many(10)
    for part in (0.2, 0.5, 0.9):
        world.faults.stale = part
        await _edits(world, keys, 15, within=30)
    world.faults.stale = 0.0
    took = await world.rest(within=STARTED, applied=AT_ONCE)
    return f"10 objects, 45 edits, {world.faults.injected} writes answered 409; at rest {took:.1f} s later"


async def _outage(world: World) -> str:
    world.start_operator()
    keys = world.create_many(10)
    await world.rest(within=STARTED)
    writes = world.judge.writes.total()
    world.faults.down = lambda: Unavailable("connection refused")
    await _edits(world, keys[:8], 12, within=100)
    world.delete(keys[9])
    world.create("new")
    for key in keys[:3]:
        world.vandalise(key)
    await asyncio.sleep(20)
    if world.judge.writes.total() != writes:
        world.judge.fail("something was written while the API server was away")
    world.faults.down = None
    took = await world.rest(within=STARTED, applied=AT_ONCE)
    return f"away for 2 min, {world.faults.injected} requests unanswered, 12 edits; at rest {took:.1f} s later"


async def _errors(world: World) -> str:
    def error() -> ClusterError:
        return world.random.choice(
            [Rejected("forbidden", status=403), Unavailable("500: etcd leader changed"), Unavailable("503")]
        )

    world.start_operator()
    keys = world.create_many(10)
    await world.rest(within=STARTED)
    world.faults.down = error
    await _edits(world, keys, 20, within=100)
    await asyncio.sleep(20)
    world.faults.down = None
    # A refusal backs off, at most for as long as it has lasted, and a quarter of that.
    took = await world.rest(within=160 + STARTED)
    return f"2 min of 403, 500 and 503, {world.faults.injected} of them, 20 edits; at rest {took:.1f} s later"


async def _lost_answers(world: World) -> str:
    world.start_operator()
    keys = world.create_many(10)
    world.faults.lost = 0.4
    await _edits(world, keys, 40, within=60)
    world.faults.lost = 0.0
    took = await world.rest(within=STARTED, applied=AT_ONCE)
    return f"10 objects, 40 edits, {world.faults.injected} writes done and unanswered; at rest {took:.1f} s later"


async def _slow(world: World) -> str:
    world.start_operator()
    keys = world.create_many(8)
    world.faults.latency = (0.5, 4.0)
    await _edits(world, keys, 40, within=240)
    took = await world.rest(within=120)
    return f"8 objects, 40 edits, each request takes 1 to 8 s; at rest {took:.1f} s later"


PROMISES = (
    Promise("conflicts", "Writes that are answered 409 are done again, and nothing else is.", _conflicts),
    Promise("outage", "An API server that was away is followed again at once.", _outage),
    Promise("errors", "Refusals and server errors back off, and heal by themselves.", _errors),
    Promise("lost-answers", "A write whose answer is lost is repeated once, and harms nothing.", _lost_answers),
    Promise("slow-api", "Requests that take seconds lose no edit.", _slow),
)
