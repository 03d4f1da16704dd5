"""FakeCluster: an API server in memory, for tests of operator logic and for faults that a real one has rarely.

It has what the operator relies on: server-side apply with ownership, the status subresource, generations and
resourceVersions, preconditions on the uid, rewriting of quantities, defaults, garbage collection by ownerReferences,
label selectors, watch events. It keeps the promises of promises.py, as a real API server does.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from octavo_operator.api.names import (
    CHILDREN,
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    MANAGED_BY,
    OPERATOR,
    OWNER_LABEL,
    POD,
    REVISION,
    SERVICE,
    SERVICE_ACCOUNT,
    Key,
    Kind,
    Manifest,
    key_of,
)
from octavo_operator.cluster.port import Listed, Page
from octavo_operator.errors import ClusterError, Gone, Rejected, Stale
from octavo_operator.merging import copied, merge_applied, merge_patch

__all__ = ["FakeCluster", "inference_service"]

KINDS = {
    kind.kind: kind for kind in (INFERENCE_SERVICE, *CHILDREN, POD, CLAIM, SERVICE_ACCOUNT, EVENT, REVISION, LEASE)
}

PAGE = 2
"""Objects per page of a list: so few that tests meet a second page."""


def inference_service(name: str = "chat", namespace: str = "default", **spec: Any) -> Manifest:
    """An InferenceService as a user writes it, with the defaults that the API server would add."""
    given = {"model": {"uri": "pvc://models/SmolLM2-135M-Instruct"}, **spec}
    defaults = {
        "replicas": 1,
        "parallelism": {"tensor": 1, "nodes": 1},
        "rollout": {"type": "Auto", "drainSeconds": 120} | given.pop("rollout", {}),
        "service": {"type": "ClusterIP", "port": 80} | given.pop("service", {}),
    }
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": defaults | given,
    }


class FakeCluster:
    """A ClusterPort without a cluster.

    Args:
        moment: the time of creation that objects get.

    Attributes:
        namespaces: those that exist; applying into another one fails.
        writes: how many requests changed an object or would have.
        refusals: how many requests were refused by `refuse`.
    """

    def __init__(self, moment: Callable[[], str] = lambda: "2026-01-01T00:00:00Z") -> None:
        self._moment = moment
        self.namespaces = {"default"}
        self.writes = 0
        self.refusals = 0
        self._objects: dict[Kind, dict[Key, Manifest]] = {kind: {} for kind in KINDS.values()}
        self._applied: defaultdict[tuple[Kind, Key], dict[str, Manifest]] = defaultdict(dict)
        self._version = 1  # no object of an API server has this one
        self._uids = itertools.count(1)
        self._tokens = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self._dead: set[str] = set()
        self._faults: list[tuple[str, Kind, ClusterError]] = []
        self._refused: dict[tuple[Kind, Key], ClusterError] = {}
        self._sinks: list[Callable[[Kind, str, Manifest], None]] = []

    def fail_on(self, method: str, kind: Kind, *errors: ClusterError) -> None:
        """Makes the next calls of a method on a kind raise, one error each."""
        self._faults += [(method, kind, error) for error in errors]

    def refuse(self, kind: Kind, key: Key, error: ClusterError) -> None:
        """Makes every apply of an object raise."""
        self._refused[kind, key] = error

    def refuse_nothing(self) -> None:
        """Ends all of this."""
        self._refused.clear()

    def subscribe(self, sink: Callable[[Kind, str, Manifest], None]) -> None:
        """Sends (kind, event type, object) of every later change; the object is shared, and must not be changed."""
        self._sinks.append(sink)

    def unsubscribe(self) -> None:
        """Sends nothing more to anyone: every watch is late."""
        self._sinks.clear()

    def put(self, manifest: Manifest) -> Manifest:
        """Creates or replaces an object the way another client would, status included."""
        kind, key = KINDS[manifest["kind"]], key_of(manifest)
        return self._store(kind, key, copied(manifest))

    def edit(self, kind: Kind, key: Key, change: Callable[[Manifest], object]) -> Manifest:
        """Lets another client change an object in place."""
        edited = copied(self._objects[kind][key])
        change(edited)
        return self._store(kind, key, edited)

    def delete(self, kind: Kind, key: Key, *, collect: bool = True) -> None:
        """Deletes an object; what it owns too, unless `collect` is left for later."""
        gone = self._objects[kind].pop(key)
        self._dead.add(gone["metadata"]["uid"])
        self._applied.pop((kind, key), None)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell(kind, "DELETED", gone)
        if collect:
            self.collect()

    def collect(self) -> None:
        """Deletes whatever has lost all its owners, as the garbage collector does."""
        for kind, objects in self._objects.items():
            for key, one in list(objects.items()):
                owners = one["metadata"].get("ownerReferences", ())
                if owners and key in objects and all(owner["uid"] in self._dead for owner in owners):
                    self.delete(kind, key)

    def peek(self, kind: Kind, key: Key) -> Manifest | None:
        """One object, as `get` answers without faults."""
        return copied(self._objects[kind].get(key))

    def all(self, kind: Kind) -> list[Manifest]:
        """Every object of a kind."""
        return [copied(one) for one in self._objects[kind].values()]

    def listed(self, kind: Kind) -> list[Manifest]:
        """Every object of a kind that the operator lists and watches."""
        return [copied(one) for one in self._objects[kind].values() if _is_listed(kind, one)]

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        """See ClusterPort."""
        self._raise_fault("list_page", kind)
        if token:
            return self._pages.pop(token)
        items = [
            Listed.of(one)
            for one in self.listed(kind)
            if namespace in {None, key_of(one)[0]}
            and owner in {None, one["metadata"].get("labels", {}).get(OWNER_LABEL)}
        ]
        return self._paged(items, self._version)

    def _paged(self, items: list[Listed], version: int) -> Page:
        """The first page; the others wait, as of now, for whoever asks for them."""
        page = Page((), version)
        for start in reversed(range(0, len(items), PAGE)):
            token = str(next(self._tokens)) if page.items else ""
            if token:
                self._pages[token] = page
            page = Page(tuple(items[start : start + PAGE]), version, token)
        return page

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See ClusterPort."""
        self._raise_fault("get", kind)
        return self.peek(kind, (namespace, name))

    async def apply(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        kind, key = KINDS[manifest["kind"]], key_of(manifest)
        self._raise_fault("apply", kind)
        self.writes += 1
        if (kind, key) in self._refused:
            self.refusals += 1
            raise self._refused[kind, key]
        if key[0] not in self.namespaces:
            raise Gone(f'namespaces "{key[0]}" not found')
        live = self._objects[kind].get(key)
        self._check_uid(manifest, live)
        sent = copied({name: value for name, value in manifest.items() if name != "status"})
        version = sent["metadata"].pop("resourceVersion", None)
        if live is not None and version not in {None, live["metadata"]["resourceVersion"]}:
            raise Stale(f'{kind.plural} "{key[1]}" has been modified; apply your changes to the latest version')
        merged = merge_applied(live, manager, sent, self._applied[kind, key])
        if kind is SERVICE:
            _check_port_names(merged)
        self._applied[kind, key][manager] = sent
        return copied(self._store(kind, key, merged))

    async def remove(self, kind: Kind, manifest: Manifest) -> None:
        """See ClusterPort."""
        self._raise_fault("remove", kind)
        self.writes += 1
        key = key_of(manifest)
        if key not in self._objects[kind]:
            raise Gone(f'{kind.plural} "{key[1]}" not found')
        self._check_uid(manifest, self._objects[kind][key])
        self.delete(kind, key)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest, *, manager: str) -> Manifest:  # noqa: ARG002 ownership by merge patch is not modelled
        """See ClusterPort."""
        self._raise_fault("merge", kind)
        self.writes += 1
        if (namespace, name) not in self._objects[kind]:
            raise Gone(f'{kind.plural} "{name}" not found')
        return self.edit(kind, (namespace, name), lambda live: merge_patch(live, patch))

    async def scale(self, kind: Kind, manifest: Manifest, replicas: int, *, manager: str) -> None:  # noqa: ARG002 ownership by merge patch is not modelled
        """See ClusterPort."""
        self._raise_fault("scale", kind)
        self.writes += 1
        key = key_of(manifest)
        if key not in self._objects[kind]:
            raise Gone(f'{kind.plural} "{key[1]}" not found')
        if self._objects[kind][key]["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise Stale("the object has been modified")
        self.edit(kind, key, lambda live: live["spec"].update(replicas=replicas))

    async def update(self, manifest: Manifest) -> Manifest:
        """See ClusterPort."""
        kind, key = KINDS[manifest["kind"]], key_of(manifest)
        self._raise_fault("update", kind)
        self.writes += 1
        if key[0] not in self.namespaces:
            raise Gone(f'namespaces "{key[0]}" not found')
        live = self._objects[kind].get(key)
        version = manifest["metadata"].get("resourceVersion")
        if version != (live and live["metadata"]["resourceVersion"]):
            raise Stale(f'{kind.plural} "{key[1]}" has been modified; apply your changes to the latest version')
        return copied(self._store(kind, key, copied(manifest)))

    async def record(self, event: Manifest) -> None:
        """See ClusterPort."""
        self._raise_fault("record", EVENT)
        self.writes += 1
        namespace, name = key_of(event)
        if namespace not in self.namespaces:
            raise Gone(f'namespaces "{namespace}" not found')
        present = self._objects[EVENT].get((namespace, name))
        if present is None:
            self.put(event)
            return
        news = {"message": event["message"], "lastTimestamp": event["lastTimestamp"], "count": present["count"] + 1}
        self.edit(EVENT, (namespace, name), lambda live: merge_patch(live, news))

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        kind, key = KINDS[manifest["kind"]], key_of(manifest)
        self._raise_fault("apply_status", kind)
        self.writes += 1
        live = self._objects[kind].get(key)
        if live is None:
            raise Gone(f'{kind.plural} "{key[1]}" not found')
        self._check_uid(manifest, live)
        sent = copied({"status": manifest["status"]})
        writer = f"{manager}/status"
        merged = merge_applied(live, writer, sent, self._applied[kind, key])
        self._applied[kind, key][writer] = sent
        return copied(self._store(kind, key, merged))

    def _check_uid(self, manifest: Manifest, live: Manifest | None) -> None:
        uid = manifest["metadata"].get("uid")
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise Stale(f"uid mismatch: {uid}")

    def _raise_fault(self, method: str, kind: Kind) -> None:
        for fault in self._faults:
            if fault[:2] == (method, kind):
                self._faults.remove(fault)
                raise fault[2]

    def _store(self, kind: Kind, key: Key, manifest: Manifest) -> Manifest:
        live = self._objects[kind].get(key)
        metadata = manifest["metadata"]
        if live is None:
            metadata |= {"uid": f"uid-{next(self._uids)}", "generation": 1, "creationTimestamp": self._moment()}
        else:
            metadata |= {name: live["metadata"][name] for name in ("uid", "generation", "creationTimestamp")}
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        _as_stored(kind, manifest)
        if manifest == live:
            return live
        if live is not None and manifest.get("spec") != live.get("spec"):
            metadata["generation"] += 1
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[kind][key] = manifest
        was_listed = live is not None and _is_listed(kind, live)
        if _is_listed(kind, manifest):
            self._tell(kind, "MODIFIED" if was_listed else "ADDED", manifest)
        elif was_listed:
            self._tell(kind, "DELETED", manifest)  # what a watch with a selector sees
        return manifest

    def _tell(self, kind: Kind, event_type: str, manifest: Manifest) -> None:
        told = copied(manifest)
        for sink in self._sinks:
            sink(kind, event_type, told)


def _is_listed(kind: Kind, manifest: Manifest) -> bool:
    labels: dict[str, str] = manifest["metadata"].get("labels", {})
    return kind == INFERENCE_SERVICE or labels.get(MANAGED_BY) == OPERATOR


def _check_port_names(service: Manifest) -> None:
    names = [port.get("name") for port in service["spec"]["ports"]]
    if len(set(names)) < len(names):
        raise Rejected(f'Service "{service["metadata"]["name"]}" is invalid: duplicate port names {names}', status=422)


def _as_stored(kind: Kind, manifest: Manifest) -> None:
    """Some of the rewriting and defaulting of an API server: what a naive comparison trips over."""
    if kind is DEPLOYMENT:
        pod = manifest["spec"]["template"]["spec"]
        pod.setdefault("restartPolicy", "Always")
        pod.setdefault("dnsPolicy", "ClusterFirst")
        for container in pod.get("initContainers", []) + pod["containers"]:
            container.setdefault("imagePullPolicy", "IfNotPresent")
            resources = container.get("resources", {})
            for amounts in (resources.get("limits", {}), resources.get("requests", {})):
                for name, amount in amounts.items():
                    amounts[name] = _canonical(str(amount))
    elif kind is SERVICE:
        manifest["spec"].setdefault("clusterIP", "10.0.0.1")
        manifest["spec"].setdefault("sessionAffinity", "None")


def _canonical(quantity: str) -> str:
    if quantity.endswith("m") and int(quantity[:-1]) % 1000 == 0:
        return str(int(quantity[:-1]) // 1000)
    if quantity.endswith("Mi") and int(quantity[:-2]) % 1024 == 0:
        return f"{int(quantity[:-2]) // 1024}Gi"
    return quantity
