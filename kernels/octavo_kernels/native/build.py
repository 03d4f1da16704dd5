"""Builds the library of the native forms with whatever C++ compiler there is. Imports the standard library alone.

Two callers: the build of the wheel (hatch_build.py), and `octavo_kernels.native` in a checkout, at first use.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["ZIGLANG", "BuildError", "build", "find_compiler", "knows_amx", "stamp", "supported_machine"]

ZIGLANG = "ziglang==0.17.1"
"""What brings a compiler from PyPI, where the machine has none."""

_PACKAGE = Path(__file__).parent.parent
_NATIVE = _PACKAGE / "native"

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-math-errno",
    "-ffp-contract=fast",  # products and sums in one instruction, with one rounding
    "-Wall",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",  # gcc 12 finds it in its own headers
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_AMX = (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
_ISAS = {"avx2": _AVX2, "avx512": _AVX512, "avx512vnni": _VNNI}
_NEWER_ISAS = {"avx512bf16": _BF16, "amx": _AMX}


class BuildError(Exception):
    """There is no compiler, or it refused."""


def supported_machine() -> bool:
    """Whether there are native forms for this kind of machine at all."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def stamp() -> str:
    """Names the sources: the library holds it, so that one built from others is noticed."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(path for path in _PACKAGE.rglob("*") if path.suffix in {".h", ".cpp"})):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler: g++, clang++, c++, or what the Python package `ziglang` carries."""
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        # An old glibc, so that the library runs on other machines than this one.
        return [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.28"]
    return None


def knows_amx(compiler: list[str], folder: Path) -> bool:
    """Whether a compiler, and the assembler behind it, have AMX: GCC from 11 on, clang from 12 on.

    Args:
        compiler: Its command.
        folder: For its files.
    """
    probe = folder / "probe.cpp"
    probe.write_text('void probe() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }\n', encoding="utf-8")
    command = [*compiler, *_AMX, "-c", "-o", str(folder / "probe.o"), str(probe)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(target: Path) -> None:
    """Builds the library; without its form for AMX where the compiler does not know that.

    Args:
        target: Its file; replaced at once when the build is done.

    Raises:
        BuildError: There is no compiler, or it refused; with its words.
    """
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(f"there is no C++ compiler: install g++ or clang++, or the Python package {ZIGLANG}")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        amx = knows_amx(compiler, Path(folder))
        isas = _ISAS | _NEWER_ISAS if amx else _ISAS
        of_library = [f'-DOCTAVO_STAMP="{stamp()}"', *([] if amx else ["-DOCTAVO_WITHOUT_AMX"])]
        parts = {
            "threads.o": [str(_NATIVE / "threads.cpp")],
            "library.o": [*of_library, str(_NATIVE / "library.cpp")],
        } | {f"{isa}.o": [*flags, f"-DOCTAVO_ISA={isa}", str(_NATIVE / "forms.cpp")] for isa, flags in isas.items()}
        objects = [str(Path(folder) / name) for name in parts]
        commands = [
            [*compiler, *_FLAGS, *arguments, "-c", "-o", out]
            for out, arguments in zip(objects, parts.values(), strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        library = Path(folder) / target.name
        # The serving image has no compiler, and need not have its libraries either.
        alone = [] if "ziglang" in compiler else ["-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL"]
        _run([*compiler, "-shared", *alone, "-pthread", "-o", str(library), *objects])
        library.replace(target)


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{' '.join(command)}\n{result.stderr}")
