"""What an InferenceService asks for beyond a restricted pod, and why it does not get it.

Whoever may create an InferenceService must not gain more than that, while the operator, which may create Deployments
everywhere, acts for all of them. The chart's admission policy refuses the same at the door, where it is installed
(tests/contract_tests and the e2e stories hold the two together); this one holds everywhere.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import ALLOWED_LABEL, Manifest
from octavo_operator.api.privileges import Privilege
from octavo_operator.api.service import InferenceService
from octavo_operator.core.containers import Cause

__all__ = ["account_refusal", "refusal"]

ROOT = 0
HARMLESS_CAPABILITY = "NET_BIND_SERVICE"
"""The one that the restricted Pod Security Standard lets a container add."""


def refusal(service: InferenceService, allowed: Collection[Privilege]) -> Cause | None:
    """The first privilege that an object asks for and the operator was not told to allow; None when there is none."""
    for privilege, field in _asked(service):
        if privilege not in allowed:
            message = (
                f"spec.podTemplate.spec.{field} is not allowed: it reaches beyond the pod. Remove it, or start the "
                f"operator with --allow={privilege} (the chart's value allow)"
            )
            return Cause(Reason.NOT_ALLOWED, message)
    return None


def account_refusal(namespace: str, name: str, account: Manifest | None) -> Cause | None:
    """Why pods may not run under a ServiceAccount; None when they may.

    Args:
        namespace: its namespace.
        name: its name.
        account: the object; None when there is none.
    """
    who = f"ServiceAccount {namespace}/{name}"
    if account is None:
        message = f"{who} does not exist; create it, or change spec.podTemplate.spec.serviceAccountName"
        return Cause(Reason.SERVICE_ACCOUNT_NOT_FOUND, message)
    if account["metadata"].get("labels", {}).get(ALLOWED_LABEL) != "true":
        command = f"`kubectl label serviceaccount {name} {ALLOWED_LABEL}=true --namespace {namespace}`"
        return Cause(
            Reason.NOT_ALLOWED,
            f"{who} is not meant for InferenceServices; {command} allows it, or change "
            "spec.podTemplate.spec.serviceAccountName",
        )
    return None


def _asked(service: InferenceService) -> Iterator[tuple[Privilege, str]]:
    """Each privilege that the object asks for, with the field below podTemplate.spec that does."""
    pod = service.spec.pod_template.spec
    for volume in pod.volumes or ():
        if "hostPath" in volume:
            yield Privilege.HOST_PATH, f"volumes[{volume['name']}].hostPath"
    for field, asked in (("hostNetwork", pod.host_network), ("hostPID", pod.host_pid), ("hostIPC", pod.host_ipc)):
        if asked:
            yield Privilege.HOST_NAMESPACES, field
    for container in pod.init_containers or ():
        for field in _privileges(container.get("securityContext", {})):
            yield Privilege.PRIVILEGED, f"initContainers[{container['name']}].securityContext.{field}"


def _privileges(context: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a container's security context that the restricted Pod Security Standard refuses."""
    for field in ("privileged", "allowPrivilegeEscalation"):
        if context.get(field):
            yield field
    if context.get("runAsUser") == ROOT:
        yield "runAsUser"
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if any(one != HARMLESS_CAPABILITY for one in context.get("capabilities", {}).get("add", ())):
        yield "capabilities.add"
