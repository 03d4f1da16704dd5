"""Gives pods a model from the host: a folder as a PersistentVolume that any number of pods may read."""

import subprocess
from pathlib import Path
from typing import Any

from cluster import namespaces
from cluster.api import Api, NotFoundError, object_path
from cluster.errors import ClusterError
from cluster.layout import INSIDE, Layout
from cluster.waiting import wait

_DEADLINE_S = 30.0
_HIDDEN = ("/run", "/var/log", "/proc", "/sys", "/dev")


def publish(layout: Layout, folder: Path, name: str, claim: str, namespace: str) -> None:
    """Make a folder appear as `/NAME` of a bound claim. May be repeated, and repeated for other namespaces.

    The folder is mounted into the node, not copied: it must stay where it is while pods use it.

    Args:
        layout: a running cluster.
        folder: the model.
        name: the model's folder on the volume.
        claim: name of the PersistentVolumeClaim.
        namespace: the claim's namespace, made when missing.

    Raises:
        ClusterError: no such folder, a part of it is private, no running cluster, or the claim does not bind.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise ClusterError(f"{folder} is no folder; a model is a folder with config.json and *.safetensors")
    if any(Path(hidden) in folder.parents for hidden in _HIDDEN):
        raise ClusterError(f"{folder} cannot be seen from the node; move it out of {', '.join(_HIDDEN)}")
    _check_readable(folder)
    _mount(layout, folder, Path("models") / claim / name)
    api = Api(layout)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    volume, request = manifests(claim, namespace, max(size, 1))
    _drop_released(api, volume)
    for manifest in (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        volume,
        request,
    ):
        api.apply(manifest)
    if not wait(lambda: _phase(api, request) == "Bound", _DEADLINE_S):
        raise ClusterError(
            f"the claim {namespace}/{claim} is not bound after {_DEADLINE_S:.0f} s; see kubectl describe"
        )


def manifests(claim: str, namespace: str, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A volume and the claim that only it satisfies, `size` in bytes."""
    volume_name = f"{namespace}-{claim}"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name},
        "spec": {
            "capacity": {"storage": str(size)},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim, "namespace": namespace},
            "hostPath": {"path": str(INSIDE / "models" / claim), "type": "Directory"},
        },
    }
    request = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": volume_name,
            "resources": {"requests": {"storage": "1"}},
        },
    }
    return volume, request


def _check_readable(folder: Path) -> None:
    """Pods run as a user that owns nothing here."""
    for path in (folder, *folder.rglob("*")):
        needed = 0o005 if path.is_dir() else 0o004
        if path.stat().st_mode & needed != needed:
            raise ClusterError(f"{path} cannot be read by the pods' user; allow it with: chmod -R a+rX {folder}")


def _mount(layout: Layout, folder: Path, place: Path) -> None:
    """Mount the folder read-only, in the node alone, in place of what was published under this name before."""
    (layout.state / place).mkdir(parents=True, exist_ok=True)
    target = str(INSIDE / place)
    steps = 'while umount "$2" 2>/dev/null; do :; done; mount --bind "$1" "$2" && mount -o remount,ro,bind "$2"'
    done = subprocess.run(
        namespaces.inside(layout, "sh", "-c", steps, "sh", str(folder), target),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"cannot mount {folder} into the node: {done.stderr.strip()}")


def _drop_released(api: Api, volume: dict[str, Any]) -> None:
    """A volume whose claim is gone never binds again; it holds nothing of its own, so that a new one takes its place."""
    if _phase(api, volume) in {None, "Available", "Bound"}:
        return
    api.call("DELETE", object_path(volume))
    if not wait(lambda: _phase(api, volume) is None, _DEADLINE_S):
        raise ClusterError(f"the released volume {volume['metadata']['name']} does not go away")


def _phase(api: Api, manifest: dict[str, Any]) -> str | None:
    try:
        return str(api.get(object_path(manifest))["status"].get("phase"))
    except NotFoundError:
        return None
