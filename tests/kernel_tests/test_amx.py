from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.native import Context, build
from octavo_kernels.native.operations import Operations

# Refuses arch_prctl(ARCH_REQ_XCOMP_PERM, …), as a sandbox may, then looks which instruction sets are left.
_REFUSED = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
instructions = [
    (0x20, 0, 0, 0),  # load the number of the call
    (0x15, 0, 3, 158),  # not arch_prctl: allow
    (0x20, 0, 0, 16),  # load its first argument
    (0x15, 0, 1, 0x1023),  # not ARCH_REQ_XCOMP_PERM: allow
    (0x06, 0, 0, 0x00050000 | errno.EPERM),
    (0x06, 0, 0, 0x7FFF0000),
]
code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions), 0), 16)
memory = ctypes.create_string_buffer(code)
struct.pack_into("P", program, 8, ctypes.addressof(memory))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
from octavo_kernels.native import isas, without_amx
print(isas()[0], without_amx(), sep=": ")
"""


def test_isas_where_the_system_refuses_amx(require_isa: Callable[[str], str]) -> None:
    require_isa("amx")
    result = subprocess.run([sys.executable, "-c", _REFUSED], capture_output=True, text=True, check=False)
    assert result.stdout == "avx512bf16: the operating system does not permit it\n", result.stderr


@pytest.fixture(scope="module")
def operations(require_isa: Callable[[str], str]) -> dict[str, Operations]:
    """With AMX, and with what comes next."""
    return {name: Operations(Context(2, require_isa(name))) for name in ("amx", "avx512vnni")}


def compiler(folder: Path, refuses: str) -> list[str]:
    """One that does nothing, and does not know a flag."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nfor flag in "$@"; do test "$flag" != {refuses} || exit 1; done\n')
    script.chmod(0o755)
    return [str(script)]


def test_knows_amx(tmp_path: Path) -> None:
    assert not build.knows_amx(compiler(tmp_path, "-mamx-tile"), tmp_path)
    assert build.knows_amx(compiler(tmp_path, "-mamx-transpose"), tmp_path)


def test_build_without_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(build, "find_compiler", lambda: compiler(tmp_path, "-mamx-tile"))
    monkeypatch.setattr(build, "_run", commands.append)
    target = tmp_path / "library.so"
    monkeypatch.setattr(Path, "replace", lambda _path, _target: target)
    build.build(target)
    compiled = " ".join(argument for command in commands for argument in command)
    assert "-DOCTAVO_WITHOUT_AMX" in compiled
    assert "-DOCTAVO_ISA=avx512vnni" in compiled
    assert "amx-tile" not in compiled
    assert "avx512bf16" not in compiled


@given(
    quantization=st.sampled_from(["w8a16", "w8a8"]),
    rows=st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 48, 49, 288, 291, 305]),
    out=st.sampled_from([1, 16, 33, 64, 100, 1100]),
    columns=st.one_of(st.integers(1, 200), st.just(576)),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=120)
def test_linear_quantised_is_that_of_vnni(
    operations: dict[str, Operations], quantization: str, rows: int, out: int, columns: int, bias: bool, add: bool
) -> None:
    generator = torch.Generator().manual_seed(rows + out + columns)
    x, weight, offset, before = (
        torch.randn(shape, generator=generator) for shape in ((rows, columns), (out, columns), (out,), (rows, out))
    )
    got = [
        of_isa.linear(x, weight, offset if bias else None, before.clone() if add else None, quantization=quantization)
        for of_isa in operations.values()
    ]
    assert torch.equal(*got)


@given(
    quantization=st.sampled_from(["w8a16", "w8a8"]),
    rows=st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 33, 48, 49, 288, 291, 305]),
    half=st.sampled_from([16, 48, 64, 176, 1536, 20]),
    columns=st.sampled_from([64, 128, 576, 100]),
    bias=st.booleans(),
)
@settings(max_examples=120)
def test_gated_linear_is_that_of_vnni(
    operations: dict[str, Operations], quantization: str, rows: int, half: int, columns: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(rows + half + columns)
    x, weight, offset = (
        torch.randn(shape, generator=generator) for shape in ((rows, columns), (2 * half, columns), (2 * half,))
    )
    got = [
        of_isa.gated_linear(x, weight, offset if bias else None, quantization=quantization)
        for of_isa in operations.values()
    ]
    assert torch.equal(*got)


@given(
    bits=st.sampled_from([4, 8]),
    rows=st.sampled_from([1, 11, 12, 13, 15, 16, 17, 27, 28, 33, 288, 291, 305]),
    out=st.sampled_from([1, 16, 33, 64, 100, 1100]),
    groups=st.integers(1, 5),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=120)
def test_linear_of_groups_is_that_of_vnni(
    operations: dict[str, Operations], bits: int, rows: int, out: int, groups: int, bias: bool, add: bool
) -> None:
    generator = torch.Generator().manual_seed(rows + out + groups)
    x, offset, before = (
        torch.randn(shape, generator=generator) for shape in ((rows, groups * 32), (out,), (rows, out))
    )
    x[0, 0], x[-1] = 1e3, 0  # one number that leaves few bits for its row's others, and a row of zeros
    quants = torch.randint(0, 256, (out, groups * 4 * bits), generator=generator, dtype=torch.uint8)
    scales, minima = torch.randn(2, out, groups, generator=generator).half()
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] = (quants, scales, minima)
    if bits == 8:
        parts = quants.view(torch.int8), scales, None
    got = [
        of_isa.linear_of_groups(x, *parts, offset if bias else None, before.clone() if add else None)
        for of_isa in operations.values()
    ]
    assert torch.equal(*got)
