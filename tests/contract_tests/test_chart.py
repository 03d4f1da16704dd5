import json
import re
from pathlib import Path

import pytest
import yaml

from octavo_operator.api.names import CHILDREN, Kind
from octavo_operator.api.privileges import Privilege

CHART = Path(__file__).parents[2] / "charts" / "octavo"


def rules() -> list[dict[str, list[str]]]:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (text,) = re.findall(r'define "octavo.rules" -}}\n(.*?){{- end }}', helpers, re.DOTALL)
    found: list[dict[str, list[str]]] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
def test_chart_grants_what_a_child_needs(kind: Kind) -> None:
    (verbs,) = [one["verbs"] for one in rules() if one["apiGroups"] == [kind.group] and kind.plural in one["resources"]]
    assert verbs == ["get", "list", "watch", "create", "patch"]


def test_chart_grants_nothing_by_a_wildcard_and_no_secret() -> None:
    assert "*" not in str(rules())
    assert "secrets" not in str(rules())


def test_chart_allows_by_the_names_that_the_operator_knows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["allow"]["items"]["enum"] == [*Privilege]
    policy = (CHART / "templates" / "policy.yaml").read_text()
    assert re.findall(r'if not \(has "(\w+)" .Values.allow\)', policy) == [*Privilege]
    assert f"(lt (len .Values.allow) {len(Privilege)})" in policy
