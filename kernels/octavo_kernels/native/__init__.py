"""The native forms: C++ behind a plain C ABI, loaded by ctypes. README.md has what is where, and why.

The library lies in the package, where the wheel was built with it. A checkout builds it at first use, into the user's
cache folder, under the stamp of its sources.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import weakref
from pathlib import Path

from octavo_kernels.native import build
from octavo_kernels.native.abi import declare

__all__ = ["LIBRARY_NAME", "Context", "NativeUnavailable", "isas", "library", "load_library", "prepare", "without_amx"]

LIBRARY_NAME = "liboctavo_kernels.so"

_log = logging.getLogger(__name__)


class NativeUnavailable(Exception):
    """There is no library that runs here; the message says why."""


def load_library(path: Path) -> ctypes.CDLL:
    """Loads a library, and makes sure that it is the one that belongs to this package and runs here.

    Raises:
        NativeUnavailable: It is not.
    """
    try:
        library = ctypes.CDLL(str(path))
        declare(library)
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}; build it again on this machine") from error
    built_from = library.octavo_stamp().decode()
    if built_from != build.stamp():
        raise NativeUnavailable(
            f"{path} was built from other sources ({built_from}) than this version's ({build.stamp()}): "
            "remove it, or install the package again"
        )
    if library.octavo_isa(0) is None:
        raise NativeUnavailable("this processor has neither AVX-512 nor AVX2 with FMA and F16C")
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The library; built first where that is possible and has not been done.

    Raises:
        NativeUnavailable: There is none that runs here.
    """
    if not build.supported_machine():
        raise NativeUnavailable("there are native kernels for Linux on x86-64 alone")
    packaged = Path(__file__).with_name(LIBRARY_NAME)
    return load_library(packaged if packaged.exists() else _built())


def prepare() -> None:
    """Builds the library now, where that is possible, and says what keeps it from it otherwise."""
    try:
        library()
    except NativeUnavailable as error:
        print(error)


def _built() -> Path:
    """The library of this checkout, from the cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"
    path = cache / f"{build.stamp()}-{LIBRARY_NAME}"
    if path.exists():
        return path
    if build.find_compiler() is None:
        raise NativeUnavailable("the package was installed without its native library, and there is no C++ compiler")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _log.warning("building the native kernels, once; it takes half a minute or more: %s", path)
                build.build(path)
    except (build.BuildError, OSError) as error:
        raise NativeUnavailable(f"the native kernels cannot be built: {error}") from error
    return path


def isas() -> list[str]:
    """The instruction sets that run here, best first.

    Raises:
        NativeUnavailable: There is no library that runs here.
    """
    names: list[str] = []
    while (name := library().octavo_isa(len(names))) is not None:
        names.append(name.decode())
    return names


def without_amx() -> str | None:
    """Why AMX is not used although the processor has it; None when it is, or the processor has none.

    Raises:
        NativeUnavailable: There is no library that runs here.
    """
    why = library().octavo_without_amx()
    return None if why is None else str(why.decode())


class Context:
    """The library with threads of its own, which sleep between calls. One call at a time.

    Args:
        threads: How many may be busy at once.
        isa: One of `isas`; the best when None.

    Attributes:
        library: The library.
        threads: As given.
        isa: Its instruction set.
        quads: Whether it takes int8 weights in quads.
        handle: What the library's functions take first.

    Raises:
        NativeUnavailable: There is no library, or no such instruction set here.
    """

    def __init__(self, threads: int, isa: str | None = None) -> None:
        self.library = library()
        self.threads = threads
        names = isas()
        self.isa = isa or names[0]
        if self.isa not in names:
            raise NativeUnavailable(f"{self.isa} does not run here, only {', '.join(names)}")
        self.quads = self.isa in {"avx512vnni", "avx512bf16", "amx"}
        self.handle: int | None = self.library.octavo_open(self.isa.encode(), threads)
        if self.handle is None:
            raise MemoryError(f"{threads} threads for the native kernels cannot be had")
        # Not at the program's end: a step may be under way in a thread then, and all threads end anyway.
        weakref.finalize(self, self.library.octavo_close, self.handle).atexit = False
