from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import triton
import triton.language as tl

from octavo_kernels.gpu import Configuration, Shipped
from octavo_kernels.gpu.ahead import Compiled, compile_ahead, faults, resident_programs, table


@triton.jit  # type: ignore[untyped-decorator]
def double(out, x, weight, length, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + places, mask=places < length)
    if weight is not None:
        value *= tl.load(weight + places, mask=places < length)
    tl.store(out + places, value * 2, mask=places < length)


def shipped(**changes: Any) -> Shipped:
    signature = {"out": "*fp32", "x": "*fp32", "weight": "none", "length": "i32"}
    made = Shipped("double", double, signature, Configuration({"SIZE": 1024}), divisible=("length",))
    return dataclasses.replace(made, **changes)


def test_compile_ahead_reads_the_machine_code() -> None:
    compiled = compile_ahead(shipped(), 90, "arithmetic")
    assert compiled.name == "arithmetic double"
    assert 8 <= compiled.registers <= 64
    assert (compiled.spills, compiled.shared, compiled.mma) == (0, 0, {})
    assert compiled.loads == 2  # 1,024 numbers of 4 bytes by 128 threads
    assert compiled.programs == 16  # of four warps
    assert faults(shipped(), compiled) == []


def test_compile_ahead_without_alignment_has_no_vector_loads() -> None:
    unaligned = shipped(divisible=())
    compiled = compile_ahead(unaligned, 80, "arithmetic")
    assert compiled.loads == 0
    assert faults(unaligned, compiled) == ["arithmetic double on sm_80 has no load of 16 bytes"]


def test_compile_ahead_wrong_signature() -> None:
    with pytest.raises(AssertionError, match=r"'weight'.* is no argument, or has no type"):
        compile_ahead(shipped(signature={"out": "*fp32", "x": "*fp32", "length": "i32"}), 80, "arithmetic")


def compiled_as(**changes: Any) -> Compiled:
    good = Compiled("attention", 90, registers=128, spills=0, shared=1024, programs=4, loads=8, mma={"wgmma": 4})
    return dataclasses.replace(good, **changes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"spills": 8}, "attention on sm_90 has 8 bytes of stack a thread, and must have none"),
        ({"loads": 0}, "attention on sm_90 has no load of 16 bytes"),
        ({"mma": {"mma.sync": 8}}, "attention on sm_90 multiplies with mma.sync, not with wgmma"),
        ({"mma": {}}, "attention on sm_90 multiplies with no MMA, not with wgmma"),
        ({"shared": 233_472}, "attention on sm_90 wants 233472 bytes of shared memory, more than a program may have"),
        ({"programs": 1}, "attention on sm_90 fits 1 times on a multiprocessor, not 2 times"),
    ],
)
def test_faults(changes: dict[str, Any], fault: str | None) -> None:
    meant = shipped(mma="wgmma", programs=2)
    assert faults(meant, compiled_as(**changes)) == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "target", "programs"),
    [
        (32, 0, 4, 80, 16),  # all 64 warps
        (32, 0, 1, 80, 32),  # all programs
        (128, 0, 4, 80, 4),  # 65,536 registers by 4,096 a warp
        (129, 0, 4, 80, 3),  # registers come by 256 a warp
        (32, 80 * 1024, 4, 80, 2),
        (32, 81 * 1024, 4, 80, 2),
        (32, 82 * 1024, 4, 80, 1),  # with what the system takes, more than half of 164 KiB
        (32, 82 * 1024, 4, 90, 2),
        (32, 228 * 1024, 4, 90, 0),
        (255, 0, 16, 90, 0),
    ],
)
def test_resident_programs(registers: int, shared: int, warps: int, target: int, programs: int) -> None:
    assert resident_programs(registers, shared, warps, target) == programs


def test_table_has_a_line_for_each() -> None:
    rows = [compiled_as(), compiled_as(target=80, mma={})]
    lines = table(rows).splitlines()
    assert lines[0] == f"triton {triton.__version__}"
    assert lines[2].split() == ["attention", "sm_90", "128", "0", "1024", "4", "8", "4", "wgmma"]
    assert lines[3].split() == ["attention", "sm_80", "128", "0", "1024", "4", "8", "-"]
