"""The status is total: whatever the kubelet and the scheduler write about pods, Ready has one reason of the list."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import DEPLOYMENT, TEMPLATE_LABEL, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.containers import CANNOT_START, CODES, Cause
from octavo_operator.core.desired import desired_children, pod_template
from octavo_operator.core.events import ready_event
from octavo_operator.core.observed import ClaimPhase, Observed
from octavo_operator.core.rollout import Step
from octavo_operator.core.status import desired_status, is_written
from octavo_operator.testing import inference_service

texts = st.text(max_size=20)
quantities = st.integers() | st.floats() | st.none() | texts
words = (
    texts
    | st.sampled_from(
        ['secret "s" not found', "couldn't find key k in ConfigMap a/b", "0/1: Insufficient nvidia.com/gpu."]
    )
    | st.builds(
        json.dumps,
        st.fixed_dictionaries(
            {"code": st.sampled_from(sorted(CODES)) | texts | st.none(), "message": texts | st.none()}
        ),
    )
    | st.builds(
        json.dumps, st.dictionaries(st.sampled_from(["weightsBytes", "kvTokens", "maxConcurrency"]), quantities)
    )
    | st.sampled_from(["[]", "1", "null", "NaN"])
)


def sometimes(required: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Manifest]:
    return st.fixed_dictionaries(required, optional=optional)


waiting = sometimes(
    {}, reason=st.sampled_from([*CANNOT_START, "CrashLoopBackOff", "PodInitializing", "New"]), message=words
)
terminated = sometimes(
    {"exitCode": st.sampled_from([0, 1, 2, 14, 137, 255])},
    reason=st.sampled_from(["OOMKilled", "Error", "Completed", "StartError"]),
    message=words,
)
states = sometimes({}, waiting=waiting) | sometimes({}, terminated=terminated) | sometimes({}, running=st.just({}))
containers = st.lists(
    sometimes(
        {"name": st.sampled_from(["server", "plan", "proxy"]), "ready": st.booleans()}, state=states, lastState=states
    ),
    max_size=3,
)
conditions = st.lists(
    sometimes(
        {
            "type": st.sampled_from(["PodScheduled", "Ready", "ContainersReady", "PodReadyToStartContainers"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
            "lastTransitionTime": st.sampled_from(["2025-12-31T23:59:59Z", "2025-01-01T00:00:00Z"]),
        },
        message=words,
    ),
    max_size=3,
)


def parsed() -> tuple[Manifest, InferenceService, tuple[Manifest, ...]]:
    manifest = inference_service(resources={"limits": {"nvidia.com/gpu": 1}})
    manifest["metadata"] |= {"uid": "uid-1", "generation": 3}
    service = InferenceService.parse(manifest)
    return manifest, service, desired_children(service, pod_template(service, runtime_image="image"), Step())


NOW = datetime(2026, 1, 1, tzinfo=UTC)
MANIFEST, SERVICE, DESIRED = parsed()
TEMPLATE = DESIRED[-1]["spec"]["template"]["metadata"]["labels"][TEMPLATE_LABEL]

pods = sometimes(
    {
        "metadata": sometimes(
            {"name": st.sampled_from("abc")},
            labels=st.sampled_from([{TEMPLATE_LABEL: TEMPLATE}, {TEMPLATE_LABEL: "old"}, {}]),
            deletionTimestamp=st.just("2026-01-01T00:00:00Z"),
        ),
        "status": sometimes(
            {},
            phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
            reason=st.sampled_from(["Evicted", "NodeLost", "OutOfcpu"]),
            message=words,
            conditions=conditions,
            containerStatuses=containers,
            initContainerStatuses=containers,
        ),
    }
)
counts = st.integers(0, 3)
deployments = st.none() | st.fixed_dictionaries(
    {
        "metadata": st.just({"generation": 2, "ownerReferences": [{"controller": True, "uid": "uid-1"}]}),
        "status": sometimes(
            {}, replicas=counts, updatedReplicas=counts, readyReplicas=counts, observedGeneration=st.integers(1, 2)
        ),
    }
)
problems = st.lists(st.builds(Cause, st.sampled_from([Reason.NAME_TAKEN, Reason.APPLY_REJECTED]), texts), max_size=1)


@given(
    child=deployments,
    found=st.lists(pods, max_size=3),
    claim=st.sampled_from([None, *ClaimPhase]),
    wrong=problems,
)
def test_status_is_total_and_settles(
    child: Manifest | None, found: list[Manifest], claim: ClaimPhase | None, wrong: list[Cause]
) -> None:
    def computed(manifest: Manifest) -> Manifest:
        observed = Observed(manifest, {DEPLOYMENT: child} if child else {}, tuple(found))
        return desired_status(SERVICE, observed, desired=DESIRED, applied={}, problems=wrong, claim=claim, now=NOW)

    status = computed(MANIFEST)
    assert [one["type"] for one in status["conditions"]] == [
        kind for kind in ConditionType if kind not in {ConditionType.METRICS_AVAILABLE, ConditionType.SCALING_ACTIVE}
    ]
    for one in status["conditions"]:
        assert one["reason"] in {*Reason}
        assert one["status"] in {"True", "False", "Unknown"}
    ready = status["conditions"][0]
    assert (ready["status"] == "True") == (ready["reason"] == Reason.SERVING)
    assert all(type(number) is int and number >= 0 for number in status.get("plan", {}).values())
    # Once it is written, the same observation writes nothing and announces nothing.
    stored = MANIFEST | {"status": status}
    again = computed(stored)
    assert is_written(again, stored)
    assert ready_event(stored, again, NOW) is None
