"""Pinned versions, cache keys and the choice of a toolchain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster import binaries


def test_module_key_follows_the_files_that_decide_the_build(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    (tmp_path / "main.go").write_text("package main\n")
    keys = [binaries.module_key(tmp_path)]
    (tmp_path / "README.md").write_text("not built\n")
    assert binaries.module_key(tmp_path) == keys[0]
    (tmp_path / "go.sum").write_text("x v1 h1:\n")
    keys.append(binaries.module_key(tmp_path))
    (tmp_path / "main.go").write_text("package main // changed\n")
    keys.append(binaries.module_key(tmp_path))
    (tmp_path / "main.go").rename(tmp_path / "other.go")
    keys.append(binaries.module_key(tmp_path))
    keys.append(binaries.module_key(tmp_path, "some_tag"))
    assert len(set(keys)) == len(keys)


def test_module_key_does_not_confuse_where_one_file_ends(tmp_path: Path) -> None:
    (tmp_path / "a.go").write_text("1")
    (tmp_path / "b.go").write_text("23")
    one = binaries.module_key(tmp_path)
    (tmp_path / "a.go").write_text("12")
    (tmp_path / "b.go").write_text("3")
    assert binaries.module_key(tmp_path) != one


def test_version_flags_name_the_pinned_version() -> None:
    flags = binaries.version_flags("require (\n\tk8s.io/kubernetes v1.34.4\n)\n")
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in flags


def test_version_flags_are_empty_without_kubernetes() -> None:
    assert binaries.version_flags("module x\n\ngo 1.25.0\n") == ""


@pytest.mark.parametrize(
    ("have", "enough"),
    [("go1.25.0", True), ("go1.25", True), ("go1.26.8", True), ("go2.0", True), ("go1.24.9", False), ("go1.9", False)],
)
def test_new_enough_compares_numbers(have: str, enough: bool) -> None:
    assert binaries.new_enough(have, "module x\n\ngo 1.25.0\n") is enough


@pytest.mark.parametrize("have", ["", "devel", "go"])
def test_new_enough_refuses_what_it_cannot_read(have: str) -> None:
    assert not binaries.new_enough(have, "go 1.25.0\n")


def test_kubernetes_module_pins_one_version_throughout() -> None:
    go_mod = (binaries.FOLDER / "kubernetes" / "go.mod").read_text()
    pinned = re.search(r"k8s\.io/kubernetes v1\.(\d+)\.(\d+)\n", go_mod)
    assert pinned is not None
    library = f"v0.{pinned[1]}.{pinned[2]}"
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", go_mod, re.MULTILINE)
    assert len(replaced) > 25
    assert all(target == name and version == library for name, target, version in replaced)


@pytest.mark.parametrize(
    "program", [*binaries.PROGRAMS, binaries.KWOK, *binaries.PROMETHEUS], ids=lambda program: program.name
)
def test_program_has_a_module_with_sums(program: binaries.Program) -> None:
    go_mod = (program.module / "go.mod").read_text()
    if "require" in go_mod:
        assert (program.module / "go.sum").exists()
    if program.package != ".":
        assert re.search(rf"^(tool |\t){re.escape(program.package)}$", go_mod, re.MULTILINE)
