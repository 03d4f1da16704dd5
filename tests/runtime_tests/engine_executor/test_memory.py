"""What malloc does with memory that was freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the settings are the process's. 64 pieces of 1 MiB, of which every other one is freed.
PROGRAM = """
import sys
from pathlib import Path
from octavo_runtime.engine import memory
import numpy as np

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

np.ones(1 << 22, np.float32)  # a large piece was freed before: from now on malloc would keep what is smaller
getattr(memory, sys.argv[1])()
pieces = [np.ones(1 << 18, np.float32) for _ in range(64)]
full = resident()
del pieces[::2]
print(full - resident())
"""


@pytest.mark.parametrize(("setting", "returned"), [("return_freed_memory", True), ("keep_freed_memory", False)])
def test_freed_memory(setting: str, returned: bool) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, setting], capture_output=True, text=True, check=True)
    assert (int(result.stdout) > 24 << 20) == returned
