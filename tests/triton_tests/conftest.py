"""The kernels of the Triton forms, run by Triton's interpreter on the CPU: `pytest tests/triton_tests`, alone.

Triton reads the variable when a kernel is decorated, so it is set before any is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.exit(
        "triton was imported before its interpreter was chosen: run tests/triton_tests in a process of their own", 4
    )
os.environ["TRITON_INTERPRET"] = "1"

import torch

from octavo_kernels.testing import Guards


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Places tensors between guards, and looks at the end whether a kernel wrote over them."""
    guards = Guards()
    yield guards
    guards.check()
