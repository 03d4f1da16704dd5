"""Where there is a GPU: what CUDA's driver and the device files say, with stand-ins for both."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.domain import EngineConfig
from octavo_runtime.engine import devices
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.errors import DeviceUnavailable


class Driver:
    """CUDA's, with so many GPUs, or failing with a number."""

    def __init__(self, count: int = 0, *, fails: int = 0) -> None:
        self._count = count
        self._fails = fails

    def cuInit(self, _flags: int) -> int:  # noqa: N802
        return self._fails

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0


@pytest.mark.parametrize(
    ("driver", "file", "found"),
    [
        (None, False, False),
        (None, True, True),  # a container with the device and without the driver's library
        (Driver(2), True, True),
        (Driver(0), True, False),
        (Driver(fails=100), True, False),  # CUDA_VISIBLE_DEVICES= hides it
        (Driver(fails=100), False, False),  # the library, and no GPU
        (Driver(fails=803), True, True),  # another version than the kernel's module
        (Driver(fails=999), False, False),
    ],
)
def test_gpu_driver(
    driver: Driver | None, file: bool, found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(_name: str) -> Driver:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(devices, "_AMD", tmp_path / "kfd")
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path / "nvidiactl")
    if file:
        (tmp_path / "nvidiactl").touch()
    assert devices.gpu_driver() == found
    assert devices.device_type(EngineConfig("m")) == ("cuda" if found else "cpu")


def test_gpu_that_cannot_be_used_is_no_cpu(smollm2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "_LIBRARY", str(tmp_path / "libcuda.so.1"))
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="torch finds no usable GPU") as raised:
        load_executor(EngineConfig(str(smollm2)))
    assert "--device cpu" in raised.value.hint
