from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    OWNER_LABEL,
    POD,
    REVISION,
    SERVICE,
    Key,
    Kind,
    Manifest,
    key_of,
)
from octavo_operator.core.store import Store

CHAT = ("default", "chat")


def thing(version: int, name: str = "chat", **fields: Any) -> Manifest:
    metadata = {"namespace": "default", "name": name, "uid": "u", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"version": version}, **fields}


def replace(store: Store, kind: Kind, namespace: str | None, manifests: list[Manifest], version: int) -> set[Key]:
    """Takes in a complete list, as the controller does."""
    owners: set[Key] = set()
    for manifest in manifests:
        owners |= store.upsert(kind, manifest)
    return owners | store.prune(kind, namespace, {key_of(manifest) for manifest in manifests}, version)


def pod(version: int, name: str = "chat-1", owner: str | None = "chat") -> Manifest:
    manifest = thing(version, name, status={"phase": "Running"})
    manifest["metadata"]["labels"] = {OWNER_LABEL: owner} if owner else {}
    return manifest


def test_upsert_is_news_only_when_newer() -> None:
    store = Store()
    assert store.upsert(INFERENCE_SERVICE, thing(9)) == {CHAT}
    assert store.upsert(INFERENCE_SERVICE, thing(9)) == set()
    assert store.upsert(INFERENCE_SERVICE, thing(8)) == set()
    assert store.upsert(INFERENCE_SERVICE, thing(10)) == {CHAT}  # as numbers, not as text
    observed = store.observe(CHAT)
    assert observed is not None
    assert observed.service["spec"]["version"] == 10


def test_observe_gives_a_copy() -> None:
    store = Store()
    store.upsert(INFERENCE_SERVICE, thing(1, note="naïve"))
    first = store.observe(CHAT)
    assert first is not None
    assert first.service == thing(1, note="naïve")
    first.service["spec"]["version"] = 2
    assert store.observe(CHAT) != first


def test_generation_is_that_of_the_newest() -> None:
    store = Store()
    assert store.generation(INFERENCE_SERVICE, CHAT) is None
    manifest = thing(1)
    store.upsert(INFERENCE_SERVICE, manifest)
    assert store.generation(INFERENCE_SERVICE, CHAT) is None
    manifest["metadata"] |= {"resourceVersion": "2", "generation": 7}
    store.upsert(INFERENCE_SERVICE, manifest)
    assert store.generation(INFERENCE_SERVICE, CHAT) == 7


def test_upsert_keeps_no_managed_fields_and_only_the_needed_part_of_a_pod() -> None:
    store = Store()
    store.upsert(INFERENCE_SERVICE, thing(1))
    for kind, manifest in ((DEPLOYMENT, thing(2)), (POD, pod(3))):
        manifest["metadata"]["managedFields"] = [{}]
        store.upsert(kind, manifest)
        assert "managedFields" in manifest["metadata"], "the watcher's own object is not touched"
    observed = store.observe(CHAT)
    assert observed is not None
    assert "managedFields" not in observed.children[DEPLOYMENT]["metadata"]
    assert observed.pods[0].keys() == {"metadata", "status"}


def test_upsert_gives_a_revision_to_the_owner_in_its_label() -> None:
    store = Store()
    store.upsert(INFERENCE_SERVICE, thing(1))
    manifest = pod(2, "chat-1") | {"data": {"a": [1]}, "revision": 3}
    assert store.upsert(REVISION, manifest) == {CHAT}
    observed = store.observe(CHAT)
    assert observed is not None
    assert observed.pods == ()
    (kept,) = observed.revisions
    assert (kept["data"], kept["revision"]) == ({"a": [1]}, 3)
    assert store.delete(REVISION, manifest | {"metadata": manifest["metadata"] | {"resourceVersion": "4"}}) == {CHAT}
    observed = store.observe(CHAT)
    assert observed is not None
    assert observed.revisions == ()


def test_upsert_late_answer_does_not_raise_the_dead() -> None:
    store = Store()
    store.upsert(SERVICE, thing(5))
    assert store.delete(SERVICE, thing(7)) == {CHAT}
    assert store.upsert(SERVICE, thing(6)) == set()
    assert store.get(SERVICE, CHAT) is None
    assert store.upsert(SERVICE, thing(8)) == {CHAT}


def test_delete_of_a_predecessor_leaves_the_successor() -> None:
    store = Store()
    store.upsert(SERVICE, thing(9))
    assert store.delete(SERVICE, thing(7)) == set()
    assert store.get(SERVICE, CHAT) is not None


def test_upsert_pod_that_changes_its_owner_concerns_both() -> None:
    store = Store()
    for name in ("chat", "other"):
        store.upsert(INFERENCE_SERVICE, thing(1, name))
    store.upsert(POD, pod(2))
    assert store.upsert(POD, pod(3, owner="other")) == {CHAT, ("default", "other")}
    assert [len(store.observe(key).pods) for key in (CHAT, ("default", "other"))] == [0, 1]  # type: ignore[union-attr] # both exist
    assert store.upsert(POD, pod(4, owner=None)) == {("default", "other")}
    assert store.count(POD) == 0


def test_prune_drops_what_vanished_in_a_gap_and_keeps_what_is_newer() -> None:
    store = Store()
    store.upsert(INFERENCE_SERVICE, thing(1))
    store.upsert(INFERENCE_SERVICE, thing(2, "gone"))
    store.upsert(DEPLOYMENT, thing(3))
    store.upsert(SERVICE, thing(12))
    assert replace(store, INFERENCE_SERVICE, None, [thing(1)], 10) == {("default", "gone")}
    assert replace(store, DEPLOYMENT, None, [], 10) == {CHAT}
    assert replace(store, SERVICE, None, [], 10) == set()
    assert (store.count(INFERENCE_SERVICE), store.count(DEPLOYMENT), store.count(SERVICE)) == (1, 0, 1)


def test_prune_of_one_namespace_leaves_the_others() -> None:
    store = Store()
    store.upsert(SERVICE, thing(1))
    assert replace(store, SERVICE, "elsewhere", [], 10) == set()
    assert store.count(SERVICE) == 1


VERSIONED = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12)


@given(history=VERSIONED, data=st.data())
def test_store_converges_to_the_truth_whatever_order_and_gaps(
    history: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """Events of a history arrive shuffled, doubled and with gaps; a complete list then makes store and truth equal."""
    truth: dict[Key, int] = {}
    events = []
    for version, (name, exists) in enumerate(history, start=1):
        events.append((thing(version, name), exists))
        if exists:
            truth[("default", name)] = version
        else:
            truth.pop(("default", name), None)
    arrived = data.draw(st.lists(st.sampled_from(events), max_size=20)) if events else []
    store = Store()
    for manifest, exists in arrived:
        if exists:
            store.upsert(SERVICE, manifest)
        else:
            store.delete(SERVICE, manifest)
    replace(store, SERVICE, None, [thing(version, key[1]) for key, version in truth.items()], len(history))
    known = {
        key_of(manifest): manifest["spec"]["version"]
        for manifest in (store.get(SERVICE, key) for key in truth)
        if manifest
    }
    assert known == truth
    assert store.count(SERVICE) == len(truth)
