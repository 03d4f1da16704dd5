from __future__ import annotations

import pytest
import torch

from octavo_runtime.layers.head import Head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [16, 21, 100])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_head(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, table = (torch.randn(count, 8, generator=generator).to(dtype) for count in (rows, vocabulary + 7))
    logits = Head(table[:vocabulary])(x)
    assert torch.equal(logits, torch.nn.functional.linear(x, table[:vocabulary]))
    assert logits.stride() == (-(-vocabulary // 16) * 16, 1), "a GPU's sampling reads 16 bytes at a time"
