"""Image archives in the OCI layout, as containerd imports them: pure values in, bytes out.

An archive may be thin: `ctr images import` needs a manifest, a configuration and only those layers that containerd
has not unpacked yet.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob's type, digest (`sha256:…`) and size in bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, media_type: str, content: bytes) -> "Descriptor":
        """Describe a blob."""
        return cls(media_type, digest_of(content), len(content))

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> "Descriptor":
        """Read a descriptor from a manifest or index."""
        return cls(value["mediaType"], value["digest"], value["size"])

    def json(self) -> dict[str, Any]:
        """The form in a manifest or index."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def digest_of(content: bytes) -> str:
    """Digest of a blob."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def blob_path(digest: str) -> str:
    """Path of a blob in the OCI layout."""
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"


def index(manifest: Descriptor, name: str) -> bytes:
    """An index of one image; containerd takes the image's name from the annotation."""
    entry = manifest.json() | {"annotations": {"io.containerd.image.name": name}}
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()


def write_archive(
    target: IO[bytes], name: str, manifest: Descriptor, blobs: Mapping[str, tuple[IO[bytes], int]]
) -> None:
    """Stream an archive.

    Args:
        target: a file or pipe; need not be seekable.
        name: full reference of the image.
        manifest: descriptor of the manifest, which must be among the blobs.
        blobs: digest to (open file, size in bytes): manifest, configuration and the layers to transfer.
    """
    with tarfile.open(fileobj=target, mode="w|") as archive:
        for path, content in (("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", index(manifest, name))):
            _add(archive, path, io.BytesIO(content), len(content))
        for digest, (file, size) in blobs.items():
            _add(archive, blob_path(digest), file, size)


def single_file_image(path: str, content: bytes, architecture: str) -> tuple[Descriptor, dict[str, bytes]]:
    """An image whose only layer is one executable, which is also its entry point.

    Args:
        path: absolute path of the executable in the image.
        content: the executable.
        architecture: as Go spells it (`amd64`, `arm64`).

    Returns:
        The manifest's descriptor and the blobs by digest.
    """
    layer_file = io.BytesIO()
    with tarfile.open(fileobj=layer_file, mode="w") as layer:
        _add(layer, path.lstrip("/"), io.BytesIO(content), len(content), mode=0o755)
    layer_bytes = layer_file.getvalue()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [path], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer_bytes)]},
    }
    config_bytes = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": Descriptor.of(_CONFIG, config_bytes).json(),
        "layers": [Descriptor.of(_LAYER, layer_bytes).json()],
    }
    manifest_bytes = json.dumps(manifest).encode()
    blobs = {digest_of(blob): blob for blob in (manifest_bytes, config_bytes, layer_bytes)}
    return Descriptor.of(_MANIFEST, manifest_bytes), blobs


def _add(archive: tarfile.TarFile, path: str, file: IO[bytes], size: int, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = size
    entry.mode = mode
    archive.addfile(entry, file)
