"""Users, and others who write to the same objects."""

import asyncio
from functools import partial

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import (
    CLAIM,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    INFERENCE_SERVICE,
    MANAGED_BY,
    NETWORK_POLICY,
    OPERATOR,
    OWNER_LABEL,
    SERVICE,
    Manifest,
    key_of,
)
from octavo_operator.errors import Gone, Rejected
from octavo_operator.selftest.promises.model import AT_ONCE, STARTED, Promise
from octavo_operator.selftest.world import NAMESPACE, World

__all__ = ["PROMISES"]

HOUR = 3600.0


async def _steady(world: World) -> str:
    world.start_operator()
    world.create_many(20)
    await world.rest(within=STARTED)
    writes = world.judge.writes.total()
    await asyncio.sleep(HOUR)
    more = world.judge.writes.total() - writes
    if more:
        world.judge.fail(f"{more} writes in an hour in which nothing happened")
    return f"20 objects brought up by {writes} writes, then an hour with 12 complete lists: {more} writes"


async def _drift(world: World) -> str:
    world.start_operator()
    keys = world.create_many(6)
    await world.rest(within=STARTED)
    meddled = 0
    for _ in range(5):
        for key in keys:
            meddled += world.vandalise(key)
        await world.rest(within=STARTED, applied=AT_ONCE)
    world.judge.shared.update(keys)
    for key in keys:
        world.judge.allowed[key] += 1  # a list that has grown is sent once more
        world.cluster.edit(DEPLOYMENT, key, _add_sidecar)
        world.cluster.edit(SERVICE, key, lambda live: live["metadata"].update(annotations={"theirs": "x"}))
    await world.rest(within=STARTED)
    for key in keys:
        deployment = world.cluster.peek(DEPLOYMENT, key)
        if deployment is None or len(deployment["spec"]["template"]["spec"]["containers"]) != 2:
            world.judge.fail(f"{key[1]}: the sidecar that someone added is gone")
    return f"{meddled} children edited or deleted by hand and put right, 6 sidecars and 6 annotations left alone"


def _add_sidecar(live: Manifest) -> None:
    live["spec"]["template"]["spec"]["containers"].append({"name": "proxy", "image": "proxy"})


async def _foreign_object(world: World) -> str:
    world.start_operator()
    theirs = [
        (SERVICE, world.take_name(SERVICE, "model-0")),
        (DEPLOYMENT, world.take_name(DEPLOYMENT, "model-1")),
        (SERVICE, world.take_name(SERVICE, "model-2", **{MANAGED_BY: OPERATOR})),
        (DEPLOYMENT, world.take_name(DEPLOYMENT, "model-3", **{MANAGED_BY: OPERATOR, OWNER_LABEL: "another"})),
        (NETWORK_POLICY, world.take_name(NETWORK_POLICY, "model-4")),
        (DISRUPTION_BUDGET, world.take_name(DISRUPTION_BUDGET, "model-5")),
    ]
    keys = world.create_many(8)
    await world.rest(within=STARTED)
    for kind, manifest in theirs:
        key = key_of(manifest)
        found = world.cluster.peek(kind, key)
        if found is None or any(found[part] != manifest[part] for part in ("metadata", "spec")):
            world.judge.fail(f"{kind.kind} {key[1]}, which belongs to someone else, was changed")
        world.cluster.delete(kind, key)
    took = await world.rest(within=40 + STARTED)
    for key in keys:
        world.expect_ready(key, Reason.SERVING)
    return f"{len(theirs)} of {len(keys)} objects found a name taken, and left it alone; freed, they were used within {took:.1f} s"


async def _foreign_writer(world: World) -> str:
    world.start_operator()
    key = world.create("fought-over", replicas=1)
    other = world.create("other", replicas=1)
    await world.rest(within=STARTED)
    before = world.judge.writes_by_kind[DEPLOYMENT]
    told = set()
    for number in range(150):
        world.cluster.edit(DEPLOYMENT, key, partial(_scale, count=2 + number % 2))
        await asyncio.sleep(2)
        told.add(world.ready_reason(key))
    if Reason.CONTESTED not in told:
        world.judge.fail(f"Ready never told that the Deployment is contested, only {sorted(told)}")
    writes = world.judge.writes_by_kind[DEPLOYMENT] - before
    if writes > 5 * 10 + 10:
        world.judge.fail(f"{writes} repairs in five minutes against somebody who writes every two seconds")
    world.edit(other, replicas=2)
    await world.rest(within=60 + STARTED)
    before = world.judge.writes_by_kind[INFERENCE_SERVICE]
    for number in range(150):
        world.cluster.edit(INFERENCE_SERVICE, key, partial(_misreport, count=7 + number % 2))
        await asyncio.sleep(2)
    statuses = world.judge.writes_by_kind[INFERENCE_SERVICE] - before
    if statuses > 5 * 10 + 10:
        world.judge.fail(f"{statuses} statuses in five minutes against somebody who writes every two seconds")
    if not any(
        one["reason"] == Reason.CONTESTED and "the status" in one["message"] for one in world.cluster.all(EVENT)
    ):
        world.judge.fail("no Event told that the status is contested")
    await world.rest(within=75)
    return (
        f"somebody wrote 300 times in ten minutes, the operator {writes} Deployments and {statuses} statuses; then there "
        "was peace"
    )


