from __future__ import annotations

import ctypes
import subprocess
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_kernels import native
from octavo_kernels.native import Context, NativeUnavailable, build, isas, library, load_library


@pytest.fixture
def _fresh() -> Any:
    library.cache_clear()
    yield
    library.cache_clear()


def test_isas_best_first() -> None:
    assert isas() == sorted(isas(), key=["amx", "avx512bf16", "avx512vnni", "avx512", "avx2"].index)
    assert Context(1).isa == isas()[0]


def test_context_unknown_isa() -> None:
    with pytest.raises(NativeUnavailable, match="sse9 does not run here, only "):
        Context(1, "sse9")


def test_load_library_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(library()._name)
    monkeypatch.setattr(build, "stamp", lambda: "another")
    with pytest.raises(NativeUnavailable, match=r"was built from other sources \([0-9a-f]{16}\) than this .*\(another"):
        load_library(path)


def test_load_library_damaged(tmp_path: Path) -> None:
    damaged = tmp_path / "library.so"
    damaged.write_bytes(b"\x7fELF, but not for long")
    with pytest.raises(NativeUnavailable, match=r"library.so cannot be loaded: .*; build it again on this machine"):
        load_library(damaged)


def test_load_library_of_something_else() -> None:
    with pytest.raises(NativeUnavailable, match=r"cannot be loaded: .*octavo_stamp"):
        load_library(Path("libm.so.6"))


def test_load_library_on_an_old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(octavo_stamp=lambda: build.stamp().encode(), octavo_isa=lambda _number: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _path: old)
    monkeypatch.setattr(native, "declare", lambda _library: None)
    with pytest.raises(NativeUnavailable, match="this processor has neither AVX-512 nor AVX2"):
        load_library(Path("liboctavo_kernels.so"))


@pytest.mark.usefixtures("_fresh")
def test_library_on_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(NativeUnavailable, match="for Linux on x86-64 alone"):
        library()


@pytest.mark.usefixtures("_fresh")
def test_library_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    with pytest.raises(
        NativeUnavailable, match="installed without its native library, and there is no C\\+\\+ compiler"
    ):
        library()


@pytest.mark.usefixtures("_fresh")
def test_library_that_the_compiler_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", lambda: ["false"])
    with pytest.raises(NativeUnavailable, match="the native kernels cannot be built: false -std"):
        library()
    assert [path.name for path in (tmp_path / "octavo" / "kernels").iterdir()] == ["lock"]


def test_wheel_asks_for_the_ziglang_that_is_tested() -> None:
    assert f"ziglang=={version('ziglang')}" == build.ZIGLANG


def test_library_needs_nothing_but_libc() -> None:
    # What serves has no compiler's libraries.
    needed = subprocess.run(["ldd", library()._name], capture_output=True, text=True, check=True).stdout
    assert {line.split()[0].split("/")[-1].split(".so")[0] for line in needed.splitlines()} <= {
        "linux-vdso",
        "libc",
        "libm",
        "ld-linux-x86-64",
        "libpthread",
        "libdl",
    }
