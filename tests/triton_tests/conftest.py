"""The kernels of the Triton forms, run by Triton's interpreter on the CPU: `pytest tests/triton_tests`, alone.

Triton reads the variable when a kernel is decorated, so it is set before any is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.exit(
        "triton was imported before its interpreter was chosen: run tests/triton_tests in a process of their own", 4
    )
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from octavo_kernels.gpu import Configuration, launch
from octavo_kernels.gpu.ahead import operations
from octavo_kernels.linear import invariant
from octavo_kernels.testing import Guards

_GUARD = 1 << 15  # bytes
_LARGEST = 1 << 24  # bytes: tests that need more want addresses, and do not touch most of them


_interpreters_dot = InterpreterBuilder.create_dot


def _dot_in_one_order(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
    """The interpreter's product, with each sum in one order wherever its row stands, as a GPU has it.

    numpy leaves the order to its library, which takes rows at the end of a matrix another way on some processors.
    """
    if a.data.dtype != np.float32 or b.data.dtype != np.float32:
        return _interpreters_dot(self, a, b, d, *rest)
    products = a.data[..., :, :, None] * b.data[..., None, :, :]
    return TensorHandle(products.sum(axis=-2) + d.data, d.dtype.scalar)


InterpreterBuilder.create_dot = _dot_in_one_order


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Places tensors between guards, and looks at the end whether a kernel wrote over them."""
    guards = Guards()
    yield guards
    guards.check()


@pytest.fixture(autouse=True)
def _every_buffer_between_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a form takes for itself, which hold NaN until something is written."""
    for module in (*(module for _, module in operations()), invariant):
        monkeypatch.setattr(module, "launch", guarded_launch)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _filled(getattr(owner, name)))


def guarded_launch(kernel: Any, grid: tuple[int, ...], configuration: Configuration, *arguments: Any) -> None:
    """Launches a kernel on copies between guards, and takes over what it wrote; arguments may share their memory."""
    copies: dict[int, tuple[torch.UntypedStorage, torch.Tensor, int]] = {}  # the original, the copy, a guard's byte

    def moved(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor) or not 0 < argument.untyped_storage().nbytes() <= _LARGEST:
            return argument
        storage = argument.untyped_storage()
        if storage.data_ptr() not in copies:
            # NaN in each floating type; an integer so large that an address made with it is nobody's.
            poison = 0xFF if argument.is_floating_point() else 0x7F
            copy = torch.full((storage.nbytes() + 2 * _GUARD,), poison, dtype=torch.uint8)
            copy[_GUARD:-_GUARD] = _bytes(storage)
            copies[storage.data_ptr()] = storage, copy, poison
        _, copy, _ = copies[storage.data_ptr()]
        offset = _GUARD // argument.element_size() + argument.storage_offset()
        placed = torch.tensor([], dtype=argument.dtype)
        return placed.set_(copy.untyped_storage(), offset, argument.shape, argument.stride())

    launch(kernel, grid, configuration, *[moved(argument) for argument in arguments])
    for storage, copy, poison in copies.values():
        beside = torch.cat((copy[:_GUARD], copy[-_GUARD:]))
        assert (beside == poison).all(), f"{kernel.__name__} wrote beside a buffer of {storage.nbytes()} bytes"
        _bytes(storage).copy_(copy[_GUARD:-_GUARD])


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.tensor([], dtype=torch.uint8).set_(storage)


def _filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """As `make`, whose memory is not initialised; it holds NaN, or the largest of whole numbers."""

    def filled(*arguments: Any, **settings: Any) -> torch.Tensor:
        tensor = make(*arguments, **settings)
        if tensor.numel() * tensor.element_size() <= _LARGEST:
            tensor.view(torch.uint8).fill_(0xFF if tensor.is_floating_point() else 0x7F)
        return tensor

    return filled
