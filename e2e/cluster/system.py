"""What the machine must have: disk space and a few Debian packages."""

import os
import shutil
import subprocess
from pathlib import Path

from cluster.errors import ClusterError
from cluster.progress import Progress

NODE_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iproute2", "nftables", "conntrack", "openssl")
IMAGE_PACKAGES = ("buildah", "mmdebstrap")
REGISTRY_PACKAGES = ("docker-registry",)

# Packages that start a service of their own when they are installed; we start what we need ourselves.
_SERVICES = {"containerd": "containerd.service", "docker-registry": "docker-registry.service"}


def check_root() -> None:
    """Refuse early what would fail halfway: namespaces, mounts and routes need root."""
    if os.geteuid() != 0:
        raise ClusterError("the cluster needs root (namespaces, mounts, routes); run this as root")


def check_disk(folder: Path, needed_gib: float, what: str) -> None:
    """Refuse to begin what cannot be finished.

    Args:
        folder: where the space is needed; it need not exist.
        needed_gib: GiB.
        what: what needs them, for the message.

    Raises:
        ClusterError: too little is free; the message says how much is needed and how much there is.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_gib = shutil.disk_usage(existing).free / 2**30
    if free_gib < needed_gib:
        raise ClusterError(
            f"{what} needs {needed_gib:.1f} GiB below {folder}, {free_gib:.1f} GiB are free: make room, or put the "
            "cache on another disk with XDG_CACHE_HOME and the cluster with --state"
        )


def install(packages: tuple[str, ...], progress: Progress) -> None:
    """Install the Debian packages that are missing.

    Raises:
        ClusterError: there is no apt, or it failed.
    """
    missing = sorted(set(packages) - _installed())
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"these programs are missing and this is no Debian: {', '.join(missing)}")
    with progress.stage(f"installing Debian packages: {' '.join(missing)}"):
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
        if _apt(command).returncode != 0:  # no package lists yet, or outdated ones
            updated = _apt(["apt-get", "update", "--quiet"])
            done = _apt(command)
            if done.returncode != 0:
                raise ClusterError(f"apt-get failed:\n{updated.stderr[-1000:]}\n{done.stderr[-1000:]}")
        services = [_SERVICES[package] for package in missing if package in _SERVICES]
        if services and Path("/run/systemd/system").exists():
            subprocess.run(["systemctl", "disable", "--now", *services], check=False, capture_output=True)


def _installed() -> set[str]:
    if shutil.which("dpkg-query") is None:
        return set()
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[0] for line in listed.stdout.splitlines() if line.endswith(" installed")}


def _apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
