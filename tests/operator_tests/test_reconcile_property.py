"""Whatever is found, a few looks make it what it should be, and the look after them writes nothing."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import (
    CHILDREN,
    DECISIONS_ANNOTATION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    MANAGED_BY,
    OPERATOR,
    OWNER_LABEL,
    POD,
    REVISION,
    STATUS_MANAGER,
    TEMPLATE_LABEL,
    Kind,
    Manifest,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import desired_children, pod_template, revision
from octavo_operator.core.plan import is_ours, kind_of
from octavo_operator.core.rollout import Step, surge_of
from octavo_operator.testing import FakeCluster, inference_service
from tests.operator_tests.test_plan import SPECS, at_once
from tests.operator_tests.test_reconcile import KEY, World
from tests.operator_tests.test_status_property import counts, sometimes
from tests.operator_tests.test_status_property import pods as any_pods

LOOKS = 4
"""How many looks it may take: pin and apply, see what was applied, tell it; one more where a port was renumbered."""

EARLIER: dict[str, Any] = {"runtime": {"maxNumSeqs": 3}, "podTemplate": {"spec": {"nodeSelector": {"old": "yes"}}}}
OTHER_OWNER = {"apiVersion": "v1", "kind": "Other", "name": "other", "uid": "uid-other", "controller": True}

EDITS = {
    "labels lost": lambda child: child["metadata"].update(labels={}),
    "relabelled": lambda child: child["metadata"]["labels"].update({OWNER_LABEL: "other"}),
    "orphaned": lambda child: child["metadata"].update(ownerReferences=[]),
    "bystander": lambda child: child["metadata"]["ownerReferences"].append({"uid": "uid-bystander", "kind": "Other"}),
    "scaled": lambda child: child["spec"].update(replicas=9),
    "another type": lambda child: child["spec"].update(type="NodePort"),
    "selector": lambda child: child["spec"].update(selector={"app": "other"}),
    "image": lambda child: _template(child, lambda pod: pod["containers"][0].update(image="other")),
    "argument": lambda child: _template(child, lambda pod: pod["containers"][0]["args"].append("--turbo")),
    "sidecar": lambda child: _template(child, lambda pod: pod["containers"].append({"name": "proxy", "image": "x"})),
    "strategy": lambda child: child["spec"].update(strategy={"type": "Recreate"}),
    "surge": lambda child: child["spec"].update(
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}}
    ),
    "port": lambda child: [port.update(port=4) for port in child["spec"].get("ports", ())],
    "target": lambda child: [port.update(targetPort=4) for port in child["spec"].get("ports", ())],
    "annotated": lambda child: child["metadata"].update(annotations={"theirs": "x"}),
}
"""What somebody may have done to a child of ours."""


def _template(child: Manifest, change: Any) -> None:
    if "template" in child["spec"]:
        change(child["spec"]["template"]["spec"])


child_states: st.SearchStrategy[tuple[str, list[str]]] = st.one_of(
    st.just(("absent", [])),
    st.tuples(
        st.sampled_from(["ours", "of an earlier operator"]), st.lists(st.sampled_from(sorted(EDITS)), max_size=3)
    ),
    st.tuples(st.sampled_from(["of another owner", "of a stranger"]), st.just([])),
)
revision_states = st.lists(
    st.sampled_from(["current", "earlier", "earlier, with a pod", "unreadable", "of another owner", "orphaned"]),
    max_size=4,
    unique=True,
)
pod_states = st.lists(st.tuples(any_pods, st.sampled_from(["current", "earlier", "none"])), max_size=4)
deployment_status = sometimes(
    {},
    replicas=counts,
    updatedReplicas=counts,
    readyReplicas=counts,
    observedGeneration=st.integers(1, 2),
    conditions=st.just([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]),
)


def rendered(service: Manifest, image: str = "image") -> Manifest:
    return pod_template(InferenceService.parse(service), runtime_image=image)


class Found:
    """A cluster in some state, and an operator that has just started."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        self.world.claim("Bound")
        self.cluster.put(inference_service(**EARLIER))
        self.earlier = rendered(self.service)
        self.cluster.edit(INFERENCE_SERVICE, KEY, lambda one: one.update(spec=inference_service(**spec)["spec"]))
        self.current = rendered(self.service)
        self.foreign: dict[Kind, Manifest] = {}
        self.shared = False

    @property
    def service(self) -> Manifest:
        (service,) = self.cluster.all(INFERENCE_SERVICE)
        return service

    def child(self, kind: Kind, state: str, edits: list[str]) -> None:
        if state == "absent":
            return
        template = self.current if state == "ours" else self.earlier
        parsed = InferenceService.parse(self.service)
        manifest = next(one for one in desired_children(parsed, template, Step()) if kind_of(one) is kind)
        if state in {"of another owner", "of a stranger"}:
            manifest["metadata"]["ownerReferences"] = [OTHER_OWNER] if state == "of another owner" else []
            if state == "of a stranger":
                manifest["metadata"]["labels"] = {}
            self.foreign[kind] = self.cluster.put(manifest)
            return
        if state == "of an earlier operator":
            manifest["metadata"]["labels"]["octavo.dev/old"] = "x"
        at_once(self.cluster.apply(manifest, manager=OPERATOR))
        for edit in edits:
            # Every edit can follow every other one, as far as what it changes is still there.
            if edit == "bystander" and "ownerReferences" not in manifest["metadata"]:
                continue
            self.cluster.edit(kind, KEY, EDITS[edit])
        self.shared |= bool(edits)
        child = self.cluster.peek(kind, KEY)
        assert child is not None
        if not is_ours(child, self.service):
            self.foreign[kind] = child  # its labels and its owner are lost: nothing tells whose it is

    def revision(self, state: str, number: int) -> None:
        service = self.service
        data: Any = {"spec": service["spec"], "template": self.current, "update": ""}
        if state.startswith("earlier"):
            data = data | {"spec": inference_service(**EARLIER)["spec"], "template": self.earlier}
        if state == "unreadable":
            data = {"template": number}
        manifest = revision(InferenceService.parse(service), data, number)
        if state == "of another owner":
            manifest["metadata"] |= {"name": "theirs", "ownerReferences": [OTHER_OWNER]}
        elif state == "orphaned":
            manifest["metadata"] |= {"name": "orphan", "ownerReferences": []}
        self.cluster.put(manifest)
        if state == "earlier, with a pod":
            self.pod({"metadata": {}, "status": {}}, "earlier", 90)

    def pod(self, pod: Manifest, template: str, number: int) -> None:
        labels = {MANAGED_BY: OPERATOR, OWNER_LABEL: "chat"}
        if template != "none":
            labels |= (
                self.current["metadata"]["labels"] if template == "current" else self.earlier["metadata"]["labels"]
            )
        metadata = {name: one for name, one in pod["metadata"].items() if name == "deletionTimestamp"}
        metadata |= {"name": f"chat-{number}", "namespace": "default", "labels": labels}
        self.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": pod["status"]})


