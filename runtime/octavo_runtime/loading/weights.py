"""Reads a checkpoint into a decoder's parameters: each tensor straight into its place, cast on the way.

Files are memory-mapped by safetensors, so beside the parameters themselves only page cache is used, which the
kernel takes back when it must.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
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
    finish: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]] | None = None,
) -> dict[str, torch.Tensor]:
    """Allocates the parameters and fills them, each when its first part is read.

    Args:
        checkpoint: Name to entry, from `open_checkpoint`.
        weights: What goes where, from `weight_map`.
        device: Of the parameters.
        dtype: Of the parameters, but for weights in groups.
        progress: Called with bytes read and bytes in all.
        finish: Called with each parameter's name and itself once it is whole; what it returns takes its place.

    Returns:
        Parameter name to tensor; "head" is the embedding itself when they are tied. One in groups has parts instead,
        which are the embedding's alone when they are tied.

    Raises:
        BadWeights: A file could not be read.
    """
    parameters: dict[str, torch.Tensor] = {}
    missing = Counter(slot.target for slot in weights.slots)
    by_file: dict[Path, list[Slot]] = {}
    for slot in weights.slots:
        by_file.setdefault(checkpoint[slot.source].file, []).append(slot)
    sizes = {slot.source: math.prod(slot.shape) * DTYPE_BYTES[checkpoint[slot.source].dtype] for slot in weights.slots}
    total, done = sum(sizes.values()), 0
    for path, slots in by_file.items():
        try:
            with safe_open(path, framework="pt") as file:
                for slot in slots:
                    name = slot.target
                    if name not in parameters:
                        own = _FIXED[weights.fixed[name]] if name in weights.fixed else dtype
                        parameters[name] = torch.empty(weights.shapes[name], dtype=own, device=device)
                    rows = parameters[name][slot.first_row : slot.first_row + slot.shape[0]]
                    rows.copy_(file.get_tensor(slot.source))
                    missing[name] -= 1
                    if finish and not missing[name]:
                        parameters |= finish(name, parameters.pop(name))
                    done += sizes[slot.source]
                    if progress:
                        progress(done, total)
        except (SafetensorError, OSError) as error:
            raise BadWeights(f"{path} cannot be read: {error}", hint="Download the file again.") from error
    if weights.tied:
        parameters |= {
            name.replace("embedding", "head"): parameters[name] for name in weights.shapes if "embed" in name
        }
    elif {"head", "embedding"} <= parameters.keys():
        head, embedding = parameters["head"], parameters["embedding"]
        # Some tied checkpoints store the embedding twice.
        if head.dtype == embedding.dtype and torch.equal(head, embedding):
            parameters["head"] = embedding
    return parameters
