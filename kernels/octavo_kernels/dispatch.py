"""Chooses the form of an operation: the plain `reference`, or one made for the device.

The environment variable OCTAVO_KERNELS (reference, cpu, native or triton) forces a form, for tests and to find a faulty
kernel. A form that is forced and cannot run there is an error, never another form in silence. `triton` runs on a CPU
only when it is forced and in Triton's interpreter (TRITON_INTERPRET=1), which is for tests.

`native` is the form of a decoder's whole step (decoder_step), which whoever builds a decoder chooses. Operations that
are called one by one, such as sampling, have the form `cpu` then.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType

__all__ = ["ENVIRONMENT_VARIABLE", "WITHOUT_KERNELS", "KernelFailed", "forced_form", "form"]

ENVIRONMENT_VARIABLE = "OCTAVO_KERNELS"
WITHOUT_KERNELS = f"{ENVIRONMENT_VARIABLE}=reference runs without GPU kernels of our own, on torch, slowly."
"""What to do about a kernel that cannot run."""

# Device type to the forms that run there, best first.
_FORMS: dict[str, tuple[str, ...]] = {"cpu": ("native", "cpu", "reference"), "cuda": ("triton", "reference")}
if os.environ.get("TRITON_INTERPRET") == "1":
    _FORMS["cpu"] += ("triton",)


class KernelFailed(RuntimeError):
    """A kernel does not compile for this GPU, wants more of it than there is, or was not started.

    The message is the reason and the way round it: nothing else runs in a kernel's place by itself.

    Args:
        reason: Names the kernel and what it was compiled with.
        by_device: Whether it is the device that reports an error. It does so late, and what it reports can be of a
            kernel that ran before; nothing runs on it any more in this process.

    Attributes:
        reason: See above.
        by_device: See above.
    """

    def __init__(self, reason: str, *, by_device: bool = False) -> None:
        super().__init__(f"{reason}\n{WITHOUT_KERNELS}")
        self.reason = reason
        self.by_device = by_device


def forced_form(device_type: str) -> str | None:
    """The form that the environment forces on this type of device; None when it leaves the choice.

    Raises:
        RuntimeError: It names a form that does not exist or does not run on this device.
    """
    forms = _FORMS.get(device_type)
    if forms is None:
        raise RuntimeError(f"there are no kernels for the device {device_type!r}, only for {', '.join(_FORMS)}")
    forced = os.environ.get(ENVIRONMENT_VARIABLE)
    if forced and forced not in forms:
        raise RuntimeError(
            f"{ENVIRONMENT_VARIABLE}={forced}, but on {device_type} there are only the forms {', '.join(forms)}"
        )
    return forced or None


@functools.cache
def form(operation: str, device_type: str) -> ModuleType:
    """The module that runs `operation` on this type of device: the best that it has; the environment is read once.

    Raises:
        RuntimeError: OCTAVO_KERNELS names a form that does not exist or does not run on this device.
    """
    forced = forced_form(device_type)
    for name in (forced,) if forced else _FORMS[device_type]:
        module = f"octavo_kernels.{operation}.{'cpu' if name == 'native' else name}"
        if importlib.util.find_spec(module):
            return importlib.import_module(module)
    raise RuntimeError(f"{ENVIRONMENT_VARIABLE}={forced}, but {operation} has no such form")
