"""Who sees every write of the operators and every change of the cluster, and says which promise is broken.

The judge knows the truth, the cluster itself, and not what an operator has heard of it. Some promises hold at each
write, some for each object over a whole run, some whenever the world has come to rest (`check`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import (
    CHILDREN,
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    MANAGED_BY,
    OPERATOR,
    OWNER_LABEL,
    POD,
    REVISION,
    WATCHED,
    Key,
    Kind,
    Manifest,
    key_of,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import desired_children, pod_template
from octavo_operator.core.observed import ClaimPhase, Observed
from octavo_operator.core.plan import is_ours, kind_of, remember
from octavo_operator.core.revision import pin
from octavo_operator.core.rollout import Step, surge_of
from octavo_operator.core.status import desired_status, is_written
from octavo_operator.core.store import Store
from octavo_operator.errors import SpecInvalid
from octavo_operator.selftest.clock import now, seconds
from octavo_operator.testing import FakeCluster

__all__ = ["Judge", "ready_of"]

KINDS = {kind.kind: kind for kind in (INFERENCE_SERVICE, *CHILDREN, REVISION, EVENT)}
REASONS = frozenset(Reason)

WRITES_PER_USERS_CHANGE = 11
"""What an edit may cost by itself: a revision made and one removed, four children, a strategy there and back, a record of
decisions, a status, an Event."""
WRITES_PER_OTHER_CHANGE = 4
"""What a change of a child or of a pod may cost: a child, a record of that, a status, an Event."""


@dataclass(slots=True)
class Judge:
    """Collects what is broken.

    Attributes:
        cluster: the truth.
        ready: how many pods of an InferenceService answer.
        image: the image of the runtime that the operators are started with.
        written: the annotations and the spec that users gave each object.
        floors: how few ready pods an object may have at any moment.
        shared: objects to whose children somebody adds fields that stay.
        allowed: writes without effect that are no fault: when an answer was lost, or the process that got it.
        broken: what does not hold, in words.
        changed_at: when anything changed, or an operator wrote.
        writes: how often operators wrote, by InferenceService.
        writes_by_kind: the same by kind.
        applied_at: when an operator last changed a Deployment or a Service.
        writer: the operator that wrote last; none writes after another one has begun to.
        writer_since: when it began.
    """

    cluster: FakeCluster
    ready: Callable[[Key], int]
    image: str
    written: dict[Key, Manifest] = field(default_factory=dict)
    floors: dict[Key, int] = field(default_factory=dict)
    shared: set[Key] = field(default_factory=set)
    allowed: Counter[Key] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    changed_at: float = 0.0
    writes: Counter[Key] = field(default_factory=Counter)
    writes_by_kind: Counter[Kind] = field(default_factory=Counter)
    applied_at: float = 0.0
    writer: str = ""
    writer_since: float = 0.0
    _past_writers: set[str] = field(default_factory=set)
    _unrecorded: Counter[Key] = field(default_factory=Counter)
    """Writes of children since the last status, which keeps a record of them."""
    _useless: Counter[Key] = field(default_factory=Counter)
    _by_users: Counter[Key] = field(default_factory=Counter)
    _by_others: Counter[Key] = field(default_factory=Counter)
    _is_operators: bool = False

    def start(self) -> None:
        """Begins to follow the cluster."""
        self.cluster.subscribe(self._hear)

    def fail(self, sentence: str) -> None:
        """Takes down that something is broken, and when."""
        self.broken.append(f"{sentence} (at {seconds():.1f} s)")

    def allow(self, manifest: Manifest) -> None:
        """Lets one write of this object be repeated."""
        self.allowed[_owner(manifest)] += 1

    @contextmanager
    def watching(self, manifest: Manifest, operator: str) -> Iterator[None]:
        """Judges an operator's write of this object, which is done inside."""
        kind, key, owner = KINDS[manifest["kind"]], key_of(manifest), _owner(manifest)
        before = self.cluster.peek(kind, key)
        self.changed_at = seconds()
        self._is_operators = True
        try:
            yield
        finally:
            self._is_operators = False
        if operator != self.writer:
            if operator in self._past_writers:
                self.fail(f"{operator} writes again, after {self.writer} did")
            self._past_writers.add(self.writer)
            self.writer, self.writer_since = operator, seconds()
            # It has not seen the answers that the one before had no time to put on record.
            self.allowed += self._unrecorded
            self._unrecorded.clear()
        self.writes[owner] += 1
        if kind is INFERENCE_SERVICE:
            del self._unrecorded[owner]
        elif kind in CHILDREN:
            self._unrecorded[owner] += 1
        self.writes_by_kind[kind] += 1
        after = self.cluster.peek(kind, key)
        if before == after:
            self._useless[owner] += 1
            return
        if kind in CHILDREN:
            self.applied_at = seconds()
        if kind is INFERENCE_SERVICE:
            self._judge_status(manifest)
        elif kind is not EVENT and before is not None and not _may_write(manifest, before):
            self.fail(f"{_named(kind, key)} belongs to someone else and was written all the same")

    def _judge_status(self, manifest: Manifest) -> None:
        name = _named(INFERENCE_SERVICE, key_of(manifest))
        if manifest["metadata"].keys() != {"namespace", "name", "uid"} or "spec" in manifest:
            self.fail(f"{name}: more than its status was written, or without its uid")
        for condition in manifest["status"]["conditions"]:
            if condition["reason"] not in REASONS:
                self.fail(f"{name}: {condition['type']} has a reason that is on no list: {condition['reason']}")

    def _hear(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        self.changed_at = seconds()
        owner = _owner(manifest)
        if kind is INFERENCE_SERVICE:
            self._by_users[owner] += not self._is_operators
            if event_type == "DELETED":
                self.floors.pop(owner, None)
        elif not self._is_operators:
            self._by_others[owner] += 1
        if kind is POD and self.ready(owner) < self.floors.get(owner, 0):
            self.fail(f"{owner[1]} has {self.ready(owner)} ready pods, and {self.floors[owner]} at least are promised")

    def check(self) -> None:
        """Says what is not as it must be when the world is at rest."""
        store = Store()
        for kind in WATCHED:
            for manifest in self.cluster.listed(kind):
                store.upsert(kind, manifest)
        services = self.cluster.all(INFERENCE_SERVICE)
        alive = {one["metadata"]["uid"] for one in services}
        for kind in (*CHILDREN, REVISION):
            for child in self.cluster.listed(kind):
                owner = controller_of(child)
                if owner is not None and owner["kind"] == INFERENCE_SERVICE.kind and owner["uid"] not in alive:
                    self.fail(f"{_named(kind, key_of(child))} belongs to an InferenceService that is gone")
        for manifest in services:
            observed = store.observe(key_of(manifest))
            assert observed is not None
            self._check_user(manifest)
            self._check_object(manifest, observed)
        for key in self.writes:
            self._check_writes(key)

    def _check_user(self, manifest: Manifest) -> None:
        key, metadata = key_of(manifest), manifest["metadata"]
        name, given = _named(INFERENCE_SERVICE, key), self.written[key]
        if "finalizers" in metadata or metadata.get("annotations", {}) != given["annotations"]:
            self.fail(f"{name}: finalizers or annotations are not those that its user gave it")
        if manifest["spec"] != given["spec"]:
            self.fail(f"{name}: its spec is not the one that its user gave it")

    def _check_writes(self, key: Key) -> None:
        most = (
            WRITES_PER_USERS_CHANGE * self._by_users[key]
            + WRITES_PER_OTHER_CHANGE * self._by_others[key]
            + self.allowed[key]
        )
        if self.writes[key] > most:
            self.fail(f"{key[1]}: {self.writes[key]} writes, at most {most} are due to what happened")
        if self._useless[key] > self.allowed[key]:
            self.fail(f"{key[1]}: {self._useless[key]} writes changed nothing, {self.allowed[key]} may")

    def _check_object(self, manifest: Manifest, observed: Observed) -> None:
        key = key_of(manifest)
        name, ready = _named(INFERENCE_SERVICE, key), ready_of(manifest)
        try:
            service = InferenceService.parse(manifest)
        except SpecInvalid:
            if ready != ("False", Reason.SPEC_INVALID):
                self.fail(f"{name} cannot be read, and Ready says {ready}")
            return
        pinned = pin(service, observed, partial(pod_template, runtime_image=self.image))
        deployment = observed.children.get(DEPLOYMENT)
        surge = surge_of(deployment)
        step = Step(*surge) if surge is not None else Step()
        desired = desired_children(service, pinned.template, step)
        foreign = [kind for kind in CHILDREN if not self._is_free_or_ours(kind, manifest)]
        for child in desired:
            if kind_of(child) not in foreign:
                self._check_child(child)
        if pinned.create is not None or pinned.obsolete:
            self.fail(f"{name}: the revisions of its pod template are not those that are needed")
        if foreign:
            if ready != ("False", Reason.NAME_TAKEN):
                self.fail(f"{name}: the name of a child is taken, and Ready says {ready}")
            return
        assert deployment is not None
        self._check_status(service, observed, desired, pinned.pending, deployment)

    def _check_child(self, desired: Manifest) -> None:
        """A child is what a new one would be, and what others added where they do."""
        kind, key = kind_of(desired), key_of(desired)
        live = self.cluster.peek(kind, key)
        if live is None:
            self.fail(f"{_named(kind, key)} does not exist")
            return
        fresh = FakeCluster().put(desired)
        for part in ("labels", "annotations", "ownerReferences"):
            has, wants = live["metadata"].get(part) or {}, fresh["metadata"].get(part) or {}
            if has != wants and not (key in self.shared and covers(has, wants)):
                self.fail(f"{_named(kind, key)}: {part} are {has} instead of {wants}")
        if live["spec"] != fresh["spec"] and not (key in self.shared and covers(live["spec"], fresh["spec"])):
            self.fail(f"{_named(kind, key)}: {first_difference(live['spec'], fresh['spec'])}")

    def _check_status(
        self,
        service: InferenceService,
        observed: Observed,
        desired: tuple[Manifest, ...],
        pending: str,
        deployment: Manifest,
    ) -> None:
        name = _named(INFERENCE_SERVICE, service.key)
        claim = None
        if service.claim is not None:
            found = self.cluster.peek(CLAIM, (service.namespace, service.claim))
            claim = ClaimPhase(found["status"]["phase"]) if found else ClaimPhase.MISSING
        applied = {kind_of(child): remember(child, observed.children[kind_of(child)]) for child in desired}
        expected = desired_status(
            service,
            observed,
            desired=desired,
            applied=applied,
            problems=(),
            pending=pending,
            claim=claim,
            now=now(),
        )
        if not is_written(expected, observed.service):
            present = observed.service.get("status", {})
            self.fail(f"{name}: its status is not what is there: {first_difference(present, expected)}")
        wanted, counts = service.wanted, deployment.get("status", {})
        serves = wanted > 0 and self.ready(service.key) == wanted == counts["updatedReplicas"] == counts["replicas"]
        if (ready_of(observed.service)[0] == "True") != serves:
            self.fail(
                f"{name}: {self.ready(service.key)} of {wanted} pods answer, and Ready says {ready_of(observed.service)}"
            )
        if serves and service.spec.rollout.type == "Auto" and surge_of(deployment) != (1, 0):
            self.fail(f"{name}: the rollout is over, and its strategy is still {surge_of(deployment)}")

    def _is_free_or_ours(self, kind: Kind, service: Manifest) -> bool:
        child = self.cluster.peek(kind, key_of(service))
        return child is None or is_ours(child, service)


def ready_of(service: Manifest) -> tuple[str, str]:
    """Status and reason of Ready; empty when there is none yet."""
    for condition in service.get("status", {}).get("conditions", ()):
        if condition["type"] == ConditionType.READY:
            return condition["status"], condition["reason"]
    return "", ""


def controller_of(child: Manifest) -> Manifest | None:
    """The owner that is the controller, if there is one."""
    return next((one for one in child["metadata"].get("ownerReferences", ()) if one.get("controller")), None)


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is there, whatever else is."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(name in live and covers(live[name], one) for name, one in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and all(any(covers(one, other) for one in live) for other in wanted)
    return bool(live == wanted)


def first_difference(live: Any, wanted: Any, path: str = "") -> str:
    """Where two values differ first."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        for name in {**wanted, **live}:
            if live.get(name) != wanted.get(name):
                return first_difference(live.get(name), wanted.get(name), f"{path}.{name}" if path else name)
    if isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        for number, (one, other) in enumerate(zip(live, wanted, strict=True)):
            if one != other:
                return first_difference(one, other, f"{path}[{number}]")
    return f"{path} is {live!r} instead of {wanted!r}"


def _may_write(manifest: Manifest, before: Manifest) -> bool:
    """Whether what was there belongs to the owner of what was written, told without the operator's own rule."""
    owner, labels = controller_of(before), before["metadata"].get("labels", {})
    if owner is None:
        return bool(labels.get(MANAGED_BY) == OPERATOR and labels.get(OWNER_LABEL) == _owner(manifest)[1])
    claimed = controller_of(manifest)
    return claimed is None or bool(owner["uid"] == claimed["uid"])


def _owner(manifest: Manifest) -> Key:
    """The InferenceService that an object concerns."""
    namespace, name = key_of(manifest)
    if "involvedObject" in manifest:
        return namespace, manifest["involvedObject"]["name"]
    if manifest.get("kind") in {POD.kind, REVISION.kind}:
        return namespace, manifest["metadata"].get("labels", {}).get(OWNER_LABEL, "")
    return namespace, name


def _named(kind: Kind, key: Key) -> str:
    return f"{kind.kind} {key[1]}"
