"""The end of a program that failed: a readable form on stderr, JSON in the termination log (docs/contract.md)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_runtime.errors import StartError

__all__ = ["report", "termination_log"]

_FLAG = "--termination-log"
_DEFAULT = Path("/dev/termination-log")
_MAX_BYTES = 4096  # the kubelet cuts what is longer


def termination_log(argv: Sequence[str]) -> Path | None:
    """Where the termination message goes: found without a parser, since the flags may be what is wrong."""
    for position, argument in enumerate(argv):
        if argument == _FLAG and position + 1 < len(argv):
            return Path(argv[position + 1])
        if argument.startswith(f"{_FLAG}="):
            return Path(argument.removeprefix(f"{_FLAG}="))
    return _DEFAULT if _DEFAULT.exists() else None


def report(error: StartError, log: Path | None) -> None:
    """Tells a user and Kubernetes why the program ends."""
    print(f"octavo: {error.code}: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    if log is None:
        return
    try:
        log.write_text(_termination_message(error), encoding="utf-8")
    except OSError as failure:
        print(f"octavo: the termination message cannot be written: {failure}", file=sys.stderr)


def _termination_message(error: StartError) -> str:
    message = error.message
    while True:
        text = json.dumps(
            {
                "code": error.code,
                "message": message,
                "hint": error.hint,
                "needed": error.needed,
                "available": error.available,
            },
            ensure_ascii=False,
        )
        if len(text.encode()) <= _MAX_BYTES or not message:
            return text
        message = message[: len(message) * 3 // 4]
