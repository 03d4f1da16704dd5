"""Process 1 of the cluster's namespaces: prepares them, starts the components, and ends when one of them ends.

Everything else is a child of this process in a PID namespace, so that its death, however it comes, is the end of
every component, container, mount, interface and route. Run as `python3 -m cluster.init STATE MODE` by `namespaces.start`;
the mode is `node`, or `control-plane` for a cluster whose nodes are played by kwok.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cluster import config
from cluster.api import Api
from cluster.layout import INSIDE, Layout

_POLL_S = 0.02
_API_DEADLINE_S = 120.0
_PATH = f"{INSIDE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    process: subprocess.Popen[bytes]  # kept alive so that Popen does not warn


def main() -> NoReturn:
    """Run the node until a component ends."""
    layout = Layout.of(Path(sys.argv[1]))
    _mount(layout.state)
    _join_network(layout)
    running: dict[int, _Running] = {}
    components = config.components(layout) if sys.argv[2] == "node" else config.control_plane(layout)
    for component in components:
        if not component.needs_api:
            _spawn(component, running)
    api = Api(layout, timeout_s=2.0)
    deadline = time.monotonic() + _API_DEADLINE_S
    while not api.ready():
        if time.monotonic() > deadline:
            _fail("kube-apiserver", f"not ready after {_API_DEADLINE_S:.0f} s")
        _reap(running, os.WNOHANG)
        time.sleep(0.1)
    for component in components:
        if component.needs_api:
            _spawn(component, running)
    while True:
        _reap(running, 0)


def _mount(state: Path) -> None:
    _run("mount", "--make-rshared", "/")
    # What node programs leave in these folders stays in memory that ends with the namespace. The overlay keeps
    # host paths below /var/lib readable.
    for folder in ("/run", "/var/log"):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for name in ("upper", "work"):
        Path("/run/var-lib", name).mkdir(parents=True)
    options = "lowerdir=/var/lib,upperdir=/run/var-lib/upper,workdir=/run/var-lib/work"
    _run("mount", "-t", "overlay", "-o", options, "overlay", "/var/lib")
    INSIDE.mkdir()
    _run("mount", "--bind", str(state), str(INSIDE))
    for number, (name, value) in enumerate(config.KUBELET_SYSCTLS.items()):
        stand_in = Path(f"/run/sysctl-{number}")
        stand_in.write_text(f"{value}\n")
        _run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")


def _join_network(layout: Layout) -> None:
    _run("ip", "link", "set", "lo", "up")
    while "eth0" not in (name for _, name in socket.if_nameindex()):
        time.sleep(_POLL_S)
    _run("ip", "address", "add", f"{layout.node_ip}/{layout.cable.prefixlen}", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    _run("ip", "route", "add", "default", "via", str(layout.host_ip))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _spawn(component: config.Component, running: dict[int, _Running]) -> None:
    with Path(INSIDE, "log", f"{component.name}.log").open("wb") as log:
        process = subprocess.Popen(
            component.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": _PATH}, cwd="/"
        )
    running[process.pid] = _Running(component.name, process)


def _reap(running: dict[int, _Running], options: int) -> None:
    """Collect one ended child; orphaned container shims are ours too and mean nothing."""
    pid, status = os.waitpid(-1, options)
    ended = running.get(pid)
    if ended is None:
        return
    code = os.waitstatus_to_exitcode(status)
    _fail(ended.name, f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")


def _fail(component: str, reason: str) -> NoReturn:
    Path(INSIDE, "failed.json").write_text(json.dumps({"component": component, "reason": reason}))
    sys.exit(1)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
