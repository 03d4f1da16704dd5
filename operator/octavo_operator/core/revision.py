"""The pod template that is applied: pinned in a ControllerRevision, so that an upgrade of the operator rolls nothing.

Invariants (tests/operator_tests/test_revision.py):

- What is applied is the template as it was rendered when the user last changed something that decides it, or last asked
  for an update. Another rendering, by a newer operator or another default image, is shown and not applied.
- Whether the user changed something that decides the template is told by today's rendering of both specs, the pinned
  one and the present one. So a new default of the CRD is no change, nor is `replicas`, and no list of fields is needed.
- A spec that returns while pods of its revision still run returns to that revision, and to its pods.
- Kept are the revision that is applied and those of running pods: their number is bounded by that of the pods.

A revision's data never change: the API server sees to it, and compares bytes, so that only data which it has written
itself (server-side apply; not a POST) can be touched again, as its garbage collector does with orphans. They are the spec, the template, and the value of the
annotation that had asked for an update, so that each value asks once. ControllerRevisions of StatefulSets have the same
standing: whoever may write them in a namespace decides what runs there.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from octavo_operator.api.names import INFERENCE_SERVICE, TEMPLATE_LABEL, UPDATE_ANNOTATION, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import revision
from octavo_operator.core.digest import digest
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import is_ours
from octavo_operator.errors import SpecInvalid

__all__ = ["Pinned", "pin"]

SHOWN_DIFFERENCES = 5
"""How many differences a message names."""

SHOWN_CHARACTERS = 80
"""How much of a value a message shows."""

Render = Callable[[InferenceService], Manifest]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Which template is applied, and what must be done for it.

    Attributes:
        template: the pod template to apply.
        create: the revision to apply before that, if any.
        obsolete: revisions to delete.
        pending: what an update would change and how to ask for it; empty when it would change nothing.
    """

    template: Manifest
    create: Manifest | None
    obsolete: tuple[Manifest, ...]
    pending: str


@dataclass(frozen=True, slots=True)
class _Revision:
    manifest: Manifest
    number: int
    spec: Manifest
    template: Manifest
    update: str

    @classmethod
    def read(cls, manifest: Manifest) -> Self | None:
        """None for data that are not ours."""
        try:
            data = manifest["data"]
            data["template"]["metadata"]["labels"][TEMPLATE_LABEL]
            return cls(manifest, manifest["revision"], data["spec"], data["template"], data["update"])
        except (KeyError, TypeError):
            return None

    @property
    def label(self) -> str:
        """The label of its pods."""
        label: str = self.template["metadata"]["labels"][TEMPLATE_LABEL]
        return label


def pin(service: InferenceService, observed: Observed, render: Render) -> Pinned:
    """Decides which template is applied.

    Args:
        service: the object.
        observed: what exists, the object as it was observed included.
        render: today's rendering of an object's pod template.
    """
    present = [one for one in observed.revisions if is_ours(one, observed.service)]
    known = [one for manifest in present if (one := _Revision.read(manifest)) is not None]
    rendered = render(service)
    asked = observed.service["metadata"].get("annotations", {}).get(UPDATE_ANNOTATION)
    kept = max(
        (one for one in known if _is_same(service, one.spec, observed.service, rendered, render)),
        key=lambda one: one.number,
        default=None,
    )
    if kept is not None and asked in {None, kept.update}:
        template, data = kept.template, {"spec": kept.spec, "template": kept.template, "update": kept.update}
    else:
        template, data = rendered, {"spec": observed.service["spec"], "template": rendered, "update": asked or ""}
    current = revision(service, data, max((one.number for one in known), default=0) + 1)
    name = current["metadata"]["name"]
    running = {pod["metadata"].get("labels", {}).get(TEMPLATE_LABEL) for pod in observed.pods}
    needed = {one.manifest["metadata"]["name"] for one in known if one.label in running and one is not kept} | {name}
    return Pinned(
        template=template,
        # One whose owner was lost is adopted; one of an earlier owner bears another name, is copied, and then obsolete.
        create=None if any(one["metadata"]["name"] == name and _is_owned(one) for one in present) else current,
        obsolete=tuple(one for one in present if one["metadata"]["name"] not in needed),
        pending=_pending(service, template, rendered),
    )


def _is_owned(manifest: Manifest) -> bool:
    return bool(manifest["metadata"].get("ownerReferences"))


def _is_same(service: InferenceService, spec: Manifest, manifest: Manifest, rendered: Manifest, render: Render) -> bool:
    """Whether a spec decides the same template as the present one."""
    if spec == manifest["spec"]:
        return True
    try:
        before = InferenceService.parse({"metadata": manifest["metadata"], "spec": spec})
    except SpecInvalid:
        return False
    return before.key == service.key and render(before) == rendered


def _pending(service: InferenceService, template: Manifest, rendered: Manifest) -> str:
    if template == rendered:
        return ""
    differences = list(_differences("", template, rendered))
    shown = "; ".join(differences[:SHOWN_DIFFERENCES])
    more = len(differences) - SHOWN_DIFFERENCES
    resource = f"{INFERENCE_SERVICE.plural}.{INFERENCE_SERVICE.group}"
    command = f"kubectl annotate --overwrite {resource}/{service.name} {UPDATE_ANNOTATION}={digest(rendered)}"
    return (
        f"the pods run as an earlier operator, or earlier settings of it, made them. An update changes {shown}"
        + (f"; and {more} more" if more > 0 else "")
        + f". It comes with the next change of the spec that concerns the pods, or with `{command} --namespace {service.namespace}`"
    )


def _differences(path: str, before: Any, after: Any) -> Iterator[str]:
    """The values that differ, each with its path."""
    if path == f"metadata.labels.{TEMPLATE_LABEL}":
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from _differences(f"{path}.{name}" if path else name, before.get(name), after.get(name))
    elif _named(before) and _named(after):
        was, will = ({item["name"]: item for item in items} for items in (before, after))
        for name in was | will:
            yield from _differences(f"{path}[{name}]", was.get(name), will.get(name))
    elif before != after:
        yield f"{path}: {_shown(before)} to {_shown(after)}"


def _named(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) and "name" in item for item in items)


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
