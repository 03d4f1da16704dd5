"""Help pages of all programs fit a terminal of 80 columns."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from octavo_operator import replay
from octavo_operator.plugin import cli
from octavo_operator.selftest import program
from octavo_operator.settings import parse_settings


def plugin(arguments: Sequence[str]) -> None:
    asyncio.run(cli.run(arguments, {}))


PAGES: dict[str, Callable[[Sequence[str]], object]] = {
    "octavo-operator": lambda arguments: parse_settings(arguments, {}),
    "octavo-operator replay": replay.main,
    "octavo-operator selftest": program.main,
    "kubectl octavo": plugin,
    **{
        f"kubectl octavo {command}": partial(lambda command, rest: plugin([command, *rest]), command)
        for command in ("status", "why", "plan", "logs", "top")
    },
}


@pytest.mark.parametrize("page", PAGES)
def test_help_fits_80_columns(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        PAGES[page](["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: {page} ")
    assert [line for line in lines if len(line) > 80] == []
