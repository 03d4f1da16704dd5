"""A kernel as it is shipped: with which constants, for which GPUs, and what its machine code must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TARGETS", "Configuration", "Shipped"]

TARGETS = (80, 90, 100)
"""Compute capabilities that are compiled for, times ten: A100, H100 and H200, B200."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a kernel is compiled with.

    Attributes:
        constexprs: Its compile-time arguments.
        num_warps: Warps of a program, of 32 threads each.
        num_stages: Iterations of a loop whose loads are in flight at once.
    """

    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Shipped:
    """A kernel and a configuration of it that may run somewhere.

    Attributes:
        name: What tells it from the operation's others, such as "decode bf16 d128 g4"; the table puts the operation
            before it.
        kernel: The function under @triton.jit.
        signature: Each argument that is no constexpr: "*bf16", "i32", "fp32", …, or "none" where None is passed.
            Pointers are taken to be multiples of 16 bytes.
        configuration: What it is compiled with.
        targets: Of TARGETS those for which this configuration is meant.
        divisible: Integer arguments that are multiples of 16 wherever it runs (strides, as a rule). At run time Triton
            finds that out by itself; here it must be said.
        vectors: Whether there must be loads of 16 bytes a thread from global memory.
        mma: The instruction that its products must be: "mma.sync", "wgmma" or "tcgen05"; None for a kernel without.
        programs: Programs that one multiprocessor must have room for at once, by registers and shared memory.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    configuration: Configuration
    targets: tuple[int, ...] = TARGETS
    divisible: tuple[str, ...] = ()
    vectors: bool = True
    mma: str | None = None
    programs: int = 1
