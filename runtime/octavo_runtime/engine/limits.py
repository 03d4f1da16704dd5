"""What this process may use: processors and memory, as affinity and control groups set them.

A container sees the whole machine in os.cpu_count() and /proc/meminfo; its limits are in its control group, version 2
(cpu.max, memory.max) or 1 (cpu.cfs_quota_us, memory.limit_in_bytes). A limit of any group above counts too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory", "usable_cpus"]

_ROOT = Path("/")


def usable_cpus(root: Path = _ROOT) -> int:
    """Processors that can be busy at once: the affinity, cut by the groups' quota, rounded up; at least 1.

    Args:
        root: Where /proc and /sys lie.
    """
    cpus = float(len(os.sched_getaffinity(0)))
    for group in _groups(root, "cpu"):
        quota, period = None, None
        if (text := _read(group / "cpu.max")) is not None:
            quota, period = text.split()
        elif (text := _read(group / "cpu.cfs_quota_us")) is not None:
            quota, period = text, _read(group / "cpu.cfs_period_us")
        if quota not in {None, "max", "-1"} and period:
            cpus = min(cpus, int(quota or 0) / int(period))
    return max(1, math.ceil(cpus))


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that this process can still take: of the machine, cut by the groups' limits.

    Memory that a group uses for page cache counts as available: the kernel takes it back.

    Args:
        root: Where /proc and /sys lie.
    """
    meminfo = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    for group in _groups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit is None or used is None or limit == "max":
            continue
        stat = dict(line.split() for line in (_read(group / "memory.stat") or "").splitlines())
        cache = sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
        available = min(available, max(0, int(limit) - max(0, int(used) - cache)))
    return available


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's group and of all above it, for a controller.

    Inside a container with a control group namespace, the path in /proc/self/cgroup is / and the mount is the group.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller]
        else:
            continue
        for mount in mounts:
            below = Path(path.lstrip("/"))
            for part in (below, *below.parents):
                if (mount / part).is_dir():
                    yield mount / part


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
