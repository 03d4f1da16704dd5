"""Which nodes could take a pod now: the scheduler's plain filters, computed from what nodes and pods say.

Looked at: whether a node is ready and not cordoned, taints, nodeSelector, required node affinity, and resources
(allocatable without the requests of the pods there, GPUs and the number of pods included). What else the scheduler
looks at is not, and `not_looked_at` names what of that the pod has.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from octavo_operator.api.names import Manifest
from octavo_operator.plugin.screen import size

__all__ = ["NodeFit", "fits", "not_looked_at", "pod_request", "quantity"]

SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
IN_BYTES = ("memory", "ephemeral-storage", "hugepages-")
MANY = 10_000
"""More pods than any node takes."""

Amounts = dict[str, Decimal]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """What a node says to a pod.

    Attributes:
        name: the node.
        count: how many such pods it could take.
        lacks: why it takes none, a sentence each.
    """

    name: str
    count: int
    lacks: tuple[str, ...]


def fits(pod: Manifest, nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> tuple[NodeFit, ...]:
    """What each node says.

    Args:
        pod: the spec of the pod.
        nodes: the nodes.
        pods: all pods of the cluster.
    """
    taken: defaultdict[str, list[Manifest]] = defaultdict(list)
    for one in pods:
        if one["spec"].get("nodeName") and one.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
            taken[one["spec"]["nodeName"]].append(one)
    found = [_fit(pod, node, taken[node["metadata"]["name"]]) for node in nodes]
    return tuple(sorted(found, key=lambda one: (-one.count, one.name)))


def not_looked_at(pod: Manifest) -> tuple[str, ...]:
    """What of this pod the scheduler looks at, and `fits` does not."""
    affinity = pod.get("affinity", {})
    found = [name for name in ("podAffinity", "podAntiAffinity") if name in affinity]
    found += [name for name in ("topologySpreadConstraints", "resourceClaims") if pod.get(name)]
    if any("persistentVolumeClaim" in volume for volume in pod.get("volumes", ())):
        found.append("where the claims' volumes can be mounted")
    return (*found, "pods of lower priority that could be put out")


def pod_request(pod: Manifest) -> Amounts:
    """What a pod asks for: its containers together, or an init container that asks for more."""
    total, peak = _amounts(pod.get("overhead", {})), Amounts()
    for container in pod.get("containers", ()):
        total = _sum(total, _request(container))
    beside = Amounts()
    for container in pod.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            beside = _sum(beside, _request(container))
            peak = _most(peak, beside)
        else:
            peak = _most(peak, _sum(beside, _request(container)))
    return _most(_sum(total, beside), peak)


def quantity(text: object) -> Decimal:
    """The value of a Kubernetes quantity, such as 100m, 4Gi or 2e3.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(
        r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)", str(text).strip()
    )
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number = Decimal(match[1] + (match[2] or ""))
    suffix = match[3] or ""
    return number * (1 << BINARY[suffix]) if suffix in BINARY else number.scaleb(SUFFIXES[suffix])


def _fit(pod: Manifest, node: Manifest, pods: Sequence[Manifest]) -> NodeFit:
    name, spec = node["metadata"]["name"], node.get("spec", {})
    lacks, told = [], set()
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    if conditions.get("Ready") != "True":
        lacks.append("not ready")
        told = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    if spec.get("unschedulable"):
        lacks.append("cordoned")
        told.add("node.kubernetes.io/unschedulable")
    lacks += [
        f"taint {taint['key']}{'=' + taint['value'] if taint.get('value') else ''} is not tolerated"
        for taint in spec.get("taints", ())
        if taint["effect"] != "PreferNoSchedule"
        and taint["key"] not in told
        and not any(_tolerates(one, taint) for one in pod.get("tolerations", ()))
    ]
    labels = node["metadata"].get("labels", {})
    lacks += [
        f"no label {key}={value}" for key, value in pod.get("nodeSelector", {}).items() if labels.get(key) != value
    ]
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(_matches(term, labels, name) for term in required.get("nodeSelectorTerms", ())):
        lacks.append("not of the required node affinity")
    wanted = pod_request(pod) | {"pods": Decimal(1)}
    allocatable = _amounts(node.get("status", {}).get("allocatable", {}))
    used = Amounts(pods=Decimal(len(pods)))
    for one in pods:
        used = _sum(used, pod_request(one["spec"]))
    count = MANY
    for resource, amount in wanted.items():
        if amount <= 0:
            continue
        free = allocatable.get(resource, Decimal(0)) - used.get(resource, Decimal(0))
        count = min(count, max(0, int(free // amount)))
        if free < amount:
            of = _shown(resource, allocatable.get(resource, Decimal(0)))
            lacks.append(
                f"{resource}: {_shown(resource, amount)} wanted, {_shown(resource, max(free, Decimal(0)))} of {of} free"
            )
    return NodeFit(name, 0 if lacks else count, tuple(lacks))


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    key, value = toleration.get("key"), toleration.get("value", "")
    return (key, value) == (taint["key"], taint.get("value", ""))


def _matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions = term.get("matchExpressions", ())
    by_field = term.get("matchFields", ())
    if not expressions and not by_field:
        return False
    return all(_holds(one, labels) for one in expressions) and all(
        _holds(one, {"metadata.name": name}) for one in by_field
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not re.fullmatch(r"-?\d+", value):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def _request(container: Mapping[str, Any]) -> Amounts:
    """Requests, and where there is none the limit, as the API server fills them in."""
    resources = container.get("resources", {})
    return _amounts(resources.get("limits", {})) | _amounts(resources.get("requests", {}))


def _amounts(given: Mapping[str, Any]) -> Amounts:
    return {name: quantity(amount) for name, amount in given.items()}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {name: one.get(name, Decimal(0)) + other.get(name, Decimal(0)) for name in one | other}


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in one | other}


def _shown(resource: str, amount: Decimal) -> str:
    if resource.startswith(IN_BYTES):
        return size(float(amount))
    return f"{amount.normalize():f}"
