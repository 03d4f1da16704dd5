"""Image archives, tags, and buildah's store."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster import images, node, oci, store
from cluster.errors import ClusterError
from cluster.layout import REPOSITORY


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _contents(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def _manifest(files: dict[str, bytes]) -> dict[str, Any]:
    entry = json.loads(files["index.json"])["manifests"][0]
    blob = files[oci.blob_path(entry["digest"])]
    assert len(blob) == entry["size"]
    value: dict[str, Any] = json.loads(blob)
    return value


def test_archive_holds_every_blob_under_its_digest() -> None:
    config = b'{"rootfs": {}}'
    manifest = oci.manifest_of(config, [oci.Descriptor(oci.LAYER, "sha256:00", 5)])
    files = _contents(oci.archive("localhost/x:1", manifest, [config]))
    for path, content in files.items():
        if path.startswith("blobs/"):
            assert path == oci.blob_path(_digest(content))
    entry = json.loads(files["index.json"])["manifests"][0]
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/x:1"}
    assert _manifest(files)["config"]["digest"] == _digest(config)


def test_archive_without_a_layer_still_describes_it() -> None:
    config = b"{}"
    manifest = oci.manifest_of(config, [oci.Descriptor(oci.LAYER, "sha256:aa", 6_000_000_000)])
    archive = oci.archive("x", manifest, [config])
    assert len(archive) < 20_000
    assert _manifest(_contents(archive))["layers"] == [
        {"mediaType": oci.LAYER, "digest": "sha256:aa", "size": 6_000_000_000}
    ]


def test_single_file_image_is_executable_and_consistent() -> None:
    files = _contents(oci.single_file_image("localhost/pause:1", "/pause", b"\x7fELF", "arm64"))
    manifest = _manifest(files)
    config = json.loads(files[oci.blob_path(manifest["config"]["digest"])])
    layer = files[oci.blob_path(manifest["layers"][0]["digest"])]
    assert config["rootfs"]["diff_ids"] == [_digest(layer)]
    assert config["architecture"] == "arm64"
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert [(member.name, member.mode) for member in tar] == [("pause", 0o755)]


def test_chain_ids_hash_the_chain_so_far() -> None:
    first, second, third = (_digest(text) for text in (b"1", b"2", b"3"))
    two = _digest(f"{first} {second}".encode())
    assert oci.chain_ids([first, second, third]) == [first, two, _digest(f"{two} {third}".encode())]
    assert oci.chain_ids([]) == []


@pytest.mark.parametrize(
    "mount",
    [
        "mount -t bind /run/octavo/containerd/snapshots/11/fs / -o rw,rbind",
        "mount -t overlay overlay / -o index=off,workdir=/w,upperdir=/run/octavo/containerd/snapshots/11/fs,lowerdir=/a:/b",
    ],
)
def test_upper_folder_is_where_a_snapshots_files_belong(mount: str) -> None:
    assert node.upper_folder(mount) == "/run/octavo/containerd/snapshots/11/fs"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "code" / "package").mkdir(parents=True)
    (tmp_path / "code" / "package" / "a.py").write_text("a = 1\n")
    (tmp_path / "lock.txt").write_text("x==1\n")
    return tmp_path


INPUTS = ("lock.txt", "code")


def test_tag_changes_with_content_mode_files_and_base(sources: Path) -> None:
    source = sources / "code" / "package" / "a.py"
    tags = [images.tag(sources, INPUTS, "base:1"), images.tag(sources, INPUTS, "base:2")]
    source.write_text("a = 2\n")
    tags.append(images.tag(sources, INPUTS, "base:1"))
    source.chmod(0o755)
    tags.append(images.tag(sources, INPUTS, "base:1"))
    source.rename(source.with_name("b.py"))
    tags.append(images.tag(sources, INPUTS, "base:1"))
    (sources / "lock.txt").write_text("x==2\n")
    tags.append(images.tag(sources, INPUTS, "base:1"))
    assert len(set(tags)) == len(tags)


def test_tag_ignores_what_python_generates(sources: Path) -> None:
    before = images.tag(sources, INPUTS, "base:1")
    for generated in ("code/package/__pycache__", "code/octavo.egg-info"):
        (sources / generated).mkdir()
        (sources / generated / "file").write_text("x")
    assert images.tag(sources, INPUTS, "base:1") == before


def test_tag_names_a_missing_input(sources: Path) -> None:
    (sources / "lock.txt").unlink()
    with pytest.raises(ClusterError, match=r"lock\.txt is missing"):
        images.tag(sources, INPUTS, "base:1")


def test_recipes_name_files_that_exist_and_what_their_containerfile_copies() -> None:
    for recipe in images.RECIPES:
        containerfile = (REPOSITORY / "deploy" / f"{recipe.name}.Containerfile").read_text()
        for argument in recipe.arguments:
            name, value = argument.split("=")
            assert f"ARG {name}" in containerfile
            containerfile = containerfile.replace(f"${{{name}}}", value)
        for line in containerfile.splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                assert set(line.split()[1:-1]) <= {*recipe.dependencies, *recipe.sources}, line
        assert all((REPOSITORY / name).exists() for name in (*recipe.dependencies, *recipe.sources))


def test_stale_keeps_the_newest_and_other_names() -> None:
    listed: list[dict[str, Any]] = [
        {"names": [f"localhost/octavo-runtime:{number}"], "created": 100 + number} for number in (3, 1, 4, 2)
    ]
    listed += [{"names": None, "created": 1}, {"names": ["localhost/octavo-runtime-x:1"], "created": 1}]
    assert images.stale(listed, "localhost/octavo-runtime") == [
        "localhost/octavo-runtime:2",
        "localhost/octavo-runtime:1",
    ]


@pytest.fixture
def buildah_store(tmp_path: Path) -> Path:
    for folder in ("overlay-images", "overlay-layers"):
        (tmp_path / folder).mkdir()
    (tmp_path / "overlay-images" / "images.json").write_text(
        json.dumps([{"id": "i0", "layer": "l0"}, {"id": "i1", "names": ["localhost/a:1"], "layer": "l2"}])
    )
    (tmp_path / "overlay-layers" / "layers.json").write_text(
        json.dumps(
            [
                {"id": "l2", "parent": "l1", "diff-digest": "sha256:2", "diff-size": 20},
                {"id": "working-container", "parent": "l2"},
                {"id": "l0", "diff-digest": "sha256:0", "diff-size": 1},
                {"id": "l1", "diff-digest": "sha256:1", "diff-size": 10},
            ]
        )
    )
    return tmp_path


def test_store_layers_come_lowest_first(buildah_store: Path) -> None:
    assert store.layers(buildah_store, "localhost/a:1") == [
        store.Layer("sha256:1", 10, buildah_store / "overlay" / "l1" / "diff"),
        store.Layer("sha256:2", 20, buildah_store / "overlay" / "l2" / "diff"),
    ]


def test_store_layers_of_an_unknown_image_says_which_there_are(buildah_store: Path) -> None:
    with pytest.raises(ClusterError, match=r"no image localhost/b:1.*localhost/a:1"):
        store.layers(buildah_store, "localhost/b:1")


def test_store_layers_of_an_empty_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="none"):
        store.layers(tmp_path, "localhost/b:1")
