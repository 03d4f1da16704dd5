"""What a GPU, its libraries and our kernels raise, as what ends the engine: never a step on something else instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from octavo_kernels.dispatch import WITHOUT_KERNELS, KernelFailed
from octavo_runtime.errors import DeviceLost, DeviceUnavailable, NotEnoughMemoryForKV

__all__ = ["device_errors"]

_OF_LIBRARIES = "CUDA error"  # how torch begins what cuBLAS and its like have told it, in a plain RuntimeError


@contextmanager
def device_errors(when: str) -> Iterator[None]:
    """Around work on a device; also a decorator.

    Args:
        when: What was done, for the message: "in a step of 3 tokens".

    Raises:
        DeviceLost: The device failed; the process cannot go on.
        DeviceUnavailable: A kernel does not compile for this GPU or was not started.
        NotEnoughMemoryForKV: It has no memory left for the work beside the KV cache.
    """
    try:
        yield
    except KernelFailed as error:
        failure = DeviceLost if error.by_device else DeviceUnavailable
        raise failure(f"{when}: {error.reason}", hint=WITHOUT_KERNELS) from error
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemoryForKV(
            f"the GPU has no memory left {when}: {error}",
            hint="Use a smaller --gpu-memory-utilization or --kv-cache-memory, and let nothing else use the GPU.",
        ) from error
    except RuntimeError as error:
        if isinstance(error, torch.AcceleratorError) or str(error).startswith(_OF_LIBRARIES):
            raise DeviceLost(f"the GPU failed {when}: {error}") from error
        raise
