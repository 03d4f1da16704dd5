from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.privileges import Privilege
from octavo_operator.api.service import InferenceService
from octavo_operator.core.privileges import account_refusal, refusal
from octavo_operator.testing import inference_service


def parsed(**pod: Any) -> InferenceService:
    manifest = inference_service(podTemplate={"spec": pod})
    manifest["metadata"] |= {"uid": "uid-1", "generation": 1}
    return InferenceService.parse(manifest)


def init(**context: Any) -> dict[str, Any]:
    plain = {"name": "plain", "image": "image"}
    return {"initContainers": [plain, {"name": "own", "image": "image", "securityContext": context}]}


ASKING: list[tuple[Privilege, str, dict[str, Any]]] = [
    (
        Privilege.HOST_PATH,
        "volumes[node].hostPath",
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "node", "hostPath": {"path": "/"}}]},
    ),
    (Privilege.HOST_NAMESPACES, "hostNetwork", {"hostNetwork": True}),
    (Privilege.HOST_NAMESPACES, "hostPID", {"hostPID": True}),
    (Privilege.HOST_NAMESPACES, "hostIPC", {"hostNetwork": False, "hostIPC": True}),
    (Privilege.PRIVILEGED, "initContainers[own].securityContext.privileged", init(privileged=True)),
    (
        Privilege.PRIVILEGED,
        "initContainers[own].securityContext.allowPrivilegeEscalation",
        init(allowPrivilegeEscalation=True),
    ),
    (Privilege.PRIVILEGED, "initContainers[own].securityContext.runAsUser", init(runAsUser=0)),
    (Privilege.PRIVILEGED, "initContainers[own].securityContext.runAsNonRoot", init(runAsNonRoot=False)),
    (
        Privilege.PRIVILEGED,
        "initContainers[own].securityContext.capabilities.add",
        init(capabilities={"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}),
    ),
]


@pytest.mark.parametrize(("privilege", "field", "pod"), ASKING, ids=[field for _, field, _ in ASKING])
def test_refusal_names_field_and_setting_and_ends_with_it(
    privilege: Privilege, field: str, pod: dict[str, Any]
) -> None:
    service = parsed(**pod)
    for allowed in ([], [other for other in Privilege if other is not privilege]):
        cause = refusal(service, allowed)
        assert cause is not None
        assert cause.reason == "NotAllowed"
        assert f"spec.podTemplate.spec.{field} is not allowed" in cause.message
        assert f"--allow={privilege} " in cause.message
    assert refusal(service, [privilege]) is None


@given(asked=st.lists(st.sampled_from(ASKING)), allowed=st.sets(st.sampled_from(Privilege)))
def test_refusal_ends_when_everything_that_is_asked_for_is_allowed(
    asked: list[tuple[Privilege, str, dict[str, Any]]], allowed: set[Privilege]
) -> None:
    pod: dict[str, Any] = {}
    for _, _, fields in asked:
        for name, value in fields.items():
            pod[name] = pod.get(name, []) + value if isinstance(value, list) else pod.get(name, False) or value
    wanted = {privilege for privilege, _, _ in asked}
    assert (refusal(parsed(**pod), allowed) is None) is (wanted <= allowed)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"hostNetwork": False, "hostPID": False, "hostIPC": False},
        {"volumes": [{"name": "a", "secret": {"secretName": "hostPath"}}]},
        init(privileged=False, allowPrivilegeEscalation=False, runAsNonRoot=True, runAsUser=1),
        init(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}),
    ],
)
def test_refusal_is_none_for_a_restricted_pod(pod: dict[str, Any]) -> None:
    assert refusal(parsed(**pod), []) is None


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        (None, "ServiceAccountNotFound"),
        ({"metadata": {}}, "NotAllowed"),
        ({"metadata": {"labels": {"octavo.dev/allowed": "false"}}}, "NotAllowed"),
        ({"metadata": {"annotations": {"octavo.dev/allowed": "true"}}}, "NotAllowed"),
        ({"metadata": {"labels": {"octavo.dev/allowed": "true"}}}, None),
    ],
)
def test_account_refusal(account: dict[str, Any] | None, reason: str | None) -> None:
    cause = account_refusal("team", "reader", account)
    assert (cause.reason if cause else None) == reason
    if cause is not None:
        assert "ServiceAccount team/reader" in cause.message
        assert "serviceAccountName" in cause.message
