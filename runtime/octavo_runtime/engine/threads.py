"""How many threads may compute at once."""

from __future__ import annotations

import os

from octavo_runtime.engine.limits import usable_cpus

__all__ = ["compute_threads"]


def compute_threads() -> int:
    """OMP_NUM_THREADS where it is set, else the usable processors.

    More threads than processors collapse: every parallel region waits for a thread that is not running.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cpus()
