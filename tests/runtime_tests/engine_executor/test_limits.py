from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo_runtime.engine.limits import available_memory, usable_cpus
from octavo_runtime.engine.threads import compute_threads

GIB = 1 << 30


def tree(root: Path, cgroup: str, **files: str) -> Path:
    """A /proc and a /sys; in names of files, __ stands for /."""
    for name, text in {
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   8388608 kB\n",
        "proc/self/cgroup": cgroup,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture(autouse=True)
def _sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))


def test_usable_cpus_without_groups(tmp_path: Path) -> None:
    assert usable_cpus(tree(tmp_path, "0::/\n")) == 16


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 2), ("20000 100000", 1), ("9900000 100000", 16)],
)
def test_usable_cpus_version_2(quota: str, expected: int, tmp_path: Path) -> None:
    assert usable_cpus(tree(tmp_path, "0::/\n", cpu_dot_max=quota)) == expected


def test_usable_cpus_of_a_group_above(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/pods/one\n", pods__cpu_dot_max="300000 100000", pods__one__cpu_dot_max="max 100000")
    assert usable_cpus(root) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("250000", 3)])
def test_usable_cpus_version_1(quota: str, expected: int, tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "4:cpu,cpuacct:/pod\n3:memory:/pod\n",
        **{"cpu,cpuacct__pod__cpu_dot_cfs_quota_us": quota, "cpu,cpuacct__pod__cpu_dot_cfs_period_us": "100000"},
    )
    assert usable_cpus(root) == expected


def test_available_memory_without_groups(tmp_path: Path) -> None:
    assert available_memory(tree(tmp_path, "0::/\n")) == 8 * GIB


def test_available_memory_version_2(tmp_path: Path) -> None:
    stat = f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}"
    files = {"memory_dot_max": str(4 * GIB), "memory_dot_current": str(3 * GIB), "memory_dot_stat": stat}
    root = tree(tmp_path, "0::/\n", **files)
    # Page cache is taken back when it must: 4 GiB less the 1.5 GiB that are in use otherwise.
    assert available_memory(root) == 4 * GIB - 3 * GIB // 2


def test_available_memory_unlimited(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/\n", memory_dot_max="max", memory_dot_current=str(GIB))
    assert available_memory(root) == 8 * GIB


def test_available_memory_tightest_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/pods/one\n",
        pods__memory_dot_max=str(2 * GIB),
        pods__memory_dot_current=str(GIB),
        pods__one__memory_dot_max=str(6 * GIB),
        pods__one__memory_dot_current=str(GIB // 2),
    )
    assert available_memory(root) == GIB


def test_available_memory_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "3:memory:/pod\n",
        memory__pod__memory_dot_limit_in_bytes=str(2 * GIB),
        memory__pod__memory_dot_usage_in_bytes=str(GIB),
        memory__pod__memory_dot_stat=f"active_file 0\ninactive_file {GIB // 2}",
    )
    assert available_memory(root) == 3 * GIB // 2


def test_available_memory_overdrawn(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/\n", memory_dot_max=str(GIB), memory_dot_current=str(2 * GIB))
    assert available_memory(root) == 0


@pytest.mark.parametrize(("variable", "expected"), [("1", 1), ("2", 2), ("", 3), ("0", 3), ("many", 3)])
def test_compute_threads(variable: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("octavo_runtime.engine.threads.usable_cpus", lambda: 3)
    assert compute_threads() == expected
