"""What the operator asks of a cluster."""

from dataclasses import dataclass
from typing import Protocol, Self

import msgspec

from octavo_operator.api.names import Key, Kind, Manifest, key_of, version_of

__all__ = ["ABSENT", "ClusterPort", "Listed", "Page"]


ABSENT = "1"
"""A resourceVersion that no object has: as a precondition it lets an apply only create."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a list. It bears no apiVersion and no kind.

    Lists are made again and again, and most of what they hold is known: it is not parsed.

    Attributes:
        key: its (namespace, name).
        version: its resourceVersion.
        text: its JSON.
    """

    key: Key
    version: int
    text: bytes | msgspec.Raw

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """An object as a list has it."""
        item = {name: value for name, value in manifest.items() if name not in {"apiVersion", "kind"}}
        return cls(key_of(manifest), version_of(manifest), msgspec.json.encode(item))

    def manifest(self) -> Manifest:
        """The object."""
        manifest: Manifest = msgspec.json.decode(self.text)
        return manifest


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a complete list.

    Attributes:
        items: the objects.
        version: the resourceVersion at which the list is complete, the same for all its pages.
        more: asks for the next page; empty on the last.
    """

    items: tuple[Listed, ...]
    version: int
    more: str = ""


class ClusterPort(Protocol):
    """Reading and applying objects. Every method raises a ClusterError."""

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        """A page of all InferenceServices, or of all labelled objects of another kind.

        Thousands of objects would take hundreds of megabytes at once, parsed as they are.

        Args:
            kind: their kind.
            namespace: their namespace; None for all.
            token: `more` of the page before; empty for the first.
            owner: the name of the InferenceService that the objects are labelled with; None for all.
        """

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None when there is none."""

    async def apply(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply, taking over fields that other managers own.

        A `metadata.uid` in the manifest is a precondition: Stale is raised when the object is another one by now. A
        `metadata.resourceVersion` is one where there is an object: Stale is raised when it has another version.

        Returns:
            The object as it is now.
        """

    async def remove(self, kind: Kind, manifest: Manifest) -> None:
        """Deletes an object. Stale is raised when the one of that name is another one by now, Gone when there is none."""

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest, *, manager: str) -> Manifest:
        """JSON merge patch: lists are replaced whole, whoever owns their items.

        Returns:
            The object as it is now.
        """

    async def scale(self, kind: Kind, manifest: Manifest, replicas: int, *, manager: str) -> None:
        """Sets an object's replicas through its /scale, as `kubectl scale` does.

        Stale is raised when it is not of the manifest's resourceVersion any more, Gone when there is none. (A uid would
        be no precondition there: the API server does not look at it.)
        """

    async def update(self, manifest: Manifest) -> Manifest:
        """Writes an object as a whole, whoever owns its fields: creates it when it bears no resourceVersion.

        Stale is raised when one exists already, or when the resourceVersion is not the present one any more. An object
        that was deleted meanwhile is Stale or Gone.

        Returns:
            The object as it is now.
        """

    async def record(self, event: Manifest) -> None:
        """Creates an Event; when one of its name exists, counts that one up and gives it this message and time."""

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Server-side apply of an InferenceService's status; what the manager wrote before and leaves out goes.

        Returns:
            The object as it is now.
        """
