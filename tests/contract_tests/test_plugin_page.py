"""docs/kubectl.md shows what the plugin writes, and says how each command is called."""

from pathlib import Path

import pytest

from octavo_operator.core.decisions import Subject

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "kubectl.md").read_text()
SCREENS = REPOSITORY / "tests" / "operator_tests" / "golden" / "screens"


@pytest.mark.parametrize("name", ["status-rolling", "why", "plan-changed", "top"])
def test_page_shows_the_screen(name: str) -> None:
    assert (SCREENS / f"{name}.txt").read_text() in PAGE


@pytest.mark.parametrize("subject", Subject)
def test_page_names_each_subject_of_a_decision(subject: Subject) -> None:
    assert f"(`{subject}`)" in PAGE
