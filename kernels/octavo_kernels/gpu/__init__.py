"""What the Triton forms share: how a kernel is launched, and how it is proved without a GPU. See README.md."""

from __future__ import annotations

from octavo_kernels.dispatch import KernelFailed
from octavo_kernels.gpu.launching import launch, target_of, unsupported_gpu
from octavo_kernels.gpu.shipped import TARGETS, Configuration, Shipped

__all__ = ["TARGETS", "Configuration", "KernelFailed", "Shipped", "launch", "target_of", "unsupported_gpu"]
