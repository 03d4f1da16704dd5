"""Which device to run on, found without torch: it takes seconds and hundreds of megabytes, and a CPU needs none of it."""

from __future__ import annotations

import ctypes
from pathlib import Path

from octavo_runtime.domain import EngineConfig
from octavo_runtime.loading.plan import resolve_device

__all__ = ["device_type", "gpu_driver"]


def device_type(config: EngineConfig) -> str:
    """`cuda` or `cpu`; `auto` means cuda wherever there is a GPU's driver."""
    return resolve_device(config.device, cuda_available=gpu_driver())


def gpu_driver() -> bool:
    """Whether there is a driver with a GPU. Whether the GPU can be used, torch alone can tell."""
    if Path("/dev/kfd").exists():  # AMD's
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    # 0: success. The first call fails where the library is there and no GPU is.
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
