"""What a CUDA graph must not hold, looked for in a decode step on tensors of a GPU that is not there.

Torch's fake tensors have a device, a shape and no numbers: an operation that reads one on the host fails, as it would
while a stream is captured. No kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_kernels.gpu.ahead import operations
from octavo_kernels.linear import invariant
from octavo_kernels.paged_attention.rows import row_width
from octavo_runtime.engine.decode_graphs import DecodeGraphs
from octavo_runtime.engine.decode_table import Layout
from octavo_runtime.engine.kv_cache import pool_shape
from octavo_runtime.loading.spec import DecoderSpec, read_spec
from octavo_runtime.models.decoder import Decoder

CUDA = torch.device("cuda", 0)
ROWS, BLOCKS, BLOCK_SIZE = 16, 16, 16


class Rules(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Every operation stays on the GPU: a copy from or to the host's memory would be made while capturing, once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
        assert all(each.device.type == "cuda" for each in tensors), f"{func} reaches the host's memory"
        self.seen += 1
        return result


class Device:
    """A GraphDevice that only captures."""

    def __init__(self) -> None:
        self.captured = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        with Rules() as rules:
            work()
        assert rules.seen > 20
        self.captured += 1
        return work

    def send(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        raise AssertionError(f"nothing is sent while capturing, and here {numbers.shape} numbers are")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that would be launched, each with tensors of the GPU alone."""
    names: set[str] = set()

    def launch(kernel: Any, _grid: tuple[int, ...], _configuration: Any, *arguments: Any) -> None:
        assert all(each.device == CUDA for each in arguments if isinstance(each, torch.Tensor)), kernel.__name__
        names.add(kernel.__name__)

    for module in (*(module for _, module in operations()), invariant):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "triton")
    form.cache_clear()
    return names


def parameters(spec: DecoderSpec, kind: str) -> dict[str, torch.Tensor]:
    """As `loading.weight_map` and `models.quantised` name them, on the GPU."""
    heads, kv = spec.num_heads * spec.head_dim, 2 * spec.num_kv_heads * spec.head_dim
    made = {"embedding": (spec.vocab_size, spec.hidden_size), "norm": (spec.hidden_size,)}
    made["head"] = made["embedding"]
    for number in range(spec.num_layers):
        layer = f"layers.{number}"
        made |= {
            f"{layer}.attention_norm": (spec.hidden_size,),
            f"{layer}.mlp_norm": (spec.hidden_size,),
            f"{layer}.qkv.weight": (heads + kv, spec.hidden_size),
            f"{layer}.output.weight": (spec.hidden_size, heads),
            f"{layer}.gate_up.weight": (2 * spec.intermediate_size, spec.hidden_size),
            f"{layer}.down.weight": (spec.hidden_size, spec.intermediate_size),
        }
    found: dict[str, torch.Tensor] = {}
    for name, shape in made.items():
        stem = name.removesuffix(".weight")
        if stem == name or kind == "stored":
            found[name] = torch.empty(shape, dtype=torch.bfloat16, device=CUDA)
        elif kind == "int8":
            found[name] = torch.empty(shape, dtype=torch.int8, device=CUDA)
            found[f"{stem}.scales"] = torch.empty(shape[0], device=CUDA)
        else:
            found[f"{stem}.packed"] = torch.empty((shape[1] // 64, shape[0], 32), dtype=torch.uint8, device=CUDA)
            found[f"{stem}.groups"] = torch.empty((shape[1] // 32, shape[0]), dtype=torch.int32, device=CUDA)
    return found


@pytest.mark.parametrize(
    ("kind", "kv_dtype", "settings", "product"),
    [
        ("stored", torch.bfloat16, {}, None),
        ("stored", torch.float8_e4m3fn, {"batch_invariant": True}, "invariant_kernel"),
        ("int8", torch.bfloat16, {}, "int8_kernel"),
        ("int8", torch.int8, {"int8_rows": True}, "quantise_kernel"),
        ("groups", torch.bfloat16, {}, "groups_kernel"),
    ],
    ids=str,
)
def test_a_decode_step_can_be_captured(
    kind: str,
    kv_dtype: torch.dtype,
    settings: dict[str, bool],
    product: str | None,
    launched: set[str],
    smollm2: Path,
) -> None:
    spec = replace(read_spec(smollm2), num_layers=2)
    layout, device = Layout(ROWS, BLOCKS), Device()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        shape = pool_shape(spec, BLOCKS, BLOCK_SIZE, row_width(spec.head_dim, kv_dtype))
        decoder = Decoder(
            spec,
            parameters(spec, kind),
            kv_cache=torch.empty(shape, dtype=kv_dtype, device=CUDA),
            vocab_size=spec.vocab_size - 3,
            max_model_len=BLOCKS * BLOCK_SIZE,
            **settings,
        )
        words = torch.zeros(layout.size, dtype=torch.int32, device=CUDA)
        DecodeGraphs(decoder, device, words, layout=layout, max_rows=ROWS, block_size=BLOCK_SIZE)
    assert device.captured == 5  # of 1, 2, 4, 8 and 16 rows
    assert {"rms_norm_kernel", "rotary_kv_kernel", "silu_mul_kernel", "sample_kernel"} <= launched
    attention = {"prefill_kernel"} if settings.get("batch_invariant") else {"decode_kernel", "merge_kernel"}
    assert attention <= launched
    assert product is None or product in launched


@pytest.mark.parametrize(
    "breaks",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: torch.ones(4).to(x.device),
        lambda x: x[torch.tensor([1, 0])],
    ],
)
def test_rules_are_broken_by(breaks: Callable[[torch.Tensor], object]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.zeros(4, device=CUDA)

        def work() -> None:
            for _ in range(30):
                x.add(1)
            breaks(x)

        with pytest.raises((AssertionError, DataDependentOutputException, DynamicOutputShapeException)):
            Device().capture(work)
