"""Reads buildah's layer store (containers/storage, overlay driver): what an image consists of, and where it lies."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image.

    Attributes:
        diff_id: digest of its uncompressed archive.
        size: bytes of that archive.
        folder: its unpacked files, with deletions in the form of overlayfs.
    """

    diff_id: str
    size: int
    folder: Path


def layers(root: Path, name: str) -> list[Layer]:
    """Layers of an image, the lowest first.

    Args:
        root: the store.
        name: full reference of the image.

    Raises:
        ClusterError: there is no such image.
    """
    images = _read(root / "overlay-images" / "images.json")
    image = next((image for image in images if name in image.get("names", [])), None)
    if image is None:
        known = sorted(other for image in images for other in image.get("names", []))
        raise ClusterError(f"there is no image {name}; the build cache has: {', '.join(known) or 'none'}")
    stored = {layer["id"]: layer for layer in _read(root / "overlay-layers" / "layers.json")}
    found: list[Layer] = []
    current: str | None = image["layer"]
    while current:
        layer = stored[current]
        found.append(Layer(layer["diff-digest"], layer["diff-size"], root / "overlay" / current / "diff"))
        current = layer.get("parent")
    return found[::-1]


def _read(path: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else []
    return content
