"""Containerd of the node, through its ctr command in the cluster's namespaces."""

import subprocess
import uuid
from pathlib import Path

from cluster import namespaces, oci
from cluster.errors import ClusterError
from cluster.layout import INSIDE, Layout
from cluster.store import Layer

_KEEP = "containerd.io/gc.root"  # a snapshot with this label is no garbage


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


def import_archive(layout: Layout, archive: bytes) -> None:
    """Give containerd an image archive (see `oci.archive`) and let it unpack what is not unpacked.

    Raises:
        ClusterError: containerd refused it.
    """
    argv = namespaces.inside(layout, "ctr", "--namespace=k8s.io", "images", "import", "-")
    done = subprocess.run(argv, input=archive, capture_output=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"containerd did not take an image: {done.stderr.decode(errors='replace').strip()[-1000:]}")


def add_image(layout: Layout, name: str, config: bytes, layers: list[Layer], present: int) -> None:
    """Make an image out of layers that are unpacked already, without any copy where a hard link will do.

    containerd gets the layers as snapshots and then an archive with nothing but the manifest and the configuration.
    The files of a layer are never written to, neither by buildah nor by containerd, so that both may share them.

    Args:
        layout: the cluster.
        name: full reference of the image.
        config: its configuration.
        layers: all its layers, the lowest first.
        present: how many of them the node has (see `unpacked_layers`).

    Raises:
        ClusterError: containerd refused, or the files could not be linked.
    """
    chain = oci.chain_ids([layer.diff_id for layer in layers])
    for number in range(present, len(layers)):
        _add_snapshot(layout, chain[number], chain[number - 1] if number else None, layers[number].folder)
    described = [oci.Descriptor(oci.LAYER, layer.diff_id, layer.size) for layer in layers]
    import_archive(layout, oci.archive(name, oci.manifest_of(config, described), [config]))
    # The image refers to its snapshots now: they go when it goes.
    for chain_id in chain[present:]:
        ctr(layout, "snapshots", "label", chain_id, f"{_KEEP}=")


def can_link(layout: Layout, folder: Path) -> bool:
    """Whether hard links from a folder to the node's images are possible: both are on one file system."""
    return folder.stat().st_dev == layout.images.stat().st_dev


def forget_unused(layout: Layout, repository: str, current: str) -> None:
    """Remove images of one name that are neither current nor in any container."""
    used = {line.split()[1] for line in ctr(layout, "containers", "list").splitlines()[1:]}
    for name in image_names(layout):
        if name.startswith(f"{repository}:") and name != current and name not in used:
            ctr(layout, "images", "delete", name)


def unpacked_layers(layout: Layout, diff_ids: list[str]) -> int:
    """How many of an image's layers, from the bottom, the node has unpacked already."""
    listed = ctr(layout, "snapshots", "list").splitlines()[1:]
    snapshots = {line.split()[0] for line in listed}
    chain = oci.chain_ids(diff_ids)
    return next((number for number, chain_id in enumerate(chain) if chain_id not in snapshots), len(chain))


def upper_folder(mount: str) -> str:
    """Where the files of a snapshot belong, from the mount command that ctr prints for it."""
    words = mount.split()
    if words[words.index("-t") + 1] == "bind":  # a lowest layer: mount -t bind SOURCE TARGET …
        return words[words.index("-t") + 2]
    options = words[words.index("-o") + 1].split(",")
    return next(option.partition("=")[2] for option in options if option.startswith("upperdir="))


def _add_snapshot(layout: Layout, chain_id: str, parent: str | None, source: Path) -> None:
    key = f"octavo-{uuid.uuid4().hex}"
    mount = ctr(layout, "snapshots", "prepare", "--target", "/", key, *([parent] if parent else []))
    target = layout.state / Path(upper_folder(mount)).relative_to(INSIDE)
    link = ["--link"] if can_link(layout, source) else []
    done = subprocess.run(
        ["cp", "--archive", *link, f"{source}/.", str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        ctr(layout, "snapshots", "delete", key)
        raise ClusterError(f"cannot bring the files of {source} into the node: {done.stderr[-500:]}")
    ctr(layout, "snapshots", "commit", chain_id, key)
