"""Builds the native kernels into the wheel. Hatchling runs it (pyproject.toml)."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to a wheel for Linux on x86-64.

    Other wheels, and those without the kernels (the operator's image is built from the operator alone), stay pure. A
    checkout is installed without it: it builds its library at first use, from the sources as they then are.
    """

    def dependencies(self) -> list[str]:
        """What to install before the build: a compiler, where the machine has none."""
        build = self._build()
        return [build.ZIGLANG] if build and build.find_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the library."""
        build = self._build()
        if build is None or version == "editable":
            return
        self._folder = tempfile.mkdtemp()
        library = Path(self._folder) / "liboctavo_kernels.so"
        build.build(library)
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"  # any Python: it is loaded by ctypes
        build_data["force_include"][str(library)] = f"octavo_kernels/native/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the library outside the wheel."""
        del version, build_data, artifact_path
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder)

    def _build(self) -> ModuleType | None:
        """native/build.py, where there are kernels and the machine has native forms."""
        path = Path(self.root) / "kernels" / "octavo_kernels" / "native" / "build.py"
        spec = importlib.util.spec_from_file_location("octavo_native_build", path)
        if not path.exists() or spec is None or spec.loader is None:
            return None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        return build if build.supported_machine() else None
