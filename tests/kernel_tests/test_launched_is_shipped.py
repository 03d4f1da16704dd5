"""What a launch compiles is what `shipped` says, on the way that a GPU's launch takes up to the compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from octavo_kernels.gpu import Configuration, Shipped
from octavo_kernels.paged_attention import PagedBatch
from octavo_kernels.paged_attention import triton as form
from octavo_kernels.paged_attention.rows import row_width

HOPPER = 90


class NoDevice:
    """A driver that knows a GPU's type and has none."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", HOPPER, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Kernel's name to what Triton would compile, once each."""
    seen: dict[str, dict[str, Any]] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002 - Triton's name
        name = fn.name.split(".")[-1]
        assert name not in seen or seen[name]["key"] == compile["key"], f"{name} is compiled a second time"
        seen[name] = compile
        return True  # it is not compiled

    def launch(kernel: Any, grid: tuple[int, ...], configuration: Configuration, *arguments: Any) -> None:
        options = {"num_warps": configuration.num_warps, "num_stages": configuration.num_stages}
        kernel.warmup(*arguments, **configuration.constexprs, **options, enable_fp_fusion=True, grid=grid)

    monkeypatch.setattr(form, "launch", launch)
    monkeypatch.setattr(form, "target_of", lambda _device: HOPPER)
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", note)
    monkeypatch.setattr(driver, "_active", NoDevice())
    return seen


def shipped(name: str) -> Shipped:
    return next(one for one in form.shipped() if one.name == name and HOPPER in one.targets)


@pytest.mark.parametrize(("dtype", "suffix"), [(torch.float16, ""), (torch.int8, " i8")])
def test_paged_attention_compiles_what_is_shipped(
    compiled: dict[str, dict[str, Any]], dtype: torch.dtype, suffix: str
) -> None:
    kv = torch.zeros(2, 32, 16, 7, row_width(128, dtype), dtype=dtype)
    # Triton would compile anew for a 1, for a multiple of 16, and for a pointer that is no multiple of 16 bytes.
    for query_lens in ((1, 5), (1,), (1,) * 3, (1,) * 16, (3,) * 16, (16,)):
        sequences = len(query_lens)
        batch = PagedBatch(16, query_lens, (40,) * sequences, ((1, 2, 3),) * sequences)
        rows = torch.zeros(sum(query_lens), 42, 128, dtype=torch.float16)
        form.paged_attention(rows[:, :28], kv[0], kv[1], form.prepare(batch, rows.device), 0.1)
    assert set(compiled) == {"prefill_kernel", "decode_kernel", "merge_kernel"}
    for name, found in compiled.items():
        phase = name.removesuffix("_kernel")
        meant = shipped(f"{phase} fp16 d128 g4 b16{suffix if phase != 'merge' else ''}")
        names = meant.kernel.arg_names
        types = {argument: type_ for argument, type_ in found["signature"].items() if type_ != "constexpr"}
        absent = [argument for argument, type_ in meant.signature.items() if type_ == "none"]
        assert types == {argument: type_ for argument, type_ in meant.signature.items() if type_ != "none"}
        constants = {**meant.configuration.constexprs, **dict.fromkeys(absent)}
        if "UPCAST" in constants:  # these tensors lie on a CPU, where eight bits are widened to float32
            constants["UPCAST"] = dtype == torch.int8
        assert found["constants"] == {(names.index(argument),): value for argument, value in constants.items()}
        aligned = {names[place] for (place,), attributes in found["configs"][0].items() if attributes}
        assert aligned == {name for name, type_ in types.items() if type_.startswith("*")} | set(meant.divisible)
        assert (found["num_warps"], found["num_stages"]) == (
            meant.configuration.num_warps,
            meant.configuration.num_stages,
        )
