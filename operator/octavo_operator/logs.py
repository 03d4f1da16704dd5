"""Log lines: one JSON object each, or text for a terminal; an outage does not flood them."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Throttle", "configure_logs"]

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class Throttle(logging.Filter):
    """For a handler: of a logger and those below it, one warning and one error pass in each period.

    Args:
        name: the logger that repeats itself; lines of all others pass.
        period: seconds.
        monotonic: the clock.
    """

    def __init__(self, name: str, period: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self._period = period
        self._monotonic = monotonic
        self._next: dict[int, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        if record.levelno < logging.WARNING or not super().filter(record):
            return True
        now = self._monotonic()
        if now < self._next.get(record.levelno, now):
            return False
        self._next[record.levelno] = now + self._period
        return True


def configure_logs(level: int, *, json_lines: bool) -> None:
    """Sends everything to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if json_lines else logging.Formatter(TEXT_FORMAT))
    # During an outage kopf writes three lines per retry and watch.
    handler.addFilter(Throttle("kopf._cogs.clients", 10.0))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # kopf tells of every event that a handler took in.
    logging.getLogger("kopf.objects").setLevel(max(level, logging.WARNING))
