"""Containerd of the node, through its ctr command in the cluster's namespaces."""

import subprocess
import threading
from collections.abc import Mapping
from typing import IO

from cluster import namespaces, oci
from cluster.errors import ClusterError
from cluster.layout import Layout


def ctr(layout: Layout, *arguments: str) -> str:
    """Run ctr in Kubernetes' containerd namespace and return its output.

    Raises:
        ClusterError: it failed; the message has its last words.
    """
    argv = namespaces.inside(layout, "ctr", "--namespace=k8s.io", *arguments)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ctr {' '.join(arguments[:2])} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def image_names(layout: Layout) -> set[str]:
    """References of the images that pods can use."""
    return set(ctr(layout, "images", "list", "--quiet").split())


def import_image(
    layout: Layout, name: str, manifest: oci.Descriptor, blobs: Mapping[str, tuple[IO[bytes], int]]
) -> None:
    """Stream an archive into containerd and unpack it.

    Args:
        layout: the cluster.
        name: full reference of the image.
        manifest: descriptor of its manifest.
        blobs: see `oci.write_archive`; layers that containerd has already unpacked may be left out.

    Raises:
        ClusterError: containerd refused the archive.
    """
    argv = namespaces.inside(layout, "ctr", "--namespace=k8s.io", "images", "import", "-")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        said: list[bytes] = []
        reader = threading.Thread(target=_collect, args=(process.stderr, said))
        reader.start()
        try:
            with process.stdin as pipe:
                oci.write_archive(pipe, name, manifest, blobs)
        except BrokenPipeError:
            pass  # the reason is on standard error
        reader.join()
    if process.returncode != 0:
        message = b"".join(said).decode(errors="replace").strip()
        raise ClusterError(f"containerd did not take the image {name}: {message[-1000:]}")


def _collect(stream: IO[bytes], said: list[bytes]) -> None:
    said.extend(stream)
