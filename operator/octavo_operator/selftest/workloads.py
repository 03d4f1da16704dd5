"""The Deployment controller, the scheduler and the kubelets of a cluster in memory.

ReplicaSets exist in the controller's head alone: the operator does not look at them. What becomes of a pod is decided
by the name of its image, one of `Fate`, so that an edit of the spec is what breaks a service and what mends it.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Any

from octavo_operator.api.names import CLAIM, DEPLOYMENT, OWNER_LABEL, POD, Key, Kind, Manifest, key_of
from octavo_operator.core.digest import digest
from octavo_operator.selftest.clock import moment, now
from octavo_operator.selftest.deployments import next_sizes, victims
from octavo_operator.testing import FakeCluster

__all__ = ["Fate", "PodModel", "Workloads"]

PLAN = '{"weightsBytes": 269000000, "kvBytesPerToken": 23040, "kvTokens": 8192, "maxConcurrency": 2.0}'
NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


class Fate(StrEnum):
    """What becomes of a pod: the name of its image."""

    WELL = "well"
    WELL_TOO = "well-too"
    CRASHES = "crashes"
    KILLED = "killed"
    IMAGE_MISSING = "image-missing"
    NO_SECRET = "no-secret"  # noqa: S105 not a password
    NO_VOLUME = "no-volume"
    NO_ROOM = "no-room"


@dataclass(slots=True)
class PodModel:
    """A pod as its kubelet knows it."""

    key: Key
    owner: Key
    revision: str
    fate: str
    claim: Key | None = None
    ready: bool = False
    placed: bool = False
    leaves: bool = False
    failed: bool = False

    @property
    def stays(self) -> bool:
        """Whether a ReplicaSet counts it."""
        return not self.leaves and not self.failed


@dataclass(slots=True)
class Workloads:
    """Everything that makes pods out of Deployments. It acts on the running loop's clock.

    Attributes:
        cluster: where it reads and writes, without faults.
        random: decides how long things take.
        gpus: how many pods have room; one that is leaving takes its until it is gone.
        start_seconds: how long a model loads, at least and at most.
        drain_seconds: how long a pod that was stopped still answers, at least and at most.
        pods: those that exist, by key.
    """

    cluster: FakeCluster
    random: Random
    gpus: int = 10_000
    start_seconds: tuple[float, float] = (0.5, 4.0)
    drain_seconds: tuple[float, float] = (0.5, 10.0)
    pods: dict[Key, PodModel] = field(default_factory=dict)
    _owned: defaultdict[Key, dict[Key, PodModel]] = field(default_factory=lambda: defaultdict(dict))
    _sizes: defaultdict[Key, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    _dirty: set[Key] = field(default_factory=set)
    _waiting: dict[Key, PodModel] = field(default_factory=dict)
    _occupied: int = 0
    _born: int = 0

    def start(self) -> None:
        """Begins to follow the cluster."""
        self.cluster.subscribe(self._hear)

    def of(self, owner: Key) -> list[PodModel]:
        """The pods of one InferenceService."""
        return list(self._owned.get(owner, {}).values())

    def ready(self, owner: Key) -> int:
        """How many pods of one InferenceService answer and are not being stopped."""
        return sum(pod.ready and pod.stays for pod in self.of(owner))

    def crash(self, pod: PodModel) -> None:
        """A container ends, and is started again."""
        if not pod.ready:
            return
        pod.ready = False
        ended = {"terminated": {"exitCode": 139, "reason": "Error", "message": "segmentation fault"}}
        self._write(pod, _server(waiting={"reason": "CrashLoopBackOff"}, last=ended), Ready="False")
        self._later(self.start_seconds, pod, self._serve)

    def mend(self, pod: PodModel) -> None:
        """What its containers waited for is there."""
        pod.fate = Fate.WELL
        if pod.placed:
            self._set_up(pod)
        self.schedule()

    def evict(self, pod: PodModel) -> None:
        """The node is short of something; another pod takes the place of this one, which stays behind as a record."""
        if pod.leaves or pod.failed:
            return
        pod.failed, pod.ready = True, False
        self._free(pod)
        self._write(
            pod, {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}, Ready="False"
        )

    def schedule(self) -> None:
        """Finds nodes for the pods that wait; call it when a claim or a GPU has come."""
        for pod in list(self._waiting.values()):
            obstacle = self._obstacle(pod)
            if obstacle:
                self._write(pod, {}, PodScheduled=("False", obstacle))
                continue
            del self._waiting[pod.key]
            pod.placed = True
            self._occupied += 1
            self._write(pod, {}, PodScheduled="True", PodReadyToStartContainers="False", Ready="False")
            self._later((0.05, 0.5), pod, self._set_up)

    def _obstacle(self, pod: PodModel) -> str:
        if pod.claim is not None and self.cluster.peek(CLAIM, pod.claim) is None:
            return f'persistentvolumeclaim "{pod.claim[1]}" not found'
        return NO_ROOM if pod.fate == Fate.NO_ROOM or self._occupied >= self.gpus else ""

    def _hear(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        if kind is DEPLOYMENT:
            if event_type == "DELETED":
                self._sizes.pop(key_of(manifest), None)
            self._mark(key_of(manifest))
        elif kind is POD and event_type == "DELETED":
            pod = self.pods.pop(key_of(manifest), None)
            if pod is not None:
                del self._owned[pod.owner][pod.key]
                self._free(pod)
                self._mark(pod.owner)
        elif kind is POD:
            self._mark(self.pods[key_of(manifest)].owner)

    def _mark(self, owner: Key) -> None:
        if owner not in self._dirty:
            self._dirty.add(owner)
            asyncio.get_running_loop().call_later(self.random.uniform(0.01, 0.3), self._sync, owner)

    def _sync(self, key: Key) -> None:
        """One sync of the Deployment controller and of its ReplicaSets."""
        self._dirty.discard(key)
        deployment = self.cluster.peek(DEPLOYMENT, key)
        if deployment is None or OWNER_LABEL not in deployment["spec"]["template"]["metadata"]["labels"]:
            return  # somebody else's is nobody's business here
        spec = deployment["spec"]
        applied = digest(spec["template"])
        pods = [pod for pod in self.of(key) if pod.stays]
        available = Counter(pod.revision for pod in pods if pod.ready)
        sizes = self._sizes[key]
        rolling = spec["strategy"].get("rollingUpdate")
        if rolling is not None:
            strategy = rolling["maxSurge"], rolling["maxUnavailable"]
            self._sizes[key] = sizes = next_sizes(sizes, applied, available, wanted=spec["replicas"], strategy=strategy)
        else:
            sizes |= dict.fromkeys(sizes, 0)
            sizes[applied] = 0 if any(pod.revision != applied for pod in self.of(key)) else spec["replicas"]
        for revision, size in list(sizes.items()):
            present = [pod for pod in pods if pod.revision == revision]
            for pod in victims(present, size):
                self._stop(pod)
            for _ in range(size - len(present)):
                self._create(deployment, key, revision)
            if size == 0 and not present:
                del sizes[revision]
        self._tell_deployment(key, deployment, applied)

    def _tell_deployment(self, key: Key, deployment: Manifest, applied: str) -> None:
        pods = [pod for pod in self.of(key) if pod.stays]
        updated = [pod for pod in pods if pod.revision == applied]
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": len(updated),
            "readyReplicas": sum(pod.ready for pod in pods),
        }
        self.cluster.edit(DEPLOYMENT, key, lambda live: live.update(status=status))

    def _create(self, deployment: Manifest, owner: Key, revision: str) -> None:
        template = deployment["spec"]["template"]
        self._born += 1
        key = owner[0], f"{owner[1]}-{revision[:6]}-{self._born}"
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in template["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        claim = (key[0], claims[0]) if claims else None
        pod = PodModel(key, owner, revision, template["spec"]["containers"][0]["image"], claim)
        self.pods[key] = self._owned[owner][key] = pod
        metadata = {
            "name": key[1],
            "namespace": key[0],
            "labels": dict(template["metadata"]["labels"]),
            "ownerReferences": [{"kind": "Deployment", "controller": True, "uid": deployment["metadata"]["uid"]}],
        }
        self.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}})
        self._waiting[key] = pod
        self._later((0.05, 0.5), pod, lambda _: self.schedule())

    def _set_up(self, pod: PodModel) -> None:
        """Volumes and network are there, the plan has run, the server starts, as far as its fate lets it."""
        match pod.fate:
            case Fate.NO_VOLUME:
                return
            case Fate.IMAGE_MISSING:
                told = _server(waiting={"reason": "ImagePullBackOff", "message": "ErrImagePull: not found"})
            case Fate.NO_SECRET:
                told = _server(waiting={"reason": "CreateContainerConfigError", "message": 'secret "token" not found'})
            case Fate.CRASHES | Fate.KILLED:
                self._later((0.5, 2.0), pod, self._crash_for_ever)
                told = _server(running={})
            case _:
                self._later(self.start_seconds, pod, self._serve)
                told = _server(running={})
        plan = {"name": "plan", "state": {"terminated": {"exitCode": 0, "message": PLAN}}}
        self._write(pod, told | {"initContainerStatuses": [plan]}, PodReadyToStartContainers="True")

    def _crash_for_ever(self, pod: PodModel) -> None:
        ended = {"exitCode": 137, "reason": "OOMKilled"}
        if pod.fate == Fate.CRASHES:
            message = '{"code": "BadWeights", "message": "model.safetensors is cut short"}'
            ended = {"exitCode": 12, "reason": "Error", "message": message}
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
        self._write(pod, _server(waiting=waiting, last={"terminated": ended}), Ready="False")

    def _serve(self, pod: PodModel) -> None:
        pod.ready = True
        self._write(pod, _server(running={}, ready=True) | {"phase": "Running"}, Ready="True")

    def _stop(self, pod: PodModel) -> None:
        """What a deletion does: a pod without a node is gone at once, another one drains."""
        if not pod.placed:
            self.cluster.delete(POD, pod.key)
            return
        pod.leaves = True
        ends = (now() + timedelta(seconds=self.drain_seconds[1])).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.cluster.edit(POD, pod.key, lambda live: live["metadata"].update(deletionTimestamp=ends))
        self._later(self.drain_seconds, pod, lambda leaving: self.cluster.delete(POD, leaving.key), leaving=True)

    def _free(self, pod: PodModel) -> None:
        self._waiting.pop(pod.key, None)
        if pod.placed:
            pod.placed = False
            self._occupied -= 1
            asyncio.get_running_loop().call_soon(self.schedule)

    def _later(
        self, between: tuple[float, float], pod: PodModel, act: Callable[[PodModel], Any], *, leaving: bool = False
    ) -> None:
        def act_if_there() -> None:
            if self.pods.get(pod.key) is pod and pod.leaves == leaving and not pod.failed:
                act(pod)

        asyncio.get_running_loop().call_later(self.random.uniform(*between), act_if_there)

    def _write(self, pod: PodModel, news: Manifest, **conditions: str | tuple[str, str]) -> None:
        def change(live: Manifest) -> None:
            status = live["status"]
            status |= news
            told = {one["type"]: one for one in status.get("conditions", ())}
            for kind, value in conditions.items():
                state, message = value if isinstance(value, tuple) else (value, None)
                before = told.get(kind)
                since = before["lastTransitionTime"] if before and before["status"] == state else moment()
                told[kind] = {"type": kind, "status": state, "lastTransitionTime": since}
                if message is not None:
                    told[kind]["message"] = message
            status["conditions"] = list(told.values())

        self.cluster.edit(POD, pod.key, change)


def _server(*, ready: bool = False, last: Manifest | None = None, **state: Manifest) -> Manifest:
    status = {"name": "server", "ready": ready, "state": state}
    return {"containerStatuses": [status | ({"lastState": last} if last else {})]}
