from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import Manifest
from octavo_operator.plugin.fit import fits, not_looked_at, pod_request, quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (2, 2), ("100m", "0.1"), ("1.5", "1.5"), ("4Gi", 4 << 30), ("1k", 1000), ("2e3", 2000), ("0.5Gi", 1 << 29),
     ("1E", 10**18), ("12E1", 120), ("3n", "3e-9")],
)  # fmt: skip
def test_quantity_is_kubernetes_own(text: object, value: object) -> None:
    assert quantity(text) == Decimal(str(value))


@pytest.mark.parametrize("text", ["", "Gi", "1GB", "1 Gi ", "--1", "1.2.3", "one"])
def test_quantity_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def container(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any) -> Manifest:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def test_pod_request_is_the_schedulers() -> None:
    pod = {
        "containers": [container({"cpu": "1"}, {"cpu": "4", "nvidia.com/gpu": "1"}), container({"cpu": "500m"})],
        "initContainers": [
            container({"cpu": "1", "memory": "2Gi"}),
            container({"cpu": "250m"}, restartPolicy="Always"),
            container({"cpu": "2"}),
        ],
        "overhead": {"memory": "64Mi"},
    }
    assert pod_request(pod) == {"cpu": Decimal("2.25"), "memory": 2 << 30, "nvidia.com/gpu": 1}


def node(name: str = "n", **changes: Any) -> Manifest:
    allocatable = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"} | changes.pop("allocatable", {})
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": changes.pop("ready", "True")}]}
    return {"metadata": {"name": name, "labels": changes.pop("labels", {})}, "spec": changes, "status": status}


def busy(on: str, **requests: str) -> Manifest:
    return {"spec": {"nodeName": on, "containers": [container(requests)]}, "status": {"phase": "Running"}}


POD: Manifest = {"containers": [container({"cpu": "1", "memory": "4Gi"}, {"nvidia.com/gpu": "1"})]}
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(**expression: Any) -> Manifest:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}


@pytest.mark.parametrize(
    ("one", "pod", "lack"),
    [
        (node(), {}, None),
        (node(ready="Unknown"), {}, "not ready"),
        (node(taints=[TAINT | {"key": "node.kubernetes.io/not-ready"}]), {}, "taint node.kubernetes.io/not-ready=yes"),
        (node(unschedulable=True), {}, "cordoned"),
        (node(taints=[TAINT]), {}, "taint gpu=yes is not tolerated"),
        (node(taints=[TAINT | {"effect": "PreferNoSchedule"}]), {}, None),
        (node(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "yes"}]}, None),
        (node(taints=[TAINT]), {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, None),
        (node(taints=[TAINT]), {"tolerations": [{"operator": "Exists"}]}, None),
        (node(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "no"}]}, "taint gpu=yes is not tolerated"),
        (node(taints=[TAINT]), {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}]}, "taint gpu"),
        (node(), {"nodeSelector": {"zone": "a"}}, "no label zone=a"),
        (node(labels={"zone": "a"}), {"nodeSelector": {"zone": "a"}}, None),
        (node(labels={"zone": "a"}), affinity(key="zone", operator="In", values=["b"]), "required node affinity"),
        (node(labels={"zone": "a"}), affinity(key="zone", operator="NotIn", values=["b"]), None),
        (node(labels={"gen": "7"}), affinity(key="gen", operator="Gt", values=["6"]), None),
        (node(labels={"gen": "6"}), affinity(key="gen", operator="Gt", values=["6"]), "required node affinity"),
        (node(labels={}), affinity(key="gen", operator="Exists"), "required node affinity"),
        (node(allocatable={"nvidia.com/gpu": "0"}), {}, "nvidia.com/gpu: 1 wanted, 0 of 0 free"),
        (node(allocatable={"memory": "2Gi"}), {}, "memory: 4 GiB wanted, 2 GiB of 2 GiB free"),
        (node(allocatable={"pods": "0"}), {}, "pods: 1 wanted, 0 of 0 free"),
    ],
)
def test_fits_looks_at_the_plain_filters(one: Manifest, pod: Manifest, lack: str | None) -> None:
    (found,) = fits(POD | pod, [one], [])
    if lack is None:
        assert (found.count, found.lacks) == (2, ())
    else:
        assert found.count == 0
        assert lack in "; ".join(found.lacks)


def test_fits_says_once_that_a_node_is_not_there() -> None:
    taints = [{"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"} for name in ("not-ready", "unschedulable")]
    (found,) = fits(POD, [node(ready="False", unschedulable=True, taints=taints)], [])
    assert found.lacks == ("not ready", "cordoned")


def test_fits_counts_what_runs_there_and_puts_the_best_first() -> None:
    ended = busy("b", cpu="4") | {"status": {"phase": "Succeeded"}}
    waiting = busy("b", cpu="4") | {"spec": {"containers": []}}
    pods = [busy("a", cpu="2500m"), busy("a", **{"nvidia.com/gpu": "1"}), ended, waiting]
    found = fits(POD, [node("a"), node("b"), node("c", allocatable={"nvidia.com/gpu": "1"})], pods)
    assert [(one.name, one.count) for one in found] == [("b", 2), ("a", 1), ("c", 1)]
    (full,) = fits(POD, [node("a")], [*pods, busy("a", cpu="1")])
    assert full.lacks == ("cpu: 1 wanted, 0.5 of 4 free",)


def test_not_looked_at_names_what_the_pod_has() -> None:
    pod = {"affinity": {"podAntiAffinity": {}}, "volumes": [{"persistentVolumeClaim": {}}]}
    assert not_looked_at(pod)[:2] == ("podAntiAffinity", "where the claims' volumes can be mounted")
    assert not_looked_at({}) == ("pods of lower priority that could be put out",)


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(1, 4), st.integers(0, 8))
def test_fits_count_is_the_number_that_can_be_added(gpus: list[int], wanted: int, has: int) -> None:
    pods = [busy("n", **{"nvidia.com/gpu": str(count)}) for count in gpus]
    pod: Manifest = {"containers": [container(limits={"nvidia.com/gpu": str(wanted)})]}
    one = node(allocatable={"nvidia.com/gpu": str(has)})
    added = 0
    while sum(gpus) + (added + 1) * wanted <= has:
        added += 1
    (found,) = fits(pod, [one], pods)
    assert found.count == added
