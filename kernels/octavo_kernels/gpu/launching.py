"""Starts a kernel, and says which one it was when that fails."""

from __future__ import annotations

from typing import Any

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from octavo_kernels.dispatch import KernelFailed
from octavo_kernels.gpu.shipped import TARGETS, Configuration

__all__ = ["launch", "target_of", "unsupported_gpu"]


_MIN_CAPABILITY = (8, 0)
_OF_DRIVER = "Triton Error [CUDA]"  # how Triton's launcher begins what the driver has told it


def unsupported_gpu(capability: tuple[int, int]) -> str | None:
    """Why no Triton kernel runs on GPUs of this compute capability (major, minor); None when they do."""
    if capability < _MIN_CAPABILITY:
        has, wanted = (".".join(map(str, version)) for version in (capability, _MIN_CAPABILITY))
        return f"the GPU has compute capability {has}, and the Triton kernels are for {wanted} and later"
    return None


def target_of(device: torch.device) -> int:
    """Of TARGETS the one whose configurations suit a device; the first of them for Triton's interpreter on a CPU.

    That is the device's own or, for what none is meant for, the first: it wants the least, and no instruction that
    other generations lack.
    """
    if device.type == "cpu":
        return TARGETS[0]
    major = torch.cuda.get_device_capability(device)[0]
    return major * 10 if major * 10 in TARGETS else TARGETS[0]


def launch(kernel: Any, grid: tuple[int, ...], configuration: Configuration, *arguments: Any) -> None:
    """Starts a kernel on the current stream; returns before it has run.

    Args:
        kernel: The function under @triton.jit.
        grid: Programs along up to three axes. With none there is nothing to start.
        configuration: What it is compiled with.
        arguments: Those that are no constexprs, in order.

    Raises:
        KernelFailed: It does not compile or was not started, whatever the cause; the message names it.
    """
    if 0 in grid:
        return
    try:
        kernel[grid](
            *arguments,
            **configuration.constexprs,
            num_warps=configuration.num_warps,
            num_stages=configuration.num_stages,
            enable_fp_fusion=True,  # said, since Triton is about to change what it is by default
        )
    except Exception as error:
        how = f"{dict(configuration.constexprs)}, {configuration.num_warps} warps and {configuration.num_stages} stages"
        what, by_device = _what_failed(error)
        raise KernelFailed(
            f"the Triton kernel {kernel.__name__} {what}, with {how}: {error}", by_device=by_device
        ) from error


def _what_failed(error: Exception) -> tuple[str, bool]:
    """In words, and whether it is the device that says so."""
    match error:
        case CompilationError() | PTXASError() | OutOfResources():
            return "does not compile for this GPU", False
        case OSError():  # not the launch's own: that has nothing to do with files
            return "was not compiled, since Triton cannot use its cache (TRITON_CACHE_DIR chooses another)", False
        case RuntimeError() if str(error).startswith(_OF_DRIVER):
            return "was not started; the error is its own or of a kernel before it", True
    return f"was not started: {type(error).__name__}", False
