"""What the operator relies on an API server for, as checks that run against any ClusterPort.

The unit tests hold FakeCluster to them and the e2e stories a real API server, so that the fake cannot drift away.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from octavo_operator.api.names import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    MANAGED_BY,
    NETWORK_POLICY,
    OPERATOR,
    OWNER_LABEL,
    REVISION,
    SERVICE,
    Kind,
    Manifest,
    version_of,
)
from octavo_operator.cluster.port import ABSENT, ClusterPort
from octavo_operator.errors import ClusterError, Gone, Rejected, Stale
from octavo_operator.testing import inference_service

__all__ = ["PROMISES"]


def _child(kind: Kind, namespace: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "one", "namespace": namespace, "labels": {MANAGED_BY: OPERATOR, "a": "1"}},
        "spec": spec,
    }


def _service(namespace: str, port: int = 80) -> Manifest:
    return _child(SERVICE, namespace, ports=[{"name": "http", "port": port, "protocol": "TCP", "targetPort": 8000}])


async def _same_apply_twice(port: ClusterPort, namespace: str) -> None:
    first = await port.apply(_service(namespace), manager="one")
    second = await port.apply(_service(namespace), manager="one")
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def _left_out_goes_foreign_stays(port: ClusterPort, namespace: str) -> None:
    await port.apply(_service(namespace), manager="one")
    foreign = _service(namespace)
    foreign["metadata"]["labels"] = {"b": "2"}
    foreign["spec"] = {"ports": [{"name": "extra", "port": 90, "protocol": "TCP", "targetPort": 9000}]}
    await port.apply(foreign, manager="two")
    without = _service(namespace, port=81)
    del without["metadata"]["labels"]["a"]
    answer = await port.apply(without, manager="one")
    assert answer["metadata"]["labels"] == {MANAGED_BY: OPERATOR, "b": "2"}
    assert sorted(one["port"] for one in answer["spec"]["ports"]) == [81, 90]


async def _uid_is_a_precondition(port: ClusterPort, namespace: str) -> None:
    stray = _service(namespace)
    stray["metadata"]["uid"] = "c0ffee00-0000-4000-8000-000000000000"
    await _raises(Stale, port.apply(stray, manager="one"))
    await port.apply(_service(namespace), manager="one")
    await _raises(Stale, port.apply(stray, manager="one"))


async def _version_is_a_precondition_of_what_exists(port: ClusterPort, namespace: str) -> None:
    only_new = _service(namespace)
    only_new["metadata"]["resourceVersion"] = ABSENT
    first = await port.apply(only_new, manager="one")
    assert first["metadata"]["labels"]["a"] == "1"
    only_new["metadata"]["labels"]["a"] = "2"
    await _raises(Stale, port.apply(only_new, manager="one"))
    await _raises(Stale, port.apply(only_new, manager="two"))
    assert await port.get(SERVICE, namespace, "one") == first
    # Ownership is that of an apply: what is left out of the next one goes.
    without = _service(namespace)
    del without["metadata"]["labels"]["a"]
    answer = await port.apply(without, manager="one")
    assert answer["metadata"]["labels"] == {MANAGED_BY: OPERATOR}


async def _missing_is_none(port: ClusterPort, namespace: str) -> None:
    assert await port.get(SERVICE, namespace, "nobody") is None
    await _raises(Gone, port.apply(_service(f"{namespace}-nowhere"), manager="one"))


async def _lists_what_is_labelled(port: ClusterPort, namespace: str) -> None:
    answer = await port.apply(_service(namespace), manager="one")
    listing = await port.list_page(SERVICE, namespace)
    assert [one.key for one in listing.items] == [(namespace, "one")]
    assert (await port.list_page(SERVICE, namespace, owner="one")).items == ()
    assert listing.items[0].version == version_of(answer)
    assert "kind" not in listing.items[0].manifest()
    assert listing.version >= int(answer["metadata"]["resourceVersion"])
    owned = _service(namespace)
    owned["metadata"]["labels"][OWNER_LABEL] = "one"
    await port.apply(owned, manager="one")
    assert len((await port.list_page(SERVICE, namespace, owner="one")).items) == 1
    assert (await port.list_page(SERVICE, namespace, owner="two")).items == ()
    hidden = _service(namespace)
    hidden["metadata"]["labels"] = {}
    await port.apply(hidden, manager="one")
    assert (await port.list_page(SERVICE, namespace)).items == ()


async def _renumbered_port_needs_merge(port: ClusterPort, namespace: str) -> None:
    await port.apply(_service(namespace), manager="one")
    ports = [{"name": "http", "port": 81, "protocol": "TCP", "targetPort": 8000}]
    await port.merge(SERVICE, namespace, "one", {"spec": {"ports": ports}}, manager="someone")
    await _raises(Rejected, port.apply(_service(namespace), manager="one"))
    wanted = _service(namespace)["spec"]
    await port.merge(SERVICE, namespace, "one", {"spec": {"ports": wanted["ports"]}}, manager="one")
    answer = await port.apply(_service(namespace), manager="one")
    assert [one["port"] for one in answer["spec"]["ports"]] == [80]


async def _status_is_apart(port: ClusterPort, namespace: str) -> None:
    status = {"replicas": 1, "url": "http://one", "conditions": [_condition("Ready"), _condition("Scheduled")]}
    manifest = inference_service("one", namespace)
    await _raises(Gone, port.apply_status(manifest | {"status": status}, manager="status"))
    created = await port.apply(manifest | {"status": status}, manager="user")
    assert "status" not in created
    answer = await port.apply_status(manifest | {"status": status}, manager="status")
    assert answer["status"] == status
    assert answer["metadata"]["generation"] == 1
    shorter = {"replicas": 1, "conditions": [_condition("Ready")]}
    answer = await port.apply_status(manifest | {"status": shorter}, manager="status")
    assert answer["status"] == shorter


async def _quantities_are_rewritten(port: ClusterPort, namespace: str) -> None:
    labels = {"app": "one"}
    container = {"name": "server", "image": "none", "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    manifest = _child(DEPLOYMENT, namespace, replicas=0, selector={"matchLabels": labels}, template=template)
    answer = await port.apply(manifest, manager="one")
    stored = answer["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert stored == {"cpu": "1", "memory": "1Gi"}
    assert answer["metadata"]["generation"] == 1


async def _selectors_are_replaced_whole(port: ClusterPort, namespace: str) -> None:
    spec: dict[Kind, Manifest] = {
        SERVICE: _service(namespace)["spec"] | {"selector": {"app": "one"}},
        NETWORK_POLICY: {"podSelector": {"matchLabels": {"app": "one"}}, "policyTypes": ["Ingress"]},
        DISRUPTION_BUDGET: {"selector": {"matchLabels": {"app": "one"}}, "maxUnavailable": 1},
    }
    added: dict[Kind, Manifest] = {
        SERVICE: {"selector": {"b": "2"}},
        NETWORK_POLICY: {"podSelector": {"matchLabels": {"b": "2"}}},
        DISRUPTION_BUDGET: {"selector": {"matchLabels": {"b": "2"}}},
    }
    for kind, fields in spec.items():
        child = _child(kind, namespace, **fields)
        first = await port.apply(child, manager="one")
        changed = await port.merge(kind, namespace, "one", {"spec": added[kind]}, manager="two")
        assert changed["spec"] != first["spec"]
        assert (await port.apply(child, manager="one"))["spec"] == first["spec"]


async def _items_have_the_order_in_which_they_were_applied(port: ClusterPort, namespace: str) -> None:
    labels = {"app": "one"}

    async def applied(*names: str) -> list[str]:
        containers = [{"name": name, "image": "none"} for name in names]
        template = {
            "metadata": {"labels": labels},
            "spec": {"initContainers": containers, "containers": [{"name": "server", "image": "none"}]},
        }
        manifest = _child(DEPLOYMENT, namespace, replicas=0, selector={"matchLabels": labels}, template=template)
        answer = await port.apply(manifest, manager="one")
        return [one["name"] for one in answer["spec"]["template"]["spec"]["initContainers"]]

    for names in (["plan"], ["fetch", "plan"], ["proxy", "fetch", "plan"], ["fetch", "proxy", "plan"], ["plan"]):
        assert await applied(*names) == names


async def _events_are_counted(port: ClusterPort, namespace: str) -> None:
    reference = {"kind": "InferenceService", "namespace": namespace, "name": "one", "uid": "uid-1"}
    moment = "2026-01-01T00:00:00Z"
    event = {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"namespace": namespace, "name": "one.1"},
        "involvedObject": reference,
        "type": "Normal",
        "reason": "Serving",
        "firstTimestamp": moment,
    }
    for count, message in enumerate(("first", "second", "third"), 1):
        later = f"2026-01-01T00:0{count}:00Z"
        await port.record(event | {"message": message, "lastTimestamp": later, "count": 1})
        found = await port.get(EVENT, namespace, "one.1")
        assert found is not None
        assert (found["count"], found["message"], found["lastTimestamp"]) == (count, message, later)
        assert found["firstTimestamp"] == moment
    await _raises(Gone, port.record(event | {"metadata": {"namespace": f"{namespace}-nowhere", "name": "one.1"}}))


async def _removes_that_very_object(port: ClusterPort, namespace: str) -> None:
    manifest = _child(REVISION, namespace) | {"data": {"b": "<&>é", "a": [1]}, "revision": 3}
    del manifest["spec"]
    first = await port.apply(manifest, manager="one")
    assert (first["data"], first["revision"]) == (manifest["data"], 3)
    # Data are immutable and compared by their bytes: what someone else changes must still be possible.
    labelled = await port.merge(REVISION, namespace, "one", {"metadata": {"labels": {"b": "2"}}}, manager="two")
    assert labelled["data"] == manifest["data"]
    stray = {"metadata": first["metadata"] | {"uid": "c0ffee00-0000-4000-8000-000000000000"}}
    await _raises(Stale, port.remove(REVISION, stray))
    await port.remove(REVISION, first)
    await _raises(Gone, port.remove(REVISION, first))


async def _update_replaces_what_it_saw(port: ClusterPort, namespace: str) -> None:
    def lease(holder: str, **metadata: str) -> Manifest:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"}
        names = {"name": "one", "namespace": namespace}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": names | metadata, "spec": spec}

    first = await port.update(lease("a"))
    assert first["spec"] == lease("a")["spec"]
    await _raises(Stale, port.update(lease("b")))
    second = await port.update(lease("", resourceVersion=first["metadata"]["resourceVersion"]))
    assert second["spec"]["holderIdentity"] == ""
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    await _raises(Stale, port.update(lease("b", resourceVersion=first["metadata"]["resourceVersion"])))
    assert await port.get(LEASE, namespace, "one") == second
    await port.remove(LEASE, second)
    await _raises((Stale, Gone), port.update(second))
    assert await port.get(LEASE, namespace, "one") is None
    nowhere = lease("a", namespace=f"{namespace}-nowhere")
    await _raises(Gone, port.update(nowhere))


async def _revision_is_annotated_anew(port: ClusterPort, namespace: str) -> None:
    manifest = _child(REVISION, namespace) | {"data": {"record": "decisions"}}
    del manifest["spec"]
    for number in (1, 2):
        manifest["metadata"]["annotations"] = {"a/decisions": json.dumps([{"number": number}])}
        answer = await port.apply(manifest | {"revision": number}, manager="one")
        assert answer["metadata"]["annotations"] == manifest["metadata"]["annotations"]
        assert (answer["data"], answer["revision"]) == (manifest["data"], number)


async def _scale_sets_replicas_of_what_it_saw(port: ClusterPort, namespace: str) -> None:
    first = await port.apply(inference_service("one", namespace, replicas=2), manager="one")
    await port.scale(INFERENCE_SERVICE, first, 3, manager="two")
    second = await port.get(INFERENCE_SERVICE, namespace, "one")
    assert second is not None
    assert second["spec"] == first["spec"] | {"replicas": 3}
    assert second["metadata"]["generation"] == first["metadata"]["generation"] + 1
    await _raises(Stale, port.scale(INFERENCE_SERVICE, first, 4, manager="two"))
    await port.remove(INFERENCE_SERVICE, second)
    await _raises(Gone, port.scale(INFERENCE_SERVICE, first, 4, manager="two"))


def _condition(kind: str) -> Manifest:
    moment = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "Ok", "message": "ok", "lastTransitionTime": moment}


async def _raises(error: type[ClusterError] | tuple[type[ClusterError], ...], call: Awaitable[object]) -> None:
    try:
        await call
    except error:
        return
    raise AssertionError(f"{error} was not raised")


PROMISES: dict[str, Callable[[ClusterPort, str], Awaitable[None]]] = {
    "same apply twice": _same_apply_twice,
    "left out goes, foreign stays": _left_out_goes_foreign_stays,
    "uid is a precondition": _uid_is_a_precondition,
    "version is a precondition of what exists": _version_is_a_precondition_of_what_exists,
    "missing is none": _missing_is_none,
    "lists what is labelled": _lists_what_is_labelled,
    "renumbered port needs merge": _renumbered_port_needs_merge,
    "removes that very object": _removes_that_very_object,
    "revision is annotated anew": _revision_is_annotated_anew,
    "scale sets replicas of what it saw": _scale_sets_replicas_of_what_it_saw,
    "status is apart": _status_is_apart,
    "quantities are rewritten": _quantities_are_rewritten,
    "selectors are replaced whole": _selectors_are_replaced_whole,
    "items have the order in which they were applied": _items_have_the_order_in_which_they_were_applied,
    "update replaces what it saw": _update_replaces_what_it_saw,
    "events are counted": _events_are_counted,
}
"""By name; each takes a port and the name of an empty namespace, and raises AssertionError."""
