"""The three source roots stay roots: nothing importable lies beside their packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
ROOTS = {"operator": "octavo_operator", "runtime": "octavo_runtime", "kernels": "octavo_kernels"}


@pytest.mark.parametrize(("root", "package"), ROOTS.items())
def test_source_root_holds_one_package_and_nothing_importable(root: str, package: str) -> None:
    entries = {path.name for path in (REPOSITORY / root).iterdir() if path.name != "__pycache__"}
    assert entries == {package}


@pytest.mark.parametrize("folder", ["tests", "e2e", "bench"])
def test_folder_of_scripts_has_no_packages_but_the_cluster_tool(folder: str) -> None:
    packages = {path.parent.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / folder).rglob("__init__.py")}
    assert packages <= {"e2e/cluster"}


@pytest.mark.parametrize("root", ROOTS)
def test_python_started_in_a_root_finds_its_own_standard_library(root: str) -> None:
    program = "import collections, operator; assert 'octavo' not in (operator.__file__ or '')"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY / root, check=True)
