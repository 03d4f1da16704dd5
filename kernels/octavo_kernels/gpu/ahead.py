"""Compiles every shipped kernel without a GPU and reads from the machine code what it will cost.

The columns of a row:

    registers     of a thread
    spills        bytes of a thread's stack: what did not fit into registers, or is indexed at run time
    shared        bytes of a program's shared memory
    programs      that one multiprocessor has room for at once
    loads         instructions that fetch 16 bytes a thread from global memory, plain or straight into shared memory
    mma           the instructions of its products, and how many
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import octavo_kernels
from octavo_kernels.gpu.shipped import TARGETS, Shipped

__all__ = ["HEADER", "Compiled", "compile_ahead", "faults", "operations", "resident_programs", "table"]

# Of one multiprocessor, by compute capability: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability". The same for all three: 65,536 registers, given to warps in units of 256; at most 32 programs and 64 warps.
_SHARED = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
# What one program may have. The configurations for 80 also run on 8.6, 8.9 and 12.0, which have less.
_SHARED_OF_PROGRAM = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
_SHARED_OF_SYSTEM = 1024  # bytes that each resident program takes beside its own
_REGISTERS, _REGISTER_UNIT, _MAX_PROGRAMS, _MAX_WARPS = 65536, 256, 32, 64

_LOADS = re.compile(
    r"ld\.global(?:\.\w+)*\.v4\.(?:b32|u32|f32)|ld\.global(?:\.\w+)*\.v2\.b64|cp\.async\.c[ag]\.[^;]*, 0x10, "
)
_MMA = re.compile(r"(mma\.sync|wgmma)\.(?:mma_async|aligned)|(tcgen05)\.mma\.")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel costs on one target. The module's text says what the numbers are."""

    name: str
    target: int
    registers: int
    spills: int
    shared: int
    programs: int
    loads: int
    mma: Mapping[str, int]

    def __str__(self) -> str:
        mma = ", ".join(f"{count} {name}" for name, count in sorted(self.mma.items())) or "-"
        return (
            f"{self.name:<52} sm_{self.target:<4} {self.registers:>9} {self.spills:>6} {self.shared:>7} "
            f"{self.programs:>8} {self.loads:>5}  {mma}"
        )


HEADER = f"{'kernel':<52} {'target':<7} {'registers':>9} {'spills':>6} {'shared':>7} {'programs':>8} {'loads':>5}  mma"


def operations() -> Iterator[tuple[str, ModuleType]]:
    """Each operation that has a Triton form, and the module."""
    for found in pkgutil.iter_modules(octavo_kernels.__path__):
        folder = Path(octavo_kernels.__path__[0]) / found.name
        if (folder / "triton.py").exists():
            yield found.name, importlib.import_module(f"octavo_kernels.{found.name}.triton")


def compile_ahead(shipped: Shipped, target: int, operation: str) -> Compiled:
    """Compiles for a target and reads the result.

    Args:
        shipped: What to compile.
        target: One of TARGETS.
        operation: The folder it is from, for its name.
    """
    assert target in TARGETS
    names = list(shipped.kernel.arg_names)
    absent = {name: None for name, type_ in shipped.signature.items() if type_ == "none"}
    constants = {**shipped.configuration.constexprs, **absent}
    types = {**shipped.signature, **dict.fromkeys(constants, "constexpr")}
    assert set(types) == set(names), f"{shipped.name}: {set(types) ^ set(names)} is no argument, or has no type"
    aligned = [name for name, type_ in types.items() if type_.startswith("*") or name in shipped.divisible]
    source = ASTSource(
        shipped.kernel,
        {name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    warps = shipped.configuration.num_warps
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", target, 32),
        options={"num_warps": warps, "num_stages": shipped.configuration.num_stages, "enable_fp_fusion": True},
    )
    usage = _usage(compiled.asm["cubin"])
    registers, shared = usage["REG"], max(compiled.metadata.shared, usage["SHARED"])
    ptx = compiled.asm["ptx"]
    mma: dict[str, int] = {}
    for match in _MMA.finditer(ptx):
        name = match[1] or match[2]
        mma[name] = mma.get(name, 0) + 1
    return Compiled(
        name=f"{operation} {shipped.name}",
        target=target,
        registers=registers,
        spills=usage["STACK"] + usage["LOCAL"],
        shared=shared,
        programs=resident_programs(registers, shared, warps, target),
        loads=len(_LOADS.findall(ptx)),
        mma=mma,
    )


def _usage(cubin: bytes) -> dict[str, int]:
    """Registers, stack, shared and local memory, as cuobjdump tells them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ended = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", ended.stdout)}
    assert len(usage) == 4, f"cuobjdump -res-usage printed {ended.stdout!r}"
    return usage


def resident_programs(registers: int, shared: int, warps: int, target: int) -> int:
    """Programs that one multiprocessor has room for at once; 0 when one alone is too large.

    Args:
        registers: Of a thread.
        shared: Bytes of a program.
        warps: Of a program.
        target: Compute capability, times ten.
    """
    of_a_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    return min(
        _REGISTERS // of_a_warp // warps,
        _SHARED[target] // (shared + _SHARED_OF_SYSTEM),
        _MAX_WARPS // warps,
        _MAX_PROGRAMS,
    )


def faults(shipped: Shipped, compiled: Compiled) -> list[str]:
    """What of the machine code is not as it was meant, in sentences."""
    where = f"{compiled.name} on sm_{compiled.target}"
    found = []
    if compiled.spills:
        found.append(f"{where} has {compiled.spills} bytes of stack a thread, and must have none")
    if shipped.vectors and not compiled.loads:
        found.append(f"{where} has no load of 16 bytes")
    if shipped.mma and set(compiled.mma) != {shipped.mma}:
        found.append(f"{where} multiplies with {', '.join(sorted(compiled.mma)) or 'no MMA'}, not with {shipped.mma}")
    if compiled.shared > _SHARED_OF_PROGRAM[compiled.target]:
        found.append(f"{where} wants {compiled.shared} bytes of shared memory, more than a program may have")
    if compiled.programs < shipped.programs:
        found.append(f"{where} fits {compiled.programs} times on a multiprocessor, not {shipped.programs} times")
    return found


def table(compiled: list[Compiled]) -> str:
    """The committed table: Triton's version, then a line for each kernel and target."""
    lines = [f"triton {triton.__version__}", HEADER, *(str(row) for row in compiled)]
    return "\n".join(line.rstrip() for line in lines) + "\n"
