"""What a part finds, in a file that is whole after each figure: what comes later cannot lose what came before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import say

__all__ = ["Results", "read"]


class Results:
    """Figures, limits and faults of one part.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {"figures": {}, "limits": {}, "faults": [], "facts": {}}
        self._write()

    def add(self, figures: Mapping[str, float]) -> None:
        """Keeps figures, and says them."""
        say("  " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        self._found["figures"].update(figures)
        self._write()

    def limit(self, limits: Mapping[str, float]) -> None:
        """Keeps what the device allows."""
        self._found["limits"].update(limits)
        self._write()

    def fault(self, what: str) -> None:
        """Keeps what is wrong."""
        say(f"  FAULT {what}")
        self._found["faults"].append(what)
        self._write()

    def fact(self, name: str, value: object) -> None:
        """Keeps what is no number."""
        self._found["facts"][name] = value
        self._write()

    def _write(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._found), encoding="utf-8")
        partial.replace(self._path)


def read(path: Path) -> dict[str, Any]:
    """What a part has left; nothing where it did not even begin."""
    if not path.exists():
        return {"figures": {}, "limits": {}, "faults": [], "facts": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
