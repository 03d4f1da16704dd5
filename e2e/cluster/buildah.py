"""Runs buildah on a layer store of our own, in the cache folder."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.layout import cache_folder


class CommandError(ClusterError):
    """A command failed.

    Attributes:
        said: the end of its output.
    """

    def __init__(self, command: Sequence[str], said: str) -> None:
        super().__init__(f"{' '.join(command)} failed:\n{said}")
        self.said = said


def buildah(*arguments: str) -> str:
    """Run buildah and return its output.

    Raises:
        CommandError: it failed.
    """
    places = [f"--root={storage()}/storage", f"--runroot={storage()}/run"]
    driver = ["--storage-driver=overlay", "--storage-opt=overlay.skip_mount_home=true"]
    # In a mount namespace of its own, so that not even a killed build leaves mounts on the machine.
    return run("unshare", "--mount", "--propagation=private", "buildah", *places, *driver, *arguments)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for other builds and pushes of this cache, and begin with an empty scratch space."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(temporary(), ignore_errors=True)  # what a command that was killed has left behind
        yield


def storage() -> Path:
    """Where the layers are: `storage` in it is what `store` reads."""
    return cache_folder() / "buildah"


def temporary() -> Path:
    """Scratch space, gigabytes at times: on the disk that was checked for room."""
    return cache_folder() / "tmp"


def run(*command: str) -> str:
    """Run any command that needs much scratch space, and return its output.

    Raises:
        CommandError: it failed.
    """
    temporary().mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary())}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise CommandError(command, (done.stdout[-1500:] + done.stderr[-1500:]).strip())
    return done.stdout
