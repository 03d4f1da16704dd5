"""The closed lists that operator, runtime and pages share: reasons, codes, flags."""

import re
from pathlib import Path

import pytest
import yaml

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.core.arguments import FIELDS, PLAN_FLAGS
from octavo_operator.core.containers import CODES
from octavo_operator.plugin.advice import ADVICE
from octavo_runtime import errors
from octavo_runtime.cli.plan import plan
from octavo_runtime.cli.serve import serve

REPOSITORY = Path(__file__).parents[2]
CONTRACT = (REPOSITORY / "docs" / "contract.md").read_text()
API = (REPOSITORY / "docs" / "api.md").read_text()
CRD = yaml.safe_load((REPOSITORY / "crds" / "octavo.dev_inferenceservices.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]


@pytest.mark.parametrize("reason", Reason)
def test_reason_is_documented(reason: Reason) -> None:
    assert f"`{reason}`" in API[API.index("## Status") :]


def test_condition_types_are_documented_and_no_others() -> None:
    status = API[API.index("## Status") : API.index("## Autoscaling")]
    assert {*re.findall(r"\*\*([A-Z]\w+)\*\*", status)} == {*ConditionType}
    conditions = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"]
    assert {*re.findall(r"\b(\w+) \(", conditions["description"])} == {*ConditionType}


def test_codes_are_those_of_the_runtime_and_of_the_contract() -> None:
    raised = {error.__name__ for error in errors.StartError.__subclasses__()}
    table = CONTRACT[CONTRACT.index("| exit | code |") :]
    assert set(re.findall(r"^\| \d+ \| `(\w+)`", table, re.MULTILINE)) == raised == {*CODES}


def test_fields_of_the_flags_are_those_of_the_contract() -> None:
    rows = re.findall(r"^\| `([a-zA-Z.]+)` \| `--([-a-z]+)`", CONTRACT, re.MULTILINE)
    assert {flag: field for field, flag in rows} == FIELDS


def test_plan_has_each_flag_that_the_operator_gives_it() -> None:
    """Each flag of the spec that both commands have, so that they size the memory alike."""
    offered, serving = ({flag for one in command.params for flag in one.opts} for command in (plan, serve))
    assert {f"--{flag}" for flag in PLAN_FLAGS} == offered & serving & {f"--{flag}" for flag in FIELDS}
    assert "--termination-log" in offered


def test_advice_of_the_plugin_is_that_of_the_page() -> None:
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| .* \| (.*) \|$",
        API[API.index("## Status") : API.index("## Autoscaling")],
        re.MULTILINE,
    )
    page = {Reason(reason): _plain(advice) for reasons, advice in rows for reason in re.findall(r"`(\w+)`", reasons)}
    assert page == ADVICE


def _plain(markdown: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")
