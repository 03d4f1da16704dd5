import json
import logging
from collections.abc import Iterator

import pytest

from octavo_operator.logs import Throttle, configure_logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_configure_logs_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(logging.INFO, json_lines=True)
    try:
        int("no")
    except ValueError:
        logging.getLogger("a.b").exception("it said “%s”\nand more", "x")
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "it said “x”\nand more"
    assert (line["level"], line["logger"]) == ("error", "a.b")
    assert "ValueError: invalid literal" in line["exception"]


def test_configure_logs_outage_does_not_flood(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(logging.INFO, json_lines=True)
    for _ in range(100):
        logging.getLogger("kopf._cogs.clients.watching").error("Request attempt failed")
        logging.getLogger("octavo_operator").warning("ours")
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "Request attempt failed" in line]) == 1
    assert len([line for line in lines if "ours" in line]) == 100


def test_throttle_passes_one_warning_and_one_error_per_period() -> None:
    now = 0.0
    throttle = Throttle("loud", 10.0, lambda: now)

    def passes(level: int, name: str = "loud.below") -> bool:
        return throttle.filter(logging.makeLogRecord({"levelno": level, "name": name}))

    assert [passes(logging.ERROR), passes(logging.ERROR), passes(logging.WARNING)] == [True, False, True]
    assert [passes(logging.DEBUG), passes(logging.DEBUG)] == [True, True]
    assert [passes(logging.ERROR, "louder"), passes(logging.ERROR, "louder")] == [True, True]
    now = 10.0
    assert passes(logging.ERROR)
