import json
import logging
from collections.abc import Iterator

import pytest

from octavo_operator.logs import Throttle, configure_logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root, kopf_clients = logging.getLogger(), logging.getLogger("kopf._cogs.clients")
    handlers, level, filters = root.handlers[:], root.level, kopf_clients.filters[:]
    yield
    root.handlers[:], kopf_clients.filters[:] = handlers, filters
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


def test_throttle_passes_one_line_per_level_and_period() -> None:
    now = 0.0
    throttle = Throttle(10.0, lambda: now)

    def passes(level: int) -> bool:
        return throttle.filter(logging.makeLogRecord({"levelno": level}))

    assert [passes(logging.ERROR), passes(logging.ERROR), passes(logging.INFO)] == [True, False, True]
    now = 10.0
    assert passes(logging.ERROR)
