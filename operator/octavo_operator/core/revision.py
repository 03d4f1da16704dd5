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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from octavo_operator.api.names import (
    DECISIONS_ANNOTATION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    TEMPLATE_LABEL,
    UPDATE_ANNOTATION,
    Manifest,
)
from octavo_operator.api.service import InferenceService
from octavo_operator.core.desired import revision
from octavo_operator.core.differences import differences, told
from octavo_operator.core.digest import digest
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import is_ours
from octavo_operator.errors import SpecInvalid

__all__ = ["Pinned", "applied_template", "label_of", "pin"]

Render = Callable[[InferenceService], Manifest]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Which template is applied, and what must be done for it.

    Attributes:
        template: the pod template to apply.
        create: the revision to apply before that, if any.
        obsolete: revisions to delete.
        pending: what an update would change and how to ask for it; empty when it would change nothing.
        change: why the Deployment gets another template than it has; empty when it gets none, or is only made.
    """

    template: Manifest
    create: Manifest | None
    obsolete: tuple[Manifest, ...]
    pending: str
    change: str = ""


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
            label_of(data["template"])
            return cls(manifest, manifest["revision"], data["spec"], data["template"], data["update"])
        except (KeyError, TypeError):
            return None

    @property
    def label(self) -> str:
        """The label of its pods."""
        return label_of(self.template)


def pin(service: InferenceService, observed: Observed, render: Render) -> Pinned:
    """Decides which template is applied.

    Args:
        service: the object.
        observed: what exists, the object as it was observed included.
        render: today's rendering of an object's pod template.
    """
    ours = [one for one in observed.revisions if is_ours(one, observed.service)]
    present = [one for one in ours if not _is_record(one, service.uid)]
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
    others = [one for one in known if one is not kept and one.label != label_of(template)]
    needed = {one.manifest["metadata"]["name"] for one in others if one.label in running} | {name}
    return Pinned(
        template=template,
        # One whose owner was lost is adopted; one of an earlier owner bears another name, is copied, and then obsolete.
        create=None if any(one["metadata"]["name"] == name and _is_owned(one) for one in present) else current,
        obsolete=tuple(one for one in present if one["metadata"]["name"] not in needed),
        pending=_pending(service, template, rendered),
        change=_change(observed, known, template, asked=asked, is_kept=template is not rendered),
    )


def applied_template(observed: Observed) -> str | None:
    """The label of the template that the Deployment has; None when there is no Deployment of ours."""
    deployment = observed.children.get(DEPLOYMENT)
    if deployment is None or not is_ours(deployment, observed.service):
        return None
    label: str | None = deployment["spec"]["template"]["metadata"].get("labels", {}).get(TEMPLATE_LABEL)
    return label


def label_of(template: Manifest) -> str:
    """The digest in the label of a template's pods."""
    label: str = template["metadata"]["labels"][TEMPLATE_LABEL]
    return label


def _is_record(manifest: Manifest, uid: str) -> bool:
    """Whether this is the record of the object's decisions; that of a predecessor is nobody's."""
    metadata = manifest["metadata"]
    is_record = DECISIONS_ANNOTATION in metadata.get("annotations", {})
    return is_record and any(owner["uid"] == uid for owner in metadata.get("ownerReferences", ()))


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


def _change(
    observed: Observed, known: Sequence[_Revision], template: Manifest, *, asked: str | None, is_kept: bool
) -> str:
    label = applied_template(observed)
    if label in {None, label_of(template)}:
        return ""
    before = max((one for one in known if one.label == label), key=lambda one: one.number, default=None)
    if before is None:
        return "the revision that keeps the template of the Deployment is not there, so it was rendered anew"
    changes = [text for _, text in differences(before.spec, observed.service["spec"])]
    if is_kept:
        return f"the spec is again as it was when the other template was made, whose pods still run: {told(changes)}"
    if asked not in {None, before.update}:
        return f"an update was asked for: annotation {UPDATE_ANNOTATION}={asked}"
    return f"the spec changed: {told(changes)}"


def _pending(service: InferenceService, template: Manifest, rendered: Manifest) -> str:
    if template == rendered:
        return ""
    shown = told(
        [text for path, text in differences(template, rendered) if path != f"metadata.labels.{TEMPLATE_LABEL}"]
    )
    resource = f"{INFERENCE_SERVICE.plural}.{INFERENCE_SERVICE.group}"
    command = f"kubectl annotate --overwrite {resource}/{service.name} {UPDATE_ANNOTATION}={digest(rendered)}"
    return (
        f"the pods run as an earlier operator, or earlier settings of it, made them. An update changes {shown}. "
        f"It comes with the next change of the spec that concerns the pods, or with `{command} --namespace {service.namespace}`"
    )
