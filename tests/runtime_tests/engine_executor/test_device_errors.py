from __future__ import annotations

import pytest
import torch

from octavo_kernels.dispatch import KernelFailed
from octavo_runtime.engine.device_errors import device_errors
from octavo_runtime.errors import DeviceLost, DeviceUnavailable, NotEnoughMemoryForKV, StartError

ERRORS: dict[str, tuple[Exception, type[StartError]]] = {
    "compiler": (KernelFailed("the Triton kernel a does not compile"), DeviceUnavailable),
    "launch": (KernelFailed("the Triton kernel a was not started", by_device=True), DeviceLost),
    "memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), NotEnoughMemoryForKV),
    "torch": (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), DeviceLost),
    "cuBLAS": (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), DeviceLost),
}


@pytest.mark.parametrize(("error", "ends_with"), ERRORS.values(), ids=ERRORS.keys())
def test_device_errors(error: Exception, ends_with: type[StartError]) -> None:
    with pytest.raises(ends_with, match="in a step of 3 tokens") as caught, device_errors("in a step of 3 tokens"):
        raise error
    assert str(error).splitlines()[0] in caught.value.message
    assert caught.value.__cause__ is error
    assert bool(caught.value.hint) == (ends_with is not DeviceLost or isinstance(error, KernelFailed))


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("a")], ids=str)
def test_device_errors_of_our_own_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, device_errors("in a step"):
        raise error
    assert caught.value is error
