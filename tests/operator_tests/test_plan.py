import copy
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.api.names import (
    CHILDREN,
    DEPLOYMENT,
    MANAGED_BY,
    OPERATOR,
    OWNER_LABEL,
    SERVICE,
    Kind,
    Manifest,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import desired_children, pod_template
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import Applied, Plan, is_ours, kind_of, plan, recall, record_of, remember
from octavo_operator.core.rollout import Step
from octavo_operator.testing import FakeCluster, inference_service

RESOURCES = {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "requests": {"cpu": "250m"}}
KEY = ("default", "chat")


T = TypeVar("T")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of FakeCluster, which never waits: without an event loop each time."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits")


class World:
    """A FakeCluster with one InferenceService, and the memory of what was applied."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.service = self.cluster.put(inference_service(**{"resources": RESOURCES, **spec}))
        self.applied: dict[Kind, Applied] = {}

    def desired(self) -> tuple[Manifest, ...]:
        service = InferenceService.parse(self.service)
        return desired_children(service, pod_template(service, runtime_image="image"), Step())

    def plan(self) -> Plan:
        # As after a list of the operator's own: without apiVersion and kind.
        listed = {kind: at_once(self.cluster.list_page(kind, None)).items for kind in CHILDREN}
        children = {kind: items[0].manifest() for kind, items in listed.items() if items}
        return plan(self.desired(), Observed(self.service, children), self.applied)

    def carry_out(self, todo: Plan) -> None:
        for manifest in todo.create + todo.apply:
            answer = at_once(self.cluster.apply(manifest, manager=OPERATOR))
            self.applied[kind_of(manifest)] = remember(manifest, answer)


def test_plan_creates_then_rests() -> None:
    world = World()
    first = world.plan()
    assert tuple(kind_of(one) for one in first.create) == CHILDREN
    world.carry_out(first)
    assert world.plan() == Plan()


def test_plan_after_a_restart_is_empty_and_repairs_what_was_changed_meanwhile() -> None:
    world = World()
    world.carry_out(world.plan())
    record = record_of(world.applied)
    world.applied = recall({"status": {"applied": record}})
    assert world.plan() == Plan()
    world.cluster.edit(DEPLOYMENT, KEY, lambda one: one["spec"].update(replicas=7))
    world.cluster.edit(SERVICE, KEY, lambda one: one["spec"]["ports"][0].update(nodePort=30000))  # none of ours
    world.applied = recall({"status": {"applied": record}})
    assert [kind_of(one) for one in world.plan().apply] == [DEPLOYMENT]


@pytest.mark.parametrize("text", ["", "/", "theirs", "a/b/c"])
def test_recall_of_a_record_that_somebody_changed_applies_once_more(text: str) -> None:
    world = World()
    world.carry_out(world.plan())
    world.applied = recall({"status": {"applied": record_of(world.applied) | {"Service": text, "Pod": text}}})
    assert [kind_of(one) for one in world.plan().apply] == [SERVICE]


def test_plan_without_a_record_applies_once_and_changes_nothing() -> None:
    world = World()
    world.carry_out(world.plan())
    before = world.cluster.all(DEPLOYMENT)
    world.applied = recall({})
    assert len(world.plan().apply) == len(CHILDREN)
    world.carry_out(world.plan())
    assert world.plan() == Plan()
    assert world.cluster.all(DEPLOYMENT) == before


def test_plan_rewritten_quantities_and_defaults_are_no_difference() -> None:
    world = World()
    world.carry_out(world.plan())
    (stored,) = world.cluster.all(DEPLOYMENT)
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "1"
    assert world.plan() == Plan()


@pytest.mark.parametrize(
    ("labels", "owners", "ours"),
    [
        ({}, [], False),
        ({OWNER_LABEL: "chat"}, [], False),
        ({OWNER_LABEL: "chat", MANAGED_BY: OPERATOR}, [], True),
        ({OWNER_LABEL: "other", MANAGED_BY: OPERATOR}, [], False),
        ({OWNER_LABEL: "chat", MANAGED_BY: OPERATOR}, [{"uid": "uid-9", "controller": True}], False),
        ({OWNER_LABEL: "chat", MANAGED_BY: OPERATOR}, [{"uid": "uid-9"}], True),
        ({}, [{"uid": "uid-1", "controller": True}], True),
    ],
    ids=["stranger", "half a label", "orphan", "orphan of another", "of another owner", "with a bystander", "ours"],
)
def test_is_ours(labels: dict[str, str], owners: list[dict[str, Any]], ours: bool) -> None:
    service = {"metadata": {"name": "chat", "uid": "uid-1"}}
    assert is_ours({"metadata": {"labels": labels, "ownerReferences": owners}}, service) is ours


def test_plan_never_touches_a_child_of_someone_else() -> None:
    world = World()
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": {
        "name": "chat", "namespace": "default", "labels": {MANAGED_BY: OPERATOR}}, "spec": {"ports": []}})  # fmt: skip
    todo = world.plan()
    assert [kind_of(one) for one in todo.taken] == [SERVICE]
    assert [kind_of(one) for one in todo.create] == [kind for kind in CHILDREN if kind is not SERVICE]


def set_label(child: Manifest) -> None:
    child["metadata"]["labels"]["theirs"] = "x"


def set_status(child: Manifest) -> None:
    child["status"] = {"replicas": 1}


def add_sidecar(child: Manifest) -> None:
    child["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "x"})


def add_toleration(child: Manifest) -> None:
    child["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]


@pytest.mark.parametrize("change", [set_label, set_status, add_toleration, add_sidecar])
def test_plan_what_others_add_stays_and_costs_one_apply_at_most(change: Any) -> None:
    world = World()
    world.carry_out(world.plan())
    world.cluster.edit(DEPLOYMENT, KEY, change)
    changed = world.cluster.all(DEPLOYMENT)
    world.carry_out(world.plan())
    assert world.plan() == Plan()
    assert world.cluster.all(DEPLOYMENT) == changed


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
def test_plan_repairs_a_selector_to_which_a_key_was_added(kind: Kind) -> None:
    """Such a key takes the pods away from a Service, a policy or a budget, though everything we set is still there."""
    world = World()
    world.carry_out(world.plan())
    (before,) = world.cluster.all(kind)

    def narrow(child: Manifest) -> None:
        selector = child["spec"].get("selector") or child["spec"]["podSelector"]
        selector.get("matchLabels", selector)["theirs"] = "x"

    world.cluster.edit(kind, KEY, narrow)
    assert [kind_of(one) for one in world.plan().apply] == [kind]
    world.carry_out(world.plan())
    assert world.cluster.all(kind)[0]["spec"] == before["spec"]
    assert world.plan() == Plan()


KEYS = {"name", "containerPort", "port", "protocol", "mountPath"}
"""What identifies an item of a list: changed, it is another item."""


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the scalars of a manifest lie."""
    if isinstance(value, dict):
        return [path for name, one in value.items() for path in paths(one, (*prefix, name))]
    if isinstance(value, list):
        return [path for number, one in enumerate(value) for path in paths(one, (*prefix, number))]
    return [prefix]


