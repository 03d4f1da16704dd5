from __future__ import annotations

import pytest
import torch

from octavo_kernels.native import Context, isas
from octavo_kernels.native.operations import Operations


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module", params=["avx512vnni", "avx512", "avx2"])
def native(request: pytest.FixtureRequest) -> Operations:
    if request.param not in isas():
        pytest.skip(f"this processor has no {request.param}")
    return Operations(Context(2, request.param))
