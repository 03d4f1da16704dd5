"""Others act between two requests of a look, and requests fail."""

from contextlib import suppress
from typing import Any

import pytest

from octavo_operator.api.names import CLAIM, DEPLOYMENT, INFERENCE_SERVICE, REVISION, SERVICE, Manifest
from octavo_operator.core.contest import REPAIRS_PER_MINUTE
from octavo_operator.errors import ClusterError, Rejected, Stale, Unavailable
from octavo_operator.reconcile import Outcome
from octavo_operator.testing import inference_service
from tests.operator_tests.test_reconcile import KEY, World, scale


@pytest.fixture
def world() -> World:
    world = World()
    world.claim("Bound")
    world.cluster.put(inference_service())
    return world


async def test_reconcile_object_replaced_under_a_look_gets_no_status_of_its_predecessor(world: World) -> None:
    def replace(kind: Any, event_type: str, _: Manifest) -> None:
        if kind is DEPLOYMENT and event_type == "ADDED" and not replaced:
            replaced.append(True)
            world.cluster.delete(INFERENCE_SERVICE, KEY)
            world.cluster.put(inference_service(replicas=4))

    replaced: list[bool] = []
    world.cluster.subscribe(replace)
    await world.look()
    (successor,) = world.cluster.all(INFERENCE_SERVICE)
    assert successor["spec"]["replicas"] == 4
    assert "status" not in successor


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["spec"].update(replicas=4),
        lambda one: one["metadata"].update(annotations={"octavo.dev/update": "now"}),
        lambda one: one["spec"].update(turbo=2),
    ],
    ids=["spec", "annotation", "field of a newer CRD"],
)
@pytest.mark.parametrize("before", [{}, {"turbo": 1}], ids=["valid", "invalid"])
async def test_reconcile_edit_that_the_answer_brings_before_its_event(
    world: World, change: Any, before: dict[str, Any]
) -> None:
    """The status is written onto an edited object. What the watch tells of the edit then is older than the answer."""
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(before))
    world.cluster.unsubscribe()
    edited = world.cluster.edit(INFERENCE_SERVICE, KEY, change)
    outcome = await world.look()
    assert world.store.upsert(INFERENCE_SERVICE, edited) == set()
    assert outcome.edited
    assert not (await world.look()).edited
    (service,) = world.cluster.all(INFERENCE_SERVICE)
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"]


async def test_reconcile_takes_over_nothing_that_replaced_its_child(world: World) -> None:
    await world.look()
    stale = world.store.get(SERVICE, KEY)
    assert stale is not None
    world.cluster.delete(SERVICE, KEY)
    foreign = world.cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {"ports": []},
        }
    )
    # The operator has not heard of it: it still sees its own child, and wants to write it.
    world.store.upsert(SERVICE, stale | {"metadata": stale["metadata"] | {"resourceVersion": "999", "labels": {}}})
    with pytest.raises(Stale):
        await world.look()
    assert world.cluster.all(SERVICE) == [foreign]


@pytest.mark.parametrize("error", [Unavailable("down"), Stale("changed")], ids=["outage", "conflict"])
async def test_reconcile_outage_at_any_request_heals(world: World, error: Exception) -> None:
    requests: list[tuple[str, Any]] = [
        ("apply", REVISION), ("apply", SERVICE), ("apply", DEPLOYMENT), ("get", CLAIM),
        ("apply_status", INFERENCE_SERVICE),
    ]  # fmt: skip
    for method, kind in requests:
        world.cluster.fail_on(method, kind, error)  # type: ignore[arg-type] # both are ClusterErrors
        with pytest.raises(type(error)):
            await world.look()
    assert await world.look() == Outcome()
    assert world.ready() == ("False", "Starting")


async def test_reconcile_outage_while_it_looks_whose_child_is_there_heals(world: World) -> None:
    world.cluster.fail_on("apply", SERVICE, Stale("exists"))
    world.cluster.fail_on("get", SERVICE, Unavailable("down"))
    with pytest.raises(Unavailable):
        await world.look()
    assert await world.look() == Outcome()
    assert world.ready() == ("False", "Starting")


@pytest.mark.parametrize("error", [Unavailable("down"), Stale("changed"), Rejected("forbidden", status=403)])
async def test_reconcile_repair_that_was_not_done_is_no_contest(world: World, error: ClusterError) -> None:
    """However often it was tried in vain, an edited child is put right as soon as the API server lets it."""
    await world.look()
    world.cluster.edit(DEPLOYMENT, KEY, scale)
    world.cluster.fail_on("apply", DEPLOYMENT, *[error] * 20)
    for _ in range(20):
        with suppress(type(error)):
            await world.look()
    assert await world.look() == Outcome()
    assert world.cluster.all(DEPLOYMENT)[0]["spec"]["replicas"] == 1
    assert world.ready() == ("False", "Starting")


async def test_reconcile_second_operator_is_told_and_not_written_against_without_end(world: World) -> None:
    """Two that both lead over the same object, with other settings, make two statuses of it."""
    one, other = world.reconciler, world.start("another-image")

    async def looks(rounds: int) -> None:
        for _ in range(rounds):
            world.seconds += 0.1
            await one.reconcile(KEY)
            await other.reconcile(KEY)

    await looks(5)
    writes = world.cluster.writes
    await looks(100)
    assert world.cluster.writes - writes <= 2 * REPAIRS_PER_MINUTE + 2, "ten seconds"
    assert world.events() == [("Warning", "Contested", 1)]
    writes = world.cluster.writes
    await looks(6000)
    assert world.cluster.writes - writes <= 10 * 2 * REPAIRS_PER_MINUTE + 4, "ten minutes"
    assert world.events() == [("Warning", "Contested", 2)]
    # The other one ends: the status is written when its time has come, without news.
    outcome = await one.reconcile(KEY)
    world.seconds += outcome.look_again_after or 0
    assert await one.reconcile(KEY) == Outcome()
    assert world.condition("UpdatePending") == ("False", "UpToDate")


async def test_reconcile_status_edited_by_hand_is_put_right_at_once(world: World) -> None:
    await world.look()
    for _ in range(REPAIRS_PER_MINUTE):
        world.seconds += 6.5
        world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["status"].update(readyReplicas=7))
        assert await world.look() == Outcome()
        assert world.cluster.all(INFERENCE_SERVICE)[0]["status"]["readyReplicas"] == 0
    assert world.events() == []


async def test_reconcile_contested_status_of_a_refused_object_waits_too(world: World) -> None:
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(turbo=1))
    await world.look()
    for _ in range(REPAIRS_PER_MINUTE + 1):
        world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["status"].update(observedGeneration=0))
        outcome = await world.look()
    assert outcome == Outcome(look_again_after=60.0)
    world.seconds += 60
    assert await world.look() == Outcome()
    assert world.ready() == ("False", "SpecInvalid")
