from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from octavo_kernels.gpu import Configuration, KernelFailed, launch, target_of, unsupported_gpu
from octavo_kernels.testing import Guards


class Uncompilable:
    """A kernel that wants more than the GPU has."""

    __name__ = "attention_kernel"

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(**_constexprs_and_options: object) -> None:
            raise OutOfResources(300_000, 232_448, "shared memory")

        return run


def test_launch_names_a_kernel_that_does_not_compile() -> None:
    with pytest.raises(KernelFailed, match=r"attention_kernel does not compile .*'TILE': 64.* 4 warps .* 232448"):
        launch(Uncompilable(), (1,), Configuration({"TILE": 64}))


def test_launch_of_nothing() -> None:
    launch(Uncompilable(), (3, 0), Configuration({}))


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), 80), ((8, 9), 80), ((9, 0), 90), ((10, 0), 100), ((10, 3), 100), ((12, 0), 80)]
)
def test_target_of(capability: tuple[int, int], target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert target_of(torch.device("cuda")) == target
    assert unsupported_gpu(capability) is None


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
