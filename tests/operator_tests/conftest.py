from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

GOLDEN = Path(__file__).parent / "golden"


class Golden(Protocol):
    """Compares a value with the file of that name; writes the file with --update-golden."""

    def __call__(self, name: str, value: Any) -> None: ...


class GoldenScreen(Protocol):
    """The same for text that a person reads: golden/screens/NAME.txt."""

    def __call__(self, name: str, text: str) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden/ anew; review them by git diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    def compare(name: str, value: Any) -> None:
        path = GOLDEN / f"{name}.yaml"
        if request.config.getoption("--update-golden", default=False):
            path.write_text(yaml.safe_dump_all(value, sort_keys=False, width=120))
        assert list(yaml.safe_load_all(path.read_text())) == list(value)

    return compare


@pytest.fixture
def golden_screen(request: pytest.FixtureRequest) -> GoldenScreen:
    def compare(name: str, text: str) -> None:
        path = GOLDEN / "screens" / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            path.write_text(f"{text}\n")
        assert path.read_text() == f"{text}\n"

    return compare
