"""torch's threads: as many as this process may keep busy."""

from __future__ import annotations

import os

import torch

from octavo_runtime.engine.limits import usable_cpus

__all__ = ["set_threads"]


def set_threads() -> int:
    """Sets torch's compute threads and returns how many: OMP_NUM_THREADS where it is set, else the usable processors.

    More threads than processors collapse: every parallel region waits for a thread that is not running.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdecimal() and int(asked) > 0 else usable_cpus()
    torch.set_num_threads(threads)
    return threads
