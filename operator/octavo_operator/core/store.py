"""What the watches and lists have told so far, and which InferenceServices each piece of news concerns.

Three sources write here: watch events, the operator's own lists, and the answers to its own writes (so that it reads
what it wrote). They may arrive in any order; the resourceVersion decides which is newer. A deletion leaves a
tombstone until the next list, so that a late answer does not bring the object back.

A watch that lost its place (410 Gone) never reports what vanished meanwhile. `prune` drops whatever a complete list does
not hold.

Objects are kept as JSON text, a quarter of what their parsed form takes, and parsed for each look: of thousands only a
few are looked at in any second.
"""

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from octavo_operator.api.names import (
    CHILDREN,
    INFERENCE_SERVICE,
    OWNER_LABEL,
    POD,
    REVISION,
    WATCHED,
    Key,
    Kind,
    Manifest,
    key_of,
    version_of,
)
from octavo_operator.core.observed import Observed

__all__ = ["Store"]

LABELLED = (POD, REVISION)
"""Kinds of which an InferenceService has several: a label names their owner."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object: its resourceVersion, its generation, the InferenceService that it concerns, and its JSON."""

    version: int
    generation: int | None
    owner: Key
    text: bytes

    def parsed(self) -> Manifest:
        manifest: Manifest = msgspec.json.decode(self.text)
        return manifest


class Store:
    """Objects by kind and key."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[Key, _Kept]] = {kind: {} for kind in WATCHED}
        self._tombstones: dict[Kind, dict[Key, int]] = {kind: {} for kind in WATCHED}
        self._labelled: dict[Kind, defaultdict[Key, set[Key]]] = {kind: defaultdict(set) for kind in LABELLED}

    def is_news(self, kind: Kind, key: Key, version: int) -> bool:
        """Whether an object of this resourceVersion is newer than what is known of it."""
        known = self._objects[kind].get(key)
        return version > max(known.version if known else 0, self._tombstones[kind].get(key, 0))

    def upsert(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Takes in an object.

        Returns:
            The InferenceServices to look at; none when this is no news.
        """
        key, version = key_of(manifest), version_of(manifest)
        if not self.is_news(kind, key, version):
            return set()
        owners = (
            self._drop(kind, key) if key in self._objects[kind] else set()
        )  # a pod's label may name another owner now
        owner = _owner(kind, manifest)
        if owner is not None:
            text = msgspec.json.encode(_trimmed(kind, manifest))
            self._objects[kind][key] = _Kept(version, manifest["metadata"].get("generation"), owner, text)
            owners.add(owner)
            if kind in LABELLED:
                self._labelled[kind][owner].add(key)
        return owners

    def delete(self, kind: Kind, manifest: Manifest) -> set[Key]:
        """Forgets an object, unless a newer one has taken its place.

        Args:
            kind: its kind.
            manifest: its last state, with the resourceVersion of the deletion.

        Returns:
            The InferenceServices to look at; none when the object was not known.
        """
        key, version = key_of(manifest), version_of(manifest)
        self._tombstones[kind][key] = max(version, self._tombstones[kind].get(key, 0))
        known = self._objects[kind].get(key)
        if known is None or known.version > version:
            return set()
        return self._drop(kind, key)

    def prune(self, kind: Kind, namespace: str | None, listed: AbstractSet[Key], version: int) -> set[Key]:
        """Forgets what a complete list does not hold.

        Args:
            kind: the kind that was listed.
            namespace: the namespace that was listed; None for all.
            listed: the list's items, which have been taken in.
            version: the list's resourceVersion; objects that are newer stay.

        Returns:
            The InferenceServices to look at.
        """
        owners: set[Key] = set()
        for key, known in list(self._objects[kind].items()):
            if key not in listed and namespace in {None, key[0]} and known.version <= version:
                owners |= self._drop(kind, key)
        graves = self._tombstones[kind]
        self._tombstones[kind] = {key: died for key, died in graves.items() if died > version}
        return owners

    def observe(self, key: Key) -> Observed | None:
        """Everything about one InferenceService; None when it does not exist."""
        service = self._objects[INFERENCE_SERVICE].get(key)
        if service is None:
            return None
        children = {kind: self._objects[kind][key].parsed() for kind in CHILDREN if key in self._objects[kind]}
        pods, revisions = (self._of(kind, key) for kind in LABELLED)
        return Observed(service.parsed(), children, pods, revisions)

    def get(self, kind: Kind, key: Key) -> Manifest | None:
        """One object, or None."""
        kept = self._objects[kind].get(key)
        return kept.parsed() if kept else None

    def all(self, kind: Kind) -> Iterator[Manifest]:
        """All objects of a kind."""
        return (kept.parsed() for kept in self._objects[kind].values())

    def generation(self, kind: Kind, key: Key) -> int | None:
        """The generation of an object that is known; None for one that is not, or that has none."""
        kept = self._objects[kind].get(key)
        return kept.generation if kept else None

    def count(self, kind: Kind) -> int:
        """How many objects of a kind are known."""
        return len(self._objects[kind])

    def _of(self, kind: Kind, owner: Key) -> tuple[Manifest, ...]:
        return tuple(self._objects[kind][key].parsed() for key in sorted(self._labelled[kind].get(owner, ())))

    def _drop(self, kind: Kind, key: Key) -> set[Key]:
        owner = self._objects[kind].pop(key).owner
        if kind in LABELLED:
            owned = self._labelled[kind]
            owned[owner].discard(key)
            if not owned[owner]:
                del owned[owner]
        return {owner}


def _owner(kind: Kind, manifest: Manifest) -> Key | None:
    """The InferenceService that an object concerns."""
    namespace, name = key_of(manifest)
    if kind not in LABELLED:
        # Children bear the name of their owner, so that one which lost its label still finds it.
        return namespace, name
    owner = manifest["metadata"].get("labels", {}).get(OWNER_LABEL)
    return (namespace, owner) if owner else None


def _trimmed(kind: Kind, manifest: Manifest) -> Manifest:
    """The object without what nobody reads: managedFields are half of its size."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    kept = {"status": manifest.get("status", {})} if kind is POD else manifest
    return {**kept, "metadata": metadata}
