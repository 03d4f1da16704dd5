from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_kernels.native.arrays import BFLOAT16, cast, dtype_name, dtype_of, from_tensor, to_tensor

NAMES = ["float16", "bfloat16", "float32", "float64"]
SPECIAL = [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, 1e-45, 65504.0, 65520.0, 3.4e38, -3.4e38]
NOT_FINITE = [np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_cast_as_torch(source: str, target: str) -> None:
    numbers = torch.cat((
        torch.tensor([*SPECIAL, *NOT_FINITE], dtype=torch.float64),
        # Of float32, since torch goes to narrow types by way of that, and rounds twice.
        (torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 100).double(),
    )).to(getattr(torch, source))  # fmt: skip
    got = cast(from_tensor(numbers), dtype_of(target))
    assert dtype_name(got.dtype) == target
    torch.testing.assert_close(
        to_tensor(got), numbers.to(getattr(torch, target)), rtol=0, atol=0, equal_nan=True, check_dtype=True
    )


def test_cast_bfloat16_every_number() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16)
    back = cast(cast(every, np.dtype(np.float32)), BFLOAT16)
    nan = np.isnan(cast(every, np.dtype(np.float32)))
    assert np.array_equal(back[~nan], every[~nan])
    assert np.isnan(cast(back[nan], np.dtype(np.float32))).all()


def test_from_tensor_and_back_on_the_same_memory() -> None:
    for name in NAMES:
        tensor = torch.zeros(3, 2, dtype=getattr(torch, name))
        to_tensor(from_tensor(tensor))[1] = 7
        assert tensor.tolist() == [[0, 0], [7, 7], [0, 0]]
