"""Reads a checkpoint into a decoder's parameters: each tensor straight into its place, cast on the way.

Files are memory-mapped by safetensors, so beside the parameters themselves only page cache is used, which the
kernel takes back when it must.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import DTYPE_BYTES, TensorEntry
from octavo_runtime.loading.weight_map import Slot, WeightMap

__all__ = ["load_weights"]

# By safetensors' names.
_FIXED = {"U8": torch.uint8, "I8": torch.int8, "F16": torch.float16}


def load_weights(
    checkpoint: dict[str, TensorEntry],
    weights: WeightMap,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Allocates the parameters and fills them.

    Args:
        checkpoint: Name to entry, from `open_checkpoint`.
        weights: What goes where, from `weight_map`.
        device: Of the parameters.
        dtype: Of the parameters, but for weights in groups.
        progress: Called with bytes read and bytes in all.

    Returns:
        Parameter name to tensor; "head" is the embedding itself when they are tied. One in groups has parts instead,
        which are the embedding's alone when they are tied.

    Raises:
        BadWeights: A file could not be read.
    """
    parameters = {
        name: torch.empty(shape, dtype=_FIXED[weights.fixed[name]] if name in weights.fixed else dtype, device=device)
        for name, shape in weights.shapes.items()
    }
    by_file: dict[Path, list[Slot]] = {}
    for slot in weights.slots:
        by_file.setdefault(checkpoint[slot.source].file, []).append(slot)
    sizes = {slot.source: math.prod(slot.shape) * DTYPE_BYTES[checkpoint[slot.source].dtype] for slot in weights.slots}
    total, done = sum(sizes.values()), 0
    for path, slots in by_file.items():
        try:
            with safe_open(path, framework="pt") as file:
                for slot in slots:
                    rows = parameters[slot.target][slot.first_row : slot.first_row + slot.shape[0]]
                    rows.copy_(file.get_tensor(slot.source))
                    done += sizes[slot.source]
                    if progress:
                        progress(done, total)
        except (SafetensorError, OSError) as error:
            raise BadWeights(f"{path} cannot be read: {error}", hint="Download the file again.") from error
    if weights.tied:
        parameters |= {
            name.replace("embedding", "head"): parameters[name] for name in weights.shapes if "embed" in name
        }
    elif {"head", "embedding"} <= parameters.keys() and torch.equal(parameters["head"], parameters["embedding"]):
        # Some tied checkpoints store the embedding twice.
        parameters["head"] = parameters["embedding"]
    return parameters
