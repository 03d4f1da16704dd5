from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import open_checkpoint, read_header


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(1)}, tmp_path / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_open_checkpoint_single(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3), "s": torch.tensor(1.0)}, tmp_path / "model.safetensors", {"format": "pt"})
    entries = open_checkpoint(tmp_path)
    assert (entries["a"].dtype, entries["a"].shape, entries["a"].num_elements) == ("F32", (2, 3), 6)
    assert entries["s"].shape == ()


def test_open_checkpoint_sharded(sharded: Path) -> None:
    entries = open_checkpoint(sharded)
    assert {name: entry.file.name for name, entry in entries.items()} == {
        "a": "one.safetensors",
        "b": "one.safetensors",
        "c": "two.safetensors",
    }
    assert entries["b"].dtype == "BF16"


def test_open_checkpoint_missing_shard(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(BadWeights, match=r"index\.json names two\.safetensors, which is missing"):
        open_checkpoint(sharded)


def test_open_checkpoint_truncated_shard(sharded: Path) -> None:
    path = sharded / "one.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadWeights, match=r"one\.safetensors is truncated") as raised:
        open_checkpoint(sharded)
    assert "again" in raised.value.hint


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "x": "two.safetensors"}, r"says that two\.safetensors holds x"),
        ({"a": "../one.safetensors"}, "which is no file in the same directory"),
        ({"a": "/etc/passwd"}, "which is no file in the same directory"),
        ({}, "has no weight_map"),
        (None, "has no weight_map"),
    ],
)
def test_open_checkpoint_bad_index(sharded: Path, weight_map: Any, message: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadWeights, match=message):
        open_checkpoint(sharded)


def test_open_checkpoint_damaged_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {')
    with pytest.raises(BadWeights, match=r"index\.json cannot be read as JSON"):
        open_checkpoint(sharded)


def test_open_checkpoint_none(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match="has neither"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(BadWeights, match=r"only x\.gguf") as raised:
        open_checkpoint(tmp_path)
    assert "octavo convert" in raised.value.hint


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        ({}, b"", 10**9, "its header has 1000000000 bytes"),
        ({}, b"", 2**63, "its header has"),
        (b"{", b"", None, "header is damaged"),
        (b"\xff", b"", None, "header is damaged"),
        (b"[]", b"", None, "header is damaged"),
        ({"a": 1}, b"", None, "header is damaged"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"", None, "header is damaged"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234", None, "a ends at byte 8"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345", None, "is too long"),
        ({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678", None, "cannot be the 8 bytes"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"", None, "cannot be the"),
        ({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, b"1234", None, "type F4"),
    ],
)
def test_read_header_damaged(tmp_path: Path, header: Any, data: bytes, length: int | None, message: str) -> None:
    path = write_raw(tmp_path / "x.safetensors", header, data, length)
    with pytest.raises(BadWeights, match=message):
        read_header(path)


@pytest.mark.parametrize("size", range(9))
def test_read_header_stub(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadWeights, match="truncated or no safetensors file"):
        read_header(path)