@settings(max_examples=100, deadline=None)
@given(
    spec=SPECS,
    children=st.fixed_dictionaries(dict.fromkeys(CHILDREN, child_states)),
    counted=deployment_status,
    revisions=revision_states,
    pods=pod_states,
    told=st.booleans(),
)
def test_reconcile_converges_from_any_observed_state(
    spec: dict[str, Any],
    children: dict[Kind, tuple[str, list[str]]],
    counted: Manifest,
    revisions: list[str],
    pods: list[tuple[Manifest, str]],
    told: bool,
) -> None:
    found = Found(spec)
    cluster = found.cluster
    for kind, (state, edits) in children.items():
        found.child(kind, state, edits)
    if cluster.peek(DEPLOYMENT, KEY) is not None:
        cluster.edit(DEPLOYMENT, KEY, lambda child: child.update(status=counted))
        if DEPLOYMENT in found.foreign:
            found.foreign[DEPLOYMENT] |= {"status": counted}
    for number, state in enumerate(revisions, 1):
        found.revision(state, number)
    for number, (pod, template) in enumerate(pods):
        found.pod(pod, template, number)
    if told:
        old = {
            "type": "Ready",
            "status": "True",
            "reason": "Serving",
            "message": "",
            "lastTransitionTime": "2025-01-01T00:00:00Z",
        }
        identity = {name: found.service["metadata"][name] for name in ("namespace", "name", "uid")}
        status = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind, "metadata": identity}
        at_once(
            cluster.apply_status(
                status | {"status": {"conditions": [old], "url": "http://old"}}, manager=STATUS_MANAGER
            )
        )
    pods_before = cluster.all(POD)
    world = found.world
    for _ in range(LOOKS):
        at_once(world.look())
    # At rest: neither this operator nor one that starts anew changes anything.
    settled = [cluster.all(kind) for kind in (INFERENCE_SERVICE, *CHILDREN, REVISION)]
    writes = cluster.writes
    at_once(world.look())
    assert cluster.writes == writes
    world.reconciler = world.start()
    at_once(world.look())
    at_once(world.look())
    assert [cluster.all(kind) for kind in (INFERENCE_SERVICE, *CHILDREN, REVISION)] == settled
    # What belongs to others is as it was, and is told; what is ours is what a new object's children are.
    assert cluster.all(POD) == pods_before
    parsed = InferenceService.parse(found.service)
    live = cluster.peek(DEPLOYMENT, KEY)
    step = Step(*surge) if (surge := surge_of(live)) else Step()
    for child in desired_children(parsed, found.current, step):
        kind = kind_of(child)
        present = cluster.peek(kind, KEY)
        assert present is not None
        if kind in found.foreign:
            assert _without_version(present) == _without_version(found.foreign[kind])
            continue
        fresh = FakeCluster().put(child)
        assert is_ours(present, found.service)
        if found.shared:
            assert _covers(present["spec"], fresh["spec"])
        else:
            assert present["spec"] == fresh["spec"]
            assert present["metadata"]["labels"] == fresh["metadata"]["labels"]
    ready = next(one for one in found.service["status"]["conditions"] if one["type"] == ConditionType.READY)
    assert (ready["reason"] == Reason.NAME_TAKEN) == bool(found.foreign)
    pinned = [
        one for one in cluster.all(REVISION) if DECISIONS_ANNOTATION not in one["metadata"].get("annotations", {})
    ]
    kept = [one for one in pinned if one["metadata"]["name"] != "theirs"]
    assert len(pinned) - len(kept) == ("of another owner" in revisions)
    running = {one["metadata"]["labels"].get(TEMPLATE_LABEL) for one in cluster.all(POD)}
    assert len(kept) <= len(running | {found.current["metadata"]["labels"][TEMPLATE_LABEL]})
    assert found.current in [one["data"]["template"] for one in kept]


def _without_version(manifest: Manifest) -> Manifest:
    metadata = {name: one for name, one in manifest["metadata"].items() if name != "resourceVersion"}
    return json.loads(json.dumps(manifest | {"metadata": metadata}))  # type: ignore[no-any-return] # the same object


def _covers(live: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return all(name in live and _covers(live[name], one) for name, one in wanted.items())
    if isinstance(wanted, list):
        return all(any(_covers(one, other) for one in live) for other in wanted)
    return bool(live == wanted)