def _misreport(live: Manifest, *, count: int) -> None:
    live["status"]["readyReplicas"] = count


def _scale(live: Manifest, *, count: int) -> None:
    live["spec"]["replicas"] = count


async def _recreated(world: World) -> str:
    world.start_operator()
    keys = world.create_many(4)
    for number in range(25):
        key = world.random.choice(keys)
        world.delete(key)
        await asyncio.sleep(world.random.choice([0.0, 0.0, 0.05, 0.5, 5.0]))
        world.create(key[1], replicas=number % 3, runtime={"maxNumSeqs": number + 1})
        await asyncio.sleep(world.random.choice([0.0, 0.02, 0.1, 1.0, 10.0]))
        if world.random.random() < 0.5:
            world.edit_somehow(key)
    took = await world.rest(within=40 + STARTED)
    return f"25 objects deleted and created anew under their names, in the middle of looks; at rest {took:.1f} s later"


async def _burst(world: World) -> str:
    world.start_operator()
    edited = world.create("edited")
    await world.rest(within=STARTED)
    world.faults.latency = (0.02, 0.1)
    count = 120
    for number in range(count):
        world.create(f"burst-{number}", replicas=1)
    await asyncio.sleep(1)
    before = len(world.cluster.all(DEPLOYMENT))
    world.edit(edited, replicas=3)
    await world.until(lambda: world.applied_replicas(edited) == 3)
    overtaken = count + 1 - len(world.cluster.all(DEPLOYMENT))
    if overtaken < count / 2:
        world.judge.fail(f"an edit waited until only {overtaken} of {count} new objects were left")
    took = await world.rest(within=120)
    return f"{count} objects at once, {before} served when one was edited, {overtaken} overtaken; at rest {took:.1f} s later"


async def _refused(world: World) -> str:
    """One object is refused for ever, one is from a newer CRD, one lies in a namespace that goes: others go on."""
    world.start_operator()
    world.create("newer", turbo=True)
    world.cluster.refuse(DEPLOYMENT, (NAMESPACE, "refused"), Rejected("denied by a policy", status=403))
    world.cluster.refuse(SERVICE, (NAMESPACE, "goes"), Gone("namespace is being terminated"))
    refused, goes = world.create("refused"), world.create("goes")
    keys = world.create_many(5)
    await asyncio.sleep(HOUR)
    world.expect_ready((NAMESPACE, "newer"), Reason.SPEC_INVALID)
    world.expect_ready(refused, Reason.APPLY_REJECTED)
    for key in keys:
        world.expect_ready(key, Reason.SERVING)
    tries = world.cluster.refusals
    # 1 + 2 + 4 … up to 300 s apart; an object in a namespace that goes is looked at by complete lists alone.
    if tries > 50:
        world.judge.fail(f"{tries} requests in an hour that were refused each time")
    world.cluster.refuse_nothing()
    world.delete(goes)
    await world.rest(within=375 + STARTED)
    world.expect_ready(refused, Reason.SERVING)
    return f"2 objects refused for an hour by {tries} answers, one with an unknown field; 5 beside them were served"


async def _claim(world: World) -> str:
    world.start_operator()
    model = {"uri": "pvc://models/one"}
    keys = [world.create(f"model-{number}", model=model) for number in range(4)]
    world.create("stopped", model=model, replicas=0)  # no pod of it tells when the claim is there
    await asyncio.sleep(200)
    for key in keys:
        world.expect_ready(key, Reason.CLAIM_NOT_FOUND)
    metadata = {"name": "models", "namespace": NAMESPACE}
    world.cluster.put(
        {"apiVersion": CLAIM.api_version, "kind": CLAIM.kind, "metadata": metadata, "status": {"phase": "Bound"}}
    )
    world.workloads.schedule()
    took = await world.rest(within=40)
    for key in keys:
        world.expect_ready(key, Reason.SERVING)
    return f"5 objects waited 200 s for a claim and were told of it within {took:.1f} s"


PROMISES = (
    Promise("steady-state", "Where nothing happens nothing is written.", _steady),
    Promise("drift", "What others change of our fields is put right; what they add stays.", _drift),
    Promise(
        "foreign-object",
        "An object of someone else is never written, and its name is used when it is free.",
        _foreign_object,
    ),
    Promise(
        "foreign-writer",
        "Whoever writes against the operator is answered ten times a minute, no more.",
        _foreign_writer,
    ),
    Promise("recreated", "An object that takes the place of another one inherits nothing from it.", _recreated),
    Promise("burst", "An edit overtakes a burst of new objects.", _burst),
    Promise("refused", "What cannot be done for one object holds up no other, and is tried ever less often.", _refused),
    Promise("missing-claim", "A claim that comes late is found without an edit.", _claim),
)
