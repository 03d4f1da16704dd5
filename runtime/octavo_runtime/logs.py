"""Log lines of every process: one JSON object each, for machines; short text on a terminal."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

__all__ = ["set_up_logging"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def set_up_logging(level: str) -> None:
    """Sends everything from `level` on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Terminal() if sys.stderr.isatty() else _Json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class _Terminal(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        return super().format(record) + extra
