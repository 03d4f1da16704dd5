"""The node's namespaces, cgroup and network cable, seen from the host.

One cgroup holds every process of the cluster: the components (in `components`) and the pods (made by the kubelet).
It is how `stop` knows what is ours, whatever was killed before, and the only thing that outlives process 1.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

from cluster.errors import ClusterError
from cluster.layout import REPOSITORY, Layout
from cluster.waiting import wait

_CGROUPS = Path("/sys/fs/cgroup")
_GONE_DEADLINE_S = 20.0


def start(layout: Layout, mode: str) -> int:
    """Start process 1 in fresh namespaces and connect them to the host; returns its PID.

    Args:
        layout: the cluster.
        mode: what process 1 starts: see `init`.

    Raises:
        ClusterError: the addresses are taken, or the namespaces could not be made.
    """
    _check_addresses(layout)
    _create_cgroups(layout)
    procs = _tracking_root() / layout.name / "components" / "cgroup.procs"
    unshare = "setsid --fork unshare --net --mount --pid --fork --kill-child=KILL --mount-proc --propagation private"
    first = [*unshare.split(), sys.executable, "-m", "cluster.init", str(layout.state), mode]
    with (layout.logs / "init.log").open("wb") as log:
        subprocess.run(
            ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *first],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            check=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "e2e"), "PYTHONDONTWRITEBYTECODE": "1"},
        )
    pid = wait(lambda: init_pid(layout), 10.0)
    if pid is None:
        raise ClusterError(f"the node's namespaces did not come up: {tail(layout.logs / 'init.log')}")
    _ip("link", "add", layout.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("address", "add", f"{layout.host_ip}/{layout.cable.prefixlen}", "dev", layout.link)
    _ip("link", "set", layout.link, "up")
    for network in (layout.pods, layout.services):
        _ip("route", "add", str(network), "via", str(layout.node_ip))
    return pid


def stop(layout: Layout) -> None:
    """Kill the cluster and remove what it has outside its state directory. Safe when there is nothing.

    Raises:
        ClusterError: something would not go; the message names it.
    """
    if not wait(lambda: not _kill(layout), _GONE_DEADLINE_S):
        raise ClusterError(f"processes {sorted(processes(layout))} do not die")
    if _has_link(layout):
        subprocess.run(["ip", "link", "delete", layout.link], check=False, capture_output=True)
    if not wait(lambda: not _has_link(layout), _GONE_DEADLINE_S):
        raise ClusterError(f"the interface {layout.link} does not go away; try: ip link delete {layout.link}")
    if not wait(lambda: _remove_cgroups(layout), _GONE_DEADLINE_S):
        raise ClusterError(f"cannot remove the cgroups {_CGROUPS}/*/{layout.name}")


def processes(layout: Layout) -> set[int]:
    """PIDs of everything that belongs to the cluster, pods included."""
    pids: set[int] = set()
    for folder, _, _ in os.walk(_tracking_root() / layout.name):
        try:
            pids.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
        except OSError:  # the cgroup went away between listing and reading
            continue
    return pids


def init_pid(layout: Layout) -> int | None:
    """PID of process 1, as the host counts, or None when the cluster is not running."""
    for pid in component_pids(layout):
        if _namespaced_pids(pid)[1:] == [1]:
            return pid
    return None


def component_pids(layout: Layout) -> list[int]:
    """PIDs of the processes that are not pods."""
    try:
        procs = (_tracking_root() / layout.name / "components" / "cgroup.procs").read_text()
    except OSError:
        return []
    return [int(line) for line in procs.split()]


def stopped_component(layout: Layout) -> str | None:
    """Name of a component that somebody stopped (SIGSTOP), if any."""
    for pid in component_pids(layout):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if rest.split()[0] in "Tt":
            return name
    return None


def inside(layout: Layout, *argv: str) -> list[str]:
    """A command line that runs `argv` in the cluster's namespaces.

    Raises:
        ClusterError: the cluster is not running.
    """
    pid = init_pid(layout)
    if pid is None:
        raise ClusterError(f"no cluster is running for {layout.state}; start one with `up`")
    return ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--", *argv]


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; a sentence when there is none."""
    try:
        content = path.read_text(errors="replace").splitlines()
    except OSError:
        return f"(no log {path})"
    return "\n".join(f"    {line[:400]}" for line in content[-lines:]) or f"({path} is empty)"


def mounts_below(folder: Path) -> list[str]:
    """Mount points of the host at or below a folder."""
    words = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The kernel writes a space as \\040, and so on.
    points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), word) for word in words]
    return [point for point in points if Path(point) == folder or folder in Path(point).parents]


def overlapping_route(routes: list[dict[str, str]], layout: Layout) -> str | None:
    """The first route (`ip -json route`) of somebody else that leads into our block.

    A very wide route, such as a VPN's 10.0.0.0/8, is no conflict: ours are more specific.
    """
    for route in routes:
        if route["dst"] == "default" or route.get("dev") == layout.link:
            continue
        network = IPv4Network(route["dst"], strict=False)
        if network.prefixlen >= 12 and network.overlaps(layout.block):
            return f"{route['dst']} dev {route.get('dev', '?')}"
    return None


def _check_addresses(layout: Layout) -> None:
    shown = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True)
    taken = overlapping_route(json.loads(shown.stdout or "[]"), layout)
    if taken is not None:
        raise ClusterError(
            f"the cluster's addresses {layout.block} are in use by the route {taken}; they follow from the state "
            "directory's path, so choose another one with --state"
        )


def _hierarchies() -> list[Path]:
    """Every cgroup hierarchy: the one of version 2, or the many of version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return sorted({folder.resolve() for folder in _CGROUPS.iterdir() if (folder / "cgroup.procs").exists()})


def _tracking_root() -> Path:
    return _CGROUPS if (_CGROUPS / "cgroup.controllers").exists() else _CGROUPS / "pids"


def _create_cgroups(layout: Layout) -> None:
    try:
        for root in _hierarchies():
            folder = root / layout.name
            folder.mkdir(exist_ok=True)
            if root.name == "cpuset":
                # Version 1: no process may enter a cpuset without processors and memory nodes.
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (folder / name).write_text((root / name).read_text())
            if root == _CGROUPS:
                # Version 2: the kubelet needs the controllers handed down.
                controllers = (root / "cgroup.controllers").read_text().split()
                enable = " ".join(f"+{controller}" for controller in controllers)
                for parent in (root, folder):
                    (parent / "cgroup.subtree_control").write_text(enable)
        (_tracking_root() / layout.name / "components").mkdir(exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"cannot make cgroups ({error}); the cluster needs {_CGROUPS} writable and, inside a container, a cgroup "
            "namespace whose root has no processes of its own"
        ) from error


def _remove_cgroups(layout: Layout) -> bool:
    left = False
    for root in _hierarchies():
        top = root / layout.name
        folders = [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]
        for folder in folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left = True
    return not left


def _kill(layout: Layout) -> set[int]:
    pids = processes(layout)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return pids


def _namespaced_pids(pid: int) -> list[int]:
    """A process's PIDs from the host's namespace to its own."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "NSpid:")
    return [int(number) for number in line.split()[1:]]


def _has_link(layout: Layout) -> bool:
    return layout.link in (name for _, name in socket.if_nameindex())


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
