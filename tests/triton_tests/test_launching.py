from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources, PTXASError

from octavo_kernels.block_copy import triton as block_copy
from octavo_kernels.gpu import Configuration, KernelFailed, launch, target_of, unsupported_gpu
from octavo_kernels.testing import Guards


class Failing:
    """A kernel whose launch ends with an error."""

    __name__ = "attention_kernel"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(**_constexprs_and_options: object) -> None:
            raise self._error

        return run


COMPILES = "does not compile for this GPU"
ERRORS = {
    "more than the GPU has": (OutOfResources(300_000, 232_448, "shared memory"), COMPILES),
    "the assembler": (PTXASError("no registers left"), COMPILES),
    "the cache": (PermissionError(13, "Permission denied", "/.triton"), ".* cannot use its cache .TRITON_CACHE_DIR"),
    "no C compiler": (RuntimeError("Failed to find C compiler"), "was not started: RuntimeError"),
    "an argument": (ValueError("Pointer argument cannot be accessed from Triton"), "was not started: ValueError"),
    "illegal address": (
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        "was not started; the error is its own or of a kernel before it",
    ),
}


@pytest.mark.parametrize(("error", "what"), ERRORS.values(), ids=ERRORS.keys())
def test_launch_names_a_kernel_that_fails(error: Exception, what: str) -> None:
    with pytest.raises(KernelFailed, match=f"the Triton kernel attention_kernel {what}") as caught:
        launch(Failing(error), (1,), Configuration({"TILE": 64}))
    assert "{'TILE': 64}, 4 warps and 2 stages" in caught.value.reason
    assert caught.value.reason.endswith(str(error))
    assert "OCTAVO_KERNELS=reference" in str(caught.value)
    assert caught.value.by_device == ("Triton Error [CUDA]" in str(error))
    assert caught.value.__cause__ is error


def test_launch_of_nothing() -> None:
    launch(Failing(RuntimeError("it was started")), (3, 0), Configuration({}))


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), 80), ((8, 9), 80), ((9, 0), 90), ((10, 0), 100), ((10, 3), 100), ((12, 0), 80)]
)
def test_target_of(capability: tuple[int, int], target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert target_of(torch.device("cuda")) == target
    assert unsupported_gpu(capability) is None


@triton.jit  # type: ignore[untyped-decorator]
def halves(out, x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    places = tl.arange(0, SIZE)
    tl.store(out + places, tl.load(x + places) / 2)


def test_launches_of_these_tests_are_between_guards() -> None:
    """The first numbers are written, one more is not, and what is read beside a buffer is NaN."""
    start: Any = vars(block_copy)["launch"]
    x, out = torch.ones(8), torch.empty(8)
    start(halves, (1,), Configuration({"SIZE": 4}), out, x)
    assert out.isnan().tolist() == [False] * 4 + [True] * 4
    with pytest.raises(AssertionError, match="halves wrote beside a buffer of 16 bytes"):
        start(halves, (1,), Configuration({"SIZE": 8}), torch.empty(4), x)
    start(halves, (1,), Configuration({"SIZE": 8}), out, torch.ones(4))
    assert out.isnan().tolist() == [False] * 4 + [True] * 4


def test_guards_find_a_write_beside_a_tensor() -> None:
    guards = Guards()
    placed = guards.place(torch.arange(10))
    guards.check()
    placed.as_strided((1,), (1,), placed.storage_offset() + 10)[0] = 7
    with pytest.raises(AssertionError, match="1 numbers were written behind a tensor"):
        guards.check()


def test_guards_are_read_as_nan() -> None:
    placed = Guards().place(torch.ones(2, 3, dtype=torch.float16))
    assert placed.as_strided((1,), (1,), placed.storage_offset() - 1).isnan().all()
