"""What Triton raises on its way from a launch to a GPU, with a driver that fails where a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler
from triton.runtime import driver

from octavo_kernels.gpu import Configuration, KernelFailed, launch

CONFIGURATION = Configuration({"SIZE": 64}, num_warps=2, num_stages=1)


@triton.jit  # type: ignore[untyped-decorator]
def double(x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    places = tl.arange(0, SIZE)
    tl.store(x + places, tl.load(x + places) * 2)


class FaultyDriver:
    """A driver of a GPU that is not there.

    Attributes:
        on_load: What it raises instead of loading machine code.
        on_launch: What it raises instead of starting a kernel.
        launched: How often one was started.
    """

    def __init__(self) -> None:
        self.utils = self
        self.on_load: Exception | None = None
        self.on_launch: Exception | None = None
        self.launched = 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def launcher_cls(self, _source: object, _metadata: object) -> Callable[..., None]:
        def start(*_: object) -> None:
            if self.on_launch:
                raise self.on_launch
            self.launched += 1

        return start

    def load_binary(self, *_: object) -> tuple[int, int, int, int, int]:
        if self.on_load:
            raise self.on_load
        return 1, 1, 32, 0, 1024

    def unload_module(self, _module: int) -> None:
        pass


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDriver]:
    made = FaultyDriver()
    monkeypatch.setattr(driver, "_active", made)
    monkeypatch.setattr(compiler, "max_shared_mem", lambda _device: 1 << 20)
    yield made
    for compiled, *_ in double.device_caches.values():
        for kernel in compiled.values():
            kernel.module = None  # or it would be unloaded when this driver is no more
    double.device_caches.clear()


def start() -> None:
    launch(double, (1,), CONFIGURATION, torch.zeros(64))


def failure() -> KernelFailed:
    with pytest.raises(KernelFailed, match=r"kernel double .*{'SIZE': 64}, 2 warps and 1 stages") as caught:
        start()
    assert "OCTAVO_KERNELS=reference" in str(caught.value)
    return caught.value


def test_launch(faulty: FaultyDriver) -> None:
    start()
    assert faulty.launched == 1


@pytest.mark.usefixtures("faulty")
def test_launch_more_shared_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "max_shared_mem", lambda _device: -1)
    for _ in range(2):  # Triton keeps what it compiled, and fails again
        failed = failure()
        assert "does not compile for this GPU" in failed.reason
        assert "out of resource: shared memory" in failed.reason
        assert not failed.by_device


@pytest.mark.usefixtures("faulty")
def test_launch_cache_that_cannot_be_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert "TRITON_CACHE_DIR chooses another" in failure().reason


@pytest.mark.parametrize("where", ["on_load", "on_launch"])
@pytest.mark.parametrize("what", ["an illegal memory access was encountered", "out of memory"])
def test_launch_device_fails(where: str, what: str, faulty: FaultyDriver) -> None:
    setattr(faulty, where, RuntimeError(f"Triton Error [CUDA]: {what}"))
    for _ in range(2):
        failed = failure()
        assert "its own or of a kernel before it" in failed.reason
        assert what in failed.reason
        assert failed.by_device
