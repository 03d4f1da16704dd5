"""The pure pieces of bench-operator: what is counted, and that the ceiling sends what the operator sent."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench.reconciling_ceiling import by_kind, renamed, shares, with_port
from bench.reconciling_world import Arrivals, Write, mutations

SAMPLE = {"name": "recorded-sample", "uid": "uid-sample"}
OTHER = {"name": "isvc-00007", "uid": "uid-7"}
ROOT = "/apis/octavo.dev/v1alpha1/namespaces/bench/inferenceservices"
APPLY = "application/apply-patch+yaml"


def write(path: str, body: Any) -> Write:
    return Write("PATCH", path, APPLY, json.dumps(body).encode() if body is not None else b"")


def counted(verb: str, resource: str, subresource: str, value: float) -> str:
    labels = f'code="200",resource="{resource}",subresource="{subresource}",verb="{verb}"'
    return f"apiserver_request_total{{{labels}}} {value}"


def test_mutations_counts_writes_by_resource_and_no_signs_of_life() -> None:
    text = "\n".join(
        [
            "# TYPE apiserver_request_total counter",
            counted("APPLY", "deployments", "", 3),
            counted("PATCH", "deployments", "", 2),
            counted("APPLY", "inferenceservices", "status", 1e3),
            counted("GET", "deployments", "", 99),
            counted("LIST", "pods", "", 99),
            counted("PUT", "leases", "", 99),
            counted("PATCH", "nodes", "status", 99),
            'apiserver_request_sli_duration_seconds_count{verb="POST",resource="pods"} 99',
        ]
    )
    assert mutations(text) == {"deployments": 5, "inferenceservices/status": 1000}


@given(st.integers(0, 20_000), st.integers(1, 300))
def test_shares_deal_out_everything_evenly(total: int, count: int) -> None:
    dealt = shares(total, count)
    assert (len(dealt), sum(dealt)) == (count, total)
    assert max(dealt) - min(dealt) <= 1


def test_by_kind_tells_status_from_object_and_leaves_out_what_names_no_kind() -> None:
    service = write(f"{ROOT}/recorded-sample?force=true", {"kind": "InferenceService"})
    status = write(f"{ROOT}/recorded-sample/status?force=true", {"kind": "InferenceService"})
    again = write("/api/v1/namespaces/bench/events/x?fieldManager=o", {"count": 2})
    deletion = write("/apis/apps/v1/namespaces/bench/controllerrevisions/x", {"kind": "DeleteOptions"})
    assert by_kind([status, service, again, deletion, status, write("/x", None)]) == {
        "InferenceService/status": [status, status],
        "InferenceService": [service],
    }


def test_renamed_is_the_same_write_for_the_other_object() -> None:
    owner = {"kind": "InferenceService", "name": SAMPLE["name"], "uid": SAMPLE["uid"]}
    metadata = {"name": "recorded-sample-0a1b", "uid": "uid-of-the-child", "ownerReferences": [owner]}
    before = write("/apis/apps/v1/x/recorded-sample-0a1b?force=true", {"kind": "Deployment", "metadata": metadata})
    after = renamed(before, SAMPLE, OTHER)
    assert after.path == "/apis/apps/v1/x/isvc-00007-0a1b?force=true"
    assert json.loads(after.body)["metadata"] == {
        "name": "isvc-00007-0a1b",
        "ownerReferences": [{"kind": "InferenceService", "name": "isvc-00007", "uid": "uid-7"}],
    }


def test_renamed_keeps_the_precondition_of_a_status() -> None:
    before = write(f"{ROOT}/recorded-sample/status", {"kind": "InferenceService", "metadata": SAMPLE})
    after = renamed(before, SAMPLE, OTHER)
    assert after.path == f"{ROOT}/isvc-00007/status"
    assert json.loads(after.body)["metadata"] == OTHER


def test_with_port_makes_an_edit_of_the_write_that_only_creates() -> None:
    body = {"kind": "Service", "metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"ports": [{"port": 80}]}}
    assert json.loads(with_port(write("/x", body), 8080).body) == {
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"ports": [{"port": 8080}]},
    }


def test_arrivals_count_a_status_of_the_present_generation_only() -> None:
    arrivals = Arrivals()
    manifest = {"metadata": {"name": "a", "generation": 2}, "status": {"observedGeneration": 1}}
    arrivals("ADDED", manifest, 1.0)
    assert not arrivals.told
    manifest["status"] = {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "False"}]}
    arrivals("MODIFIED", manifest, 2.0)
    manifest["status"] = {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    arrivals("MODIFIED", manifest, 3.0)
    assert (arrivals.told, arrivals.ready) == ({"a": 2.0}, {"a": 3.0})
