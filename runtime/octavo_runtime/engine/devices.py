"""Which device to run on, found without torch: it takes seconds and hundreds of megabytes, and a CPU needs none of it."""

from __future__ import annotations

import ctypes
from pathlib import Path

from octavo_runtime.domain import EngineConfig
from octavo_runtime.loading.plan import resolve_device

__all__ = ["device_type", "gpu_driver"]

_LIBRARY = "libcuda.so.1"
_AMD, _NVIDIA = Path("/dev/kfd"), Path("/dev/nvidiactl")
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def device_type(config: EngineConfig) -> str:
    """`cuda` or `cpu`; `auto` means cuda wherever there is a GPU's driver."""
    return resolve_device(config.device, cuda_available=gpu_driver())


def gpu_driver() -> bool:
    """Whether there is a GPU, or a driver of one that fails. Whether the GPU can be used, torch alone can tell.

    A GPU that cannot be used must not be taken for none: who has one does not want a CPU in its place.
    """
    if _AMD.exists():
        return True
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return _NVIDIA.exists()
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE:  # also where CUDA_VISIBLE_DEVICES hides it
        return False
    return count.value > 0 if status == 0 else _NVIDIA.exists()
