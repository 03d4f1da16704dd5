"""What the operator knows about one InferenceService at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_operator.api.names import Kind, Manifest

__all__ = ["ClaimPhase", "Observed"]


class ClaimPhase(StrEnum):
    """State of the PersistentVolumeClaim that holds the model."""

    MISSING = "Missing"
    PENDING = "Pending"
    BOUND = "Bound"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class Observed:
    """The object, the labelled children that bear its name, and its pods.

    Attributes:
        service: the InferenceService, as the API server returned it.
        children: its children by kind; whether they belong to it is not said.
        pods: its pods, trimmed to what the status needs.
        revisions: the pod templates that were pinned for it.
    """

    service: Manifest
    children: Mapping[Kind, Manifest] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    revisions: tuple[Manifest, ...] = ()
