"""The kernels' threads between calls."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import torch

from octavo_kernels.native import Context
from octavo_kernels.native.operations import Operations


def kernel_threads() -> dict[str, int]:
    """Nanoseconds of processor of each of the library's threads in this process."""
    found: dict[str, int] = {}
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            if (thread / "comm").read_text().strip() == "octavo-kernels":
                found[thread.name] = int((thread / "schedstat").read_text().split()[0])
    return found


def test_threads_sleep_between_calls() -> None:
    others = kernel_threads().keys()
    operations = Operations(Context(3))
    for _ in range(20):
        operations.linear(torch.ones(40, 256), torch.ones(512, 256), None)
    before = kernel_threads()
    ours = before.keys() - others
    assert len(ours) == 2
    assert not threading.Event().wait(0.3)
    after = kernel_threads()
    # One that spins would take 300 ms, if the machine lets it; one that sleeps takes none, however busy others are.
    assert all(after[thread] - before[thread] < 20_000_000 for thread in ours)
