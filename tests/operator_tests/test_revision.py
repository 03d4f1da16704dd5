from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import INFERENCE_SERVICE, POD, REVISION, TEMPLATE_LABEL, UPDATE_ANNOTATION, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import pod_template
from octavo_operator.core.observed import Observed
from octavo_operator.core.revision import Pinned, pin
from octavo_operator.core.store import Store
from octavo_operator.testing import FakeCluster, inference_service

KEY = ("default", "chat")


class World:
    """One InferenceService, its revisions and pods, and the image that the operator was installed with."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.image = "image:1"
        self.cluster.put(inference_service())

    def edit(self, **spec: Any) -> None:
        self.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["spec"].update(spec))

    def ask(self, value: str) -> None:
        annotations = {UPDATE_ANNOTATION: value}
        self.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(annotations=annotations))

    def run_pod(self, name: str, template: Manifest) -> None:
        labels = template["metadata"]["labels"]
        self.cluster.put({"kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels}})

    def stop_pod(self, name: str) -> None:
        self.cluster.delete(POD, ("default", name))

    def observed(self) -> Observed:
        store = Store()
        for kind in (INFERENCE_SERVICE, POD, REVISION):
            for manifest in self.cluster.all(kind):
                store.upsert(kind, manifest)
        observed = store.observe(KEY)
        assert observed is not None
        return observed

    def pin(self) -> Pinned:
        observed = self.observed()
        return pin(InferenceService.parse(observed.service), observed, partial(pod_template, runtime_image=self.image))

    def look(self) -> Pinned:
        """Pins and does what is to be done; the second look has nothing left."""
        pinned = self.pin()
        if pinned.create is not None:
            self.cluster.put(pinned.create)
        for manifest in pinned.obsolete:
            self.cluster.delete(REVISION, ("default", manifest["metadata"]["name"]))
        after = self.pin()
        assert (after.template, after.create, after.obsolete, after.pending) == (
            pinned.template,
            None,
            (),
            pinned.pending,
        )
        return pinned

    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.all(REVISION)]


def image_of(pinned: Pinned) -> str:
    image: str = pinned.template["spec"]["containers"][0]["image"]
    return image


def test_pin_first_look_pins_what_is_rendered() -> None:
    world = World()
    pinned = world.look()
    assert image_of(pinned) == "image:1"
    assert pinned.pending == ""
    (revision,) = world.cluster.all(REVISION)
    assert revision["metadata"]["name"].startswith("chat-")
    assert revision["metadata"]["ownerReferences"][0]["controller"]
    assert revision["data"]["template"] == pinned.template


def test_pin_upgrade_changes_nothing_until_asked() -> None:
    world = World()
    first = world.look()
    world.image = "image:2"
    pinned = world.look()
    assert pinned.template == first.template
    assert "spec.containers[server].image: image:1 to image:2." in pinned.pending
    command = pinned.pending.split("`")[1]
    assert command.startswith("kubectl annotate --overwrite inferenceservices.octavo.dev/chat octavo.dev/update=")
    assert command.endswith(" --namespace default")
    world.ask(command.split("=")[1].split()[0])
    pinned = world.look()
    assert (image_of(pinned), pinned.pending) == ("image:2", "")
    world.image = "image:3"
    assert image_of(world.look()) == "image:2", "each value asks once"
    world.ask("now")
    assert image_of(world.look()) == "image:3"


def test_pin_asked_for_in_advance_is_not_saved_for_the_next_upgrade() -> None:
    world = World()
    world.look()
    world.ask("now")
    world.look()
    world.image = "image:2"
    assert image_of(world.look()) == "image:1"


def test_pin_annotation_removed_asks_for_nothing() -> None:
    world = World()
    world.ask("now")
    world.look()
    world.image = "image:2"
    world.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one["metadata"].update(annotations={}))
    assert image_of(world.look()) == "image:1"


def test_pin_edit_takes_the_new_rendering() -> None:
    world = World()
    world.look()
    world.image = "image:2"
    world.edit(runtime={"maxNumSeqs": 8})
    pinned = world.look()
    assert (image_of(pinned), pinned.pending) == ("image:2", "")


def test_pin_edit_that_concerns_no_pod_and_new_defaults_are_no_change() -> None:
    world = World()
    first = world.look()
    world.image = "image:2"
    world.edit(replicas=5, service={"type": "NodePort", "port": 81}, runtime={}, podTemplate={"metadata": {}})
    world.edit(rollout={"type": "Recreate", "drainSeconds": 120})
    pinned = world.look()
    assert pinned.template == first.template
    assert pinned.pending
    assert len(world.names()) == 1


def test_pin_back_to_a_revision_whose_pods_run() -> None:
    world = World()
    first = world.look()
    world.run_pod("a", first.template)
    world.image = "image:2"
    world.edit(runtime={"maxNumSeqs": 8})
    world.run_pod("b", world.look().template)
    assert len(world.names()) == 2
    world.edit(runtime={})
    pinned = world.look()
    assert pinned.template == first.template
    assert pinned.pending


def test_pin_back_to_a_revision_that_is_gone_takes_the_new_rendering() -> None:
    world = World()
    first = world.look()
    world.run_pod("a", first.template)
    world.image = "image:2"
    world.edit(runtime={"maxNumSeqs": 8})
    world.run_pod("b", world.look().template)
    world.stop_pod("a")
    world.look()
    assert len(world.names()) == 1
    world.edit(runtime={})
    assert image_of(world.look()) == "image:2"


def test_pin_orphan_is_copied_by_the_next_owner() -> None:
    """After `kubectl delete --cascade=orphan` and an upgrade, the successor keeps the pods."""
    world = World()
    first = world.look()
    (name,) = world.names()
    world.cluster.edit(REVISION, ("default", name), lambda one: one["metadata"].update(ownerReferences=[]))
    world.cluster.delete(INFERENCE_SERVICE, KEY)
    world.cluster.put(inference_service())
    world.image = "image:2"
    assert world.look().template == first.template
    assert name not in world.names()
    assert len(world.names()) == 1


def test_pin_revision_that_lost_its_owner_is_adopted() -> None:
    world = World()
    world.look()
    (name,) = world.names()
    world.cluster.edit(REVISION, ("default", name), lambda one: one["metadata"].pop("ownerReferences"))
    world.look()
    (revision,) = world.cluster.all(REVISION)
    assert revision["metadata"]["name"] == name
    assert revision["metadata"]["ownerReferences"]


def test_pin_second_revision_of_the_applied_template_goes_while_its_pods_run() -> None:
    world = World()
    world.run_pod("a", world.look().template)
    (own,) = world.cluster.all(REVISION)
    metadata = {name: own["metadata"][name] for name in ("namespace", "labels")} | {"name": "orphan"}
    world.cluster.put({"kind": "ControllerRevision", "metadata": metadata, "revision": 0, "data": own["data"]})
    world.look()
    assert world.names() == [own["metadata"]["name"]]


def test_pin_leaves_the_revisions_of_others_and_drops_what_it_cannot_read() -> None:
    world = World()
    world.look()
    (own,) = world.cluster.all(REVISION)
    labels = own["metadata"]["labels"]
    owner = {"uid": "uid-9", "controller": True, "kind": "StatefulSet", "name": "x", "apiVersion": "apps/v1"}
    for name, owners in (("theirs", [owner]), ("broken", own["metadata"]["ownerReferences"])):
        metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": owners}
        world.cluster.put({"kind": "ControllerRevision", "metadata": metadata, "revision": 9, "data": {"template": {}}})
    world.look()
    assert sorted(world.names()) == sorted([own["metadata"]["name"], "theirs"])


def test_pin_names_the_first_differences_only() -> None:
    world = World()
    world.look()
    observed = world.observed()
    service = InferenceService.parse(observed.service)

    def another(one: InferenceService) -> Manifest:
        template = pod_template(one, runtime_image="image:1")
        template["spec"] |= {f"field{number}": "x" * 200 for number in range(8)}
        return template

    pending = pin(service, observed, another).pending
    assert f"spec.field0: nothing to {'x' * 80}…; " in pending
    assert "; and 3 more." in pending
    assert len(pending) < 1500


EVENTS = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, 2)),
    st.tuples(st.just("scale"), st.integers(0, 2)),
    st.tuples(st.just("upgrade"), st.integers(1, 3)),
    st.tuples(st.just("ask"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["run", "stop"]), st.integers(0, 2)),
)


@given(events=st.lists(EVENTS, max_size=15))
def test_pin_any_history(events: list[tuple[str, int]]) -> None:
    """The template changes when the user edits or asks, and else never; revisions are no more than pods and one."""
    world = World()
    pinned = world.look()
    size, asked = 0, ""
    pods: set[str] = set()
    for event, number in events:
        may_change = False
        match event:
            case "edit":
                may_change, size = number != size, number
                world.edit(runtime={"maxNumSeqs": number + 1} if number else {})
            case "scale":
                world.edit(replicas=number)
            case "upgrade":
                world.image = f"image:{number}"
            case "ask":
                may_change, asked = asked != f"{number}", f"{number}"
                world.ask(asked)
            case "run":
                world.run_pod(f"{number}", pinned.template)
                pods.add(f"{number}")
            case _ if f"{number}" in pods:
                world.stop_pod(f"{number}")
                pods.remove(f"{number}")
        before, pinned = pinned, world.look()
        assert may_change or pinned.template == before.template
        if event == "ask" and may_change:
            assert image_of(pinned) == world.image
        arguments = pinned.template["spec"]["containers"][0]["args"]
        assert (f"--max-num-seqs={size + 1}" in arguments) == (size > 0)
        assert bool(pinned.pending) == (image_of(pinned) != world.image)
        labels = {one["metadata"]["labels"][TEMPLATE_LABEL] for one in world.cluster.all(POD)}
        assert len(world.names()) <= len(labels) + 1
