"""The tensors of a safetensors directory, from the headers alone: where each lies, its type and shape.

A safetensors file is an 8-byte little-endian length, that much JSON (name to dtype, shape and the span of its bytes
behind the header) and the bytes. A sharded checkpoint has `model.safetensors.index.json` beside the shards, whose
`weight_map` says which shard holds which tensor. Everything is checked before a weight is read. Imports no torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_runtime.errors import BadWeights, readable
from octavo_runtime.loading.spec import read_json

__all__ = ["DTYPE_BYTES", "TensorEntry", "open_checkpoint", "read_header"]

# Names as in the safetensors format.
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_MAX_HEADER = 100_000_000  # the format's own limit
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a checkpoint.

    Attributes:
        file: The safetensors file that holds it.
        dtype: As the format names it: F32, BF16 …
        shape: Its shape.
        offset: Where its bytes begin in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@readable(BadWeights)
def open_checkpoint(directory: Path) -> dict[str, TensorEntry]:
    """Reads the headers of a model directory's weights.

    Raises:
        BadWeights: No weights, a shard missing, unreadable or truncated, a header that contradicts its file or the index.
    """
    if (directory / _SINGLE).is_file():
        return read_header(directory / _SINGLE)
    if not (directory / _INDEX).is_file():
        others = sorted(p.name for p in directory.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".gguf", ".ckpt"})
        raise BadWeights(
            f"{directory} has neither {_SINGLE} nor {_INDEX}" + (f", only {', '.join(others[:3])}" if others else ""),
            hint="A GGUF file becomes such a directory by `octavo convert FILE.gguf OUT_DIR`."
            if any(name.endswith(".gguf") for name in others)
            else "Octavo reads safetensors only; download or convert the weights in that format.",
        )
    return _read_sharded(directory)


def _read_sharded(directory: Path) -> dict[str, TensorEntry]:
    index = directory / _INDEX
    weight_map = read_json(index, damaged=BadWeights).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadWeights(f"{index} has no weight_map")
    shards: dict[str, dict[str, TensorEntry]] = {}
    for name in sorted(set(weight_map.values())):
        if not isinstance(name, str) or Path(name).name != name:
            raise BadWeights(f"{index} names {name!r}, which is no file in the same directory")
        if not (directory / name).is_file():
            raise BadWeights(
                f"{index} names {name}, which is missing", hint="Download the missing shard; the others are there."
            )
        shards[name] = read_header(directory / name)
    for tensor, shard in weight_map.items():
        if tensor not in shards[shard]:
            raise BadWeights(f"{index} says that {shard} holds {tensor}, but it does not")
    # A tensor that the index leaves out is still in its file: let the weight map judge it.
    return {tensor: entry for shard in shards.values() for tensor, entry in shard.items()}


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Reads and checks one file's header.

    Raises:
        BadWeights: The file is truncated or is no safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8 or length > _MAX_HEADER:
            raise BadWeights(
                f"{path} is truncated or no safetensors file: it says that its header has {length} bytes, "
                f"but the file has {size}",
                hint="Download the file again.",
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        entries = {
            name: _entry(path, name, value, 8 + length, size)
            for name, value in header.items()
            if name != "__metadata__"
        }
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise BadWeights(f"{path}: the safetensors header is damaged: {error!r}") from error
    end = max((value["data_offsets"][1] for name, value in header.items() if name != "__metadata__"), default=0)
    if end != size - 8 - length:
        raise BadWeights(
            f"{path} is {'truncated' if end > size - 8 - length else 'too long'}: "
            f"its header describes {8 + length + end} bytes, but the file has {size}",
            hint="Download the file again.",
        )
    return entries


def _entry(path: Path, name: str, value: dict[str, Any], data_begin: int, file_size: int) -> TensorEntry:
    dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if dtype not in DTYPE_BYTES:
        raise BadWeights(f"{path}: {name} has the type {dtype}, which Octavo does not read")
    if begin < 0 or end - begin != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise BadWeights(
            f"{path}: {name} of shape {list(shape)} and type {dtype} cannot be the {end - begin} bytes "
            "that the header gives it"
        )
    data_bytes = file_size - data_begin
    if end > data_bytes:
        raise BadWeights(
            f"{path} is truncated: {name} ends at byte {end} of the data, but the file has {data_bytes}",
            hint="Download the file again.",
        )
    return TensorEntry(path, dtype, shape, data_begin + begin)