FIELDS = [(kind_of(one), path) for one in World().desired() for path in paths(one) if path[0] == "spec"]


@settings(deadline=None)  # a busy machine is no fault
@given(field=st.sampled_from(FIELDS), removed=st.booleans())
def test_plan_repairs_every_field_that_we_set(field: tuple[Kind, tuple[Any, ...]], removed: bool) -> None:
    """Whatever scalar of ours someone changes or removes, one plan puts it back, and the next one is empty."""
    kind, path = field
    world = World()
    world.carry_out(world.plan())
    before = world.cluster.all(kind)

    def vandalise(child: Manifest) -> None:
        *parents, last = path
        place: Any = child
        for step in parents:
            place = place[step]
        if removed and isinstance(place, dict) and last not in KEYS:
            del place[last]
        elif isinstance(place, dict) and last in KEYS:
            place["foreign"] = "x"  # a key of a list: changing it makes another item, see the Service's ports
        else:
            place[last] = "vandalised"

    world.cluster.edit(kind, KEY, vandalise)
    world.carry_out(world.plan())
    assert world.plan() == Plan()
    (after,), (whole,) = world.cluster.all(kind), before
    assert _subset(_without_foreign(after["spec"]), whole["spec"])


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "service": st.fixed_dictionaries(
            {"port": st.sampled_from([80, 81])}, optional={"annotations": st.just({"a": "b"})}
        ),
        "runtime": st.fixed_dictionaries({}, optional={"maxNumSeqs": st.integers(1, 3), "dtype": st.just("float32")}),
        "podTemplate": st.fixed_dictionaries(
            {
                "spec": st.fixed_dictionaries(
                    {},
                    optional={
                        "nodeSelector": st.just({"a": "b"}),
                        "initContainers": st.permutations("ab").map(lambda names: [{"name": one} for one in names]),
                    },
                )
            }
        ),
        "rollout": st.sampled_from([{"type": "Recreate"}, {"type": "RollingUpdate", "maxSurge": 2}, {}]),
        "resources": st.sampled_from([RESOURCES, {}, {"limits": {"memory": "512Mi"}}]),
    },
)


@settings(deadline=None)
@given(specs=st.lists(SPECS, min_size=1, max_size=4))
def test_plan_any_history_ends_where_a_fresh_start_does(specs: list[dict[str, Any]]) -> None:
    """After any edits the children equal those of an object created with the last spec: nothing is left behind."""
    world = World(**specs[0])
    world.carry_out(world.plan())
    for spec in specs[1:]:
        world.service = world.cluster.put(inference_service(**{"resources": RESOURCES, **spec}))
        world.carry_out(world.plan())
        assert world.plan() == Plan()
    fresh = World(**specs[-1])
    fresh.carry_out(fresh.plan())
    for kind in CHILDREN:
        (one,), (other,) = world.cluster.all(kind), fresh.cluster.all(kind)
        assert one["spec"] == other["spec"]
        assert one["metadata"]["labels"] == other["metadata"]["labels"]
        assert (one["metadata"].get("annotations") or {}) == (other["metadata"].get("annotations") or {})


def _without_foreign(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_foreign(one) for name, one in value.items() if name != "foreign"}
    return [_without_foreign(one) for one in value] if isinstance(value, list) else copy.deepcopy(value)


def _subset(value: Any, whole: Any) -> bool:
    if isinstance(whole, dict):
        return isinstance(value, dict) and all(
            name in value and _subset(value[name], one) for name, one in whole.items()
        )
    if isinstance(whole, list):
        return isinstance(value, list) and len(value) == len(whole) and all(map(_subset, value, whole))
    return bool(value == whole)
