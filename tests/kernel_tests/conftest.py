from __future__ import annotations

import pytest
import torch

from octavo_kernels.native import Context
from octavo_kernels.native.operations import Operations


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def native(instruction_set: str) -> Operations:
    return Operations(Context(2, instruction_set))
