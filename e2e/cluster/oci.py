"""Image archives in the OCI layout, as containerd imports them: pure values in, bytes out.

An archive may be thin: `ctr images import` needs a manifest, a configuration and only those layers that containerd
has not unpacked yet.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


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


def chain_ids(diff_ids: list[str]) -> list[str]:
    """Names of the stacks of layers 1, 1-2, 1-3, … from their uncompressed digests (OCI image spec, "ChainID")."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def index(manifest: Descriptor, name: str) -> bytes:
    """An index of one image; containerd takes the image's name from the annotation."""
    entry = manifest.json() | {"annotations": {"io.containerd.image.name": name}}
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()


def manifest_of(config: bytes, layers: Sequence[Descriptor]) -> bytes:
    """A manifest for a configuration and its layers."""
    value = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": Descriptor.of(_CONFIG, config).json(),
        "layers": [layer.json() for layer in layers],
    }
    return json.dumps(value).encode()


def archive(name: str, manifest: bytes, blobs: Iterable[bytes]) -> bytes:
    """An archive of one image.

    Args:
        name: full reference of the image.
        manifest: its manifest.
        blobs: its configuration, and the layers that containerd has not unpacked yet.
    """
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": index(Descriptor.of(_MANIFEST, manifest), name),
        **{blob_path(digest_of(blob)): blob for blob in (manifest, *blobs)},
    }
    return _tar(files, mode=0o644)


def single_file_image(name: str, path: str, content: bytes, architecture: str) -> bytes:
    """An archive of an image whose only file is an executable, which is also its entry point.

    Args:
        name: full reference of the image.
        path: absolute path of the executable in the image.
        content: the executable.
        architecture: as Go spells it (`amd64`, `arm64`).
    """
    layer = _tar({path.lstrip("/"): content}, mode=0o755)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [path], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
    }
    config_bytes = json.dumps(config).encode()
    return archive(name, manifest_of(config_bytes, [Descriptor.of(LAYER, layer)]), [config_bytes, layer])


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = mode
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()
