import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from octavo_operator.api.names import INFERENCE_SERVICE
from octavo_operator.api.service import InferenceService, PodSpec, Spec
from octavo_operator.autoscale.autoscaler import settings_of
from octavo_operator.core.arguments import is_gpu
from octavo_operator.core.status import FIELDS
from octavo_operator.replay import FIELDS as FIELDS_OF_A_REPLAY
from octavo_operator.testing import inference_service
from tests.operator_tests.test_desired import GPUS, NO_GPUS

REPOSITORY = Path(__file__).parents[2]
CRD = yaml.safe_load((REPOSITORY / "crds" / "octavo.dev_inferenceservices.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]["properties"]


def is_refused(schema: dict[str, Any]) -> bool:
    return "efused." in schema.get("description", "")


def models(
    model: type[BaseModel], schema: dict[str, Any], path: str
) -> list[tuple[str, type[BaseModel], dict[str, Any]]]:
    """Each of our types with the part of the schema that it mirrors."""
    found = [(path, model, schema)]
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            alias = field.alias or name
            found += models(kind, schema["properties"][alias], f"{path}.{alias}")
    return found


PAIRS = models(Spec, SCHEMA["spec"], "spec")


def test_crd_names() -> None:
    names = CRD["spec"]["names"]
    assert CRD["metadata"]["name"] == f"{INFERENCE_SERVICE.plural}.{INFERENCE_SERVICE.group}"
    assert (names["kind"], names["plural"]) == (INFERENCE_SERVICE.kind, INFERENCE_SERVICE.plural)
    assert (names["shortNames"], names["categories"]) == (["isvc"], ["octavo"])
    assert VERSION["name"] == INFERENCE_SERVICE.version


@pytest.mark.parametrize(("path", "model", "schema"), PAIRS, ids=[path for path, _, _ in PAIRS])
def test_crd_fields_are_those_the_operator_acts_on(path: str, model: type[BaseModel], schema: dict[str, Any]) -> None:
    """A field of the schema is either read by the operator or refused with a sentence: none is accepted and ignored."""
    read = {field.alias or name for name, field in model.model_fields.items()}
    offered = {name for name, one in schema["properties"].items() if not is_refused(one)}
    assert offered == read, path


@pytest.mark.parametrize(("path", "model", "schema"), PAIRS, ids=[path for path, _, _ in PAIRS])
def test_crd_defaults_and_values_are_those_of_the_types(
    path: str, model: type[BaseModel], schema: dict[str, Any]
) -> None:
    for name, field in model.model_fields.items():
        one = schema["properties"][field.alias or name]
        default = field.get_default(call_default_factory=True, validated_data={})
        if "default" in one and not isinstance(default, BaseModel):
            assert one["default"] == default, f"{path}.{name}"
        if "enum" in one and one["type"] == "string":
            choices = {
                value
                for part in (field.annotation, *get_args(field.annotation))
                if get_origin(part) is Literal
                for value in get_args(part)
            }
            assert set(one["enum"]) == choices, f"{path}.{name}"


def refused(schema: dict[str, Any], path: str) -> list[str]:
    found = []
    for name, one in schema.get("properties", {}).items():
        if is_refused(one):
            found.append(f"{path}.{name}")
        found += refused(one, f"{path}.{name}")
        if isinstance(one.get("items"), dict):
            found += refused(one["items"], f"{path}.{name}[]")
    return found


@pytest.mark.parametrize("path", refused(SCHEMA["spec"], "self"))
def test_crd_refused_field_has_a_rule(path: str) -> None:
    rules = [rule["rule"] for rule in _rules(SCHEMA["spec"])]
    name = path.rpartition(".")[2]
    assert any(f"!has(self.{name})" in rule for rule in rules), path


def _rules(schema: Any) -> list[dict[str, str]]:
    if isinstance(schema, dict):
        own = schema.get("x-kubernetes-validations", [])
        return list(own) + [
            rule for key, one in schema.items() if key != "x-kubernetes-validations" for rule in _rules(one)
        ]
    return [rule for one in schema for rule in _rules(one)] if isinstance(schema, list) else []


def test_crd_every_rule_has_a_sentence() -> None:
    rules = _rules(SCHEMA["spec"])
    assert len(rules) > 30
    assert all(len(rule.get("message", "")) > 10 for rule in rules)


def _properties(schema: Any, path: str = "spec") -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, one in schema.get("properties", {}).items():
        found.append((f"{path}.{name}", one))
        found += _properties(one, f"{path}.{name}")
    return found


def test_crd_every_field_of_ours_is_described() -> None:
    """`kubectl explain` teaches; what lies below core/v1's own types is core/v1's to explain."""
    theirs = ("affinity", "tolerations", "volumes", "topologySpread", "securityContext.", "metadata.", "dnsConfig.")
    silent = [
        path
        for path, one in _properties(SCHEMA["spec"])
        if "description" not in one and not any(name in path for name in theirs)
    ]
    assert silent == ["spec.resources.limits", "spec.resources.requests"]


def test_crd_status_holds_what_the_operator_writes() -> None:
    assert SCHEMA["status"]["properties"].keys() == {*FIELDS, "conditions"}


def test_crd_extra_args_refuse_each_flag_of_the_contract() -> None:
    contract = (REPOSITORY / "docs" / "contract.md").read_text()
    table = contract[contract.index("| field | flag |") : contract.index("An unknown flag ends")]
    rows = [row.split("|") for row in table.splitlines()[2:] if row.startswith("|")]
    flags = {flag for row in rows for flag in re.findall(r"`(--[-a-z]+)`", row[2])}
    rule = SCHEMA["spec"]["properties"]["runtime"]["properties"]["extraArgs"]["x-kubernetes-validations"][0]["rule"]
    (pattern,) = re.findall(r"matches\('(.*)'\)", rule)
    free = {flag for flag in flags if not re.match(pattern, flag) and not re.match(pattern, f"{flag}=1")}
    assert len(flags) > 12
    assert free == {
        "--admission-policy", "--async-scheduling", "--no-async-scheduling", "--batch-invariant", "--check-invariants",
        "--generation-config", "--kv-cache-memory-max", "--load-timeout", "--log-level", "--max-connection-age", "--max-num-queued-reqs",
        "--max-num-queued-tokens", "--record-trace", "--step-timeout", "--target-itl-ms", "--target-ttft-ms",
        "--time-slice-tokens",
    }  # fmt: skip


def test_crd_pod_spec_passes_on_core_v1_names() -> None:
    aliases = {field.alias for field in PodSpec.model_fields.values()}
    assert aliases <= {
        "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName",
        "runtimeClassName", "schedulerName", "imagePullSecrets", "securityContext", "volumes", "initContainers",
        "serviceAccountName", "hostNetwork", "hostPID", "hostIPC", "dnsPolicy", "dnsConfig", "hostAliases",
        "resourceClaims",
    }  # fmt: skip


def test_crd_counts_the_gpus_that_the_operator_knows() -> None:
    """Whole GPUs and slices of one; what says how much of one, or only looks at one, is no number of GPUs."""
    (pattern,) = {
        found for rule in _rules(SCHEMA["spec"]) for found in re.findall(r"k\.matches\('([^']+)'\)", rule["rule"])
    }
    assert all(re.search(pattern, name) and is_gpu(name) for name in GPUS)
    shares = ("nvidia.com/gpumem", "nvidia.com/gpu.memory", "gpu.intel.com/memory.max", "gpu.intel.com/i915_monitoring")
    assert not any(re.search(pattern, name) for name in (*NO_GPUS, *shares))


def test_chart_copy_is_made_from_crds() -> None:
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "chart-crd", "--check"], check=True)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_objects_that_the_operator_reads(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        if manifest["kind"] == INFERENCE_SERVICE.kind:
            metadata = {"namespace": "default", "uid": "u", "generation": 1} | manifest["metadata"]
            InferenceService.parse(manifest | {"metadata": metadata})


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_documented_manifests_are_objects_that_the_operator_reads(page: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
    manifests = [yaml.safe_load(block) for block in blocks]
    services = [one for one in manifests if isinstance(one, dict) and one.get("kind") == INFERENCE_SERVICE.kind]
    assert services
    for manifest in services:
        metadata = {"namespace": "default", "uid": "u", "generation": 1} | manifest["metadata"]
        InferenceService.parse(manifest | {"metadata": metadata})


def test_replay_can_set_every_field_of_autoscaling_that_decides() -> None:
    fields = SCHEMA["spec"]["properties"]["autoscaling"]["properties"]
    assert {*FIELDS_OF_A_REPLAY} == {*fields} - {"mode"}
    for name, field in FIELDS_OF_A_REPLAY.items():
        least = (
            1 if name == "minReplicas" else fields[name]["minimum"]
        )  # there it is a rule, with a sentence of its own
        assert (field.least, field.most) == (least, fields[name]["maximum"]), name


def test_replay_takes_a_setting_for_what_the_operator_takes_it() -> None:
    given = {name: field.most for name, field in FIELDS_OF_A_REPLAY.items()}
    manifest = inference_service(autoscaling=given)
    manifest["metadata"] |= {"uid": "uid-1", "generation": 1}
    settings = settings_of(InferenceService.parse(manifest))
    for name, field in FIELDS_OF_A_REPLAY.items():
        assert getattr(settings, field.name) == field.worth(field.most), name
