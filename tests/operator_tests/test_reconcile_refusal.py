"""Objects that ask for more than they may have: nothing of them is applied, and what runs goes on."""

from typing import Any

import pytest

from octavo_operator.api.names import CHILDREN, DEPLOYMENT, INFERENCE_SERVICE, REVISION, SERVICE_ACCOUNT, Manifest
from octavo_operator.api.privileges import Privilege
from octavo_operator.errors import Unavailable
from octavo_operator.reconcile import Outcome
from octavo_operator.testing import inference_service
from tests.operator_tests.test_reconcile import KEY, World

ACCOUNT = ("default", "reader")


@pytest.fixture
def world() -> World:
    world = World()
    world.claim("Bound")
    world.cluster.put(inference_service())
    return world


def ask(world: World, **pod: Any) -> None:
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(podTemplate={"spec": pod}))


def account(**labels: str) -> Manifest:
    metadata = {"namespace": ACCOUNT[0], "name": ACCOUNT[1], "labels": labels}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def label(world: World, value: str) -> None:
    world.cluster.edit(
        SERVICE_ACCOUNT, ACCOUNT, lambda one: one["metadata"].update(labels={"octavo.dev/allowed": value})
    )


async def test_reconcile_privilege_is_refused_and_nothing_is_made(world: World) -> None:
    ask(world, hostNetwork=True)
    assert await world.look() == Outcome()
    assert world.ready() == ("False", "NotAllowed")
    assert [world.cluster.all(kind) for kind in (*CHILDREN, REVISION)] == [[]] * (len(CHILDREN) + 1)


async def test_reconcile_privilege_that_comes_later_leaves_what_runs(world: World) -> None:
    await world.look()
    before = [world.cluster.all(kind) for kind in (*CHILDREN, REVISION)]
    ask(world, hostPID=True)
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(replicas=5))
    await world.look()
    assert world.ready() == ("False", "NotAllowed")
    assert [world.cluster.all(kind) for kind in (*CHILDREN, REVISION)] == before
    ask(world)
    await world.look()
    assert world.ready() == ("False", "Starting")
    assert world.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 5


async def test_reconcile_privilege_that_is_allowed_reaches_the_pod(world: World) -> None:
    world.reconciler = world.start(allowed=[Privilege.HOST_NAMESPACES])
    ask(world, hostNetwork=True)
    await world.look()
    assert world.cluster.all(DEPLOYMENT)[0]["spec"]["template"]["spec"]["hostNetwork"] is True


async def test_reconcile_service_account_heals_by_itself(world: World) -> None:
    ask(world, serviceAccountName="reader")
    outcome = await world.look()
    assert 0 < (outcome.look_again_after or 0) <= 30
    assert world.ready() == ("False", "ServiceAccountNotFound")
    world.cluster.put(account())
    world.seconds += 5
    assert (await world.look()).look_again_after
    assert world.ready() == ("False", "NotAllowed")
    assert world.cluster.all(DEPLOYMENT) == []
    label(world, "true")
    world.seconds += 5
    await world.look()
    assert world.ready() == ("False", "Starting")
    (deployment,) = world.cluster.all(DEPLOYMENT)
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "reader"
    assert (await world.look()).look_again_after is None


async def test_reconcile_service_account_taken_away_is_told_by_a_look_a_minute_later(world: World) -> None:
    world.cluster.put(account(**{"octavo.dev/allowed": "true"}))
    ask(world, serviceAccountName="reader")
    await world.look()
    label(world, "false")
    await world.look()
    assert world.ready() == ("False", "Starting"), "it is not read at each look"
    world.seconds += 61
    await world.look()
    assert world.ready() == ("False", "NotAllowed")
    assert len(world.cluster.all(DEPLOYMENT)) == 1


async def test_reconcile_service_account_is_read_anew_when_another_is_named(world: World) -> None:
    world.cluster.put(account(**{"octavo.dev/allowed": "true"}))
    ask(world, serviceAccountName="reader")
    await world.look()
    ask(world, serviceAccountName="other")
    await world.look()
    assert world.ready() == ("False", "ServiceAccountNotFound")


async def test_reconcile_no_service_account_named_none_is_read(world: World) -> None:
    world.cluster.fail_on("get", SERVICE_ACCOUNT, Unavailable("must not be read"))
    await world.look()
    assert world.ready() == ("False", "Starting")
