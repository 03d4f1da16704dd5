"""torch's threads: as many as this process may keep busy."""

from __future__ import annotations

import torch

from octavo_runtime.engine.limits import usable_cpus

__all__ = ["set_threads"]


def set_threads() -> int:
    """Sets torch's compute threads to the processors of affinity and control group; returns how many.

    More threads than processors collapse: every parallel region waits for a thread that is not running.
    """
    threads = usable_cpus()
    torch.set_num_threads(threads)
    return threads
