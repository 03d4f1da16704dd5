"""What a model's weights take in memory, from the shapes in their headers: as read, as held, and while they are loaded."""

from __future__ import annotations

import math

from octavo_runtime.domain import INT8_WEIGHTS
from octavo_runtime.errors import UnsupportedModel
from octavo_runtime.loading.weight_map import GROUP, WeightMap

__all__ = ["ITEM_BYTES", "check_packing", "held_bytes", "most_bytes", "weight_bytes"]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8": 1}
"""By the names that settings have."""

_PACKED_INPUTS = 64
"""Inputs of a weight in four bits that a GPU's kernels take at a time (octavo_kernels.linear.pairs)."""

_ROUNDED_INPUTS = 32768
"""Most inputs of a layer whose rows a GPU's kernels round to int8 (octavo_kernels.linear.triton)."""


def weight_bytes(weights: WeightMap, dtype: str) -> int:
    """Bytes of the parameters as they are read: in this dtype, but for weights in groups."""
    return weights.num_elements * ITEM_BYTES[dtype] + weights.group_bytes


def held_bytes(weights: WeightMap, dtype: str, quantization: str, *, packed: bool) -> int:
    """Bytes of the parameters as they are held once they are loaded.

    Args:
        weights: What is read.
        dtype: Of embedding, norms and biases, and of weights that are not quantised; on a GPU of the head.
        quantization: Resolved.
        packed: Whether quantised weights are packed as a GPU's kernels take them, not as a CPU's native ones do.
    """
    item = ITEM_BYTES[dtype]
    if quantization not in INT8_WEIGHTS:
        return weight_bytes(weights, dtype) + (_widening(weights, item) if packed else 0)
    linear = _linear_shapes(weights)
    in_linear = sum(map(math.prod, linear))
    # Beside an output's scale the native kernels have its sum.
    for_output = 4 if packed else 8
    quantised = in_linear + for_output * sum(outputs for outputs, _ in linear)
    in_head = 0 if packed else math.prod(_rounded_head(weights))
    return quantised + in_head + in_head // GROUP * 2 + (weights.num_elements - in_linear - in_head) * item


def most_bytes(weights: WeightMap, dtype: str, quantization: str, *, packed: bool) -> int:
    """Bytes of the parameters while they are loaded: as held, beside the largest that is packed.

    Args:
        weights: What is read.
        dtype: It is read in.
        quantization: Resolved.
        packed: As in `held_bytes`.
    """
    read = weight_bytes(weights, dtype)
    if quantization == "none":
        return read
    held = held_bytes(weights, dtype, quantization, packed=packed)
    if quantization in INT8_WEIGHTS:
        # A head in eight bits lies there twice while it is put in its order.
        of_head = 0 if packed else math.prod(_rounded_head(weights)) * (ITEM_BYTES[dtype] + 1)
        return held + max(of_head, *(math.prod(shape) * ITEM_BYTES[dtype] for shape in _linear_shapes(weights)))
    largest = max(math.prod(weights.shapes[name]) for name in weights.fixed if name.endswith(".qweight"))
    # On a GPU groups are packed when all is read; four bits have a byte meanwhile, twice while they are put together.
    return max(read, held) + (4 * largest if packed else largest)


def check_packing(weights: WeightMap, quantization: str, *, packed: bool) -> None:
    """Checks that quantised weights have a width that the kernels take.

    Args:
        weights: What is read.
        quantization: Resolved.
        packed: As in `held_bytes`.

    Raises:
        UnsupportedModel: One has not; it is named.
    """
    if not packed:
        return
    for name, shape in weights.shapes.items():
        if quantization == "w8a8" and name.endswith(".weight") and shape[1] > _ROUNDED_INPUTS:
            raise UnsupportedModel(
                f"{name.removesuffix('.weight')} has {shape[1]} inputs; on a GPU w8a8 takes at most {_ROUNDED_INPUTS}",
                hint="Use --quantization w8a16.",
            )
    for name, dtype in weights.fixed.items():
        width = 2 * weights.shapes[name][-1]
        if name.endswith(".qweight") and dtype == "U8" and width % _PACKED_INPUTS:
            raise UnsupportedModel(
                f"{name.removesuffix('.qweight')} is stored in groups of four bits and has {width} inputs; on a GPU "
                f"they must be a multiple of {_PACKED_INPUTS}",
                hint="Use --device cpu, or convert the GGUF file without --quantization keep.",
            )


def _linear_shapes(weights: WeightMap) -> list[tuple[int, ...]]:
    """Of the layers' weights, which have `.weight` in their names; the head has not."""
    return [shape for name, shape in weights.shapes.items() if name.endswith(".weight")]


def _rounded_head(weights: WeightMap) -> tuple[int, ...]:
    """The shape of the head where a CPU's native kernels have it in groups of eight bits; else of nothing."""
    shape = weights.shapes.get("embedding" if weights.tied else "head", (0, 0))
    return shape if shape[1] % GROUP == 0 else (0, 0)


def _widening(weights: WeightMap, item: int) -> int:
    """Bytes that weights in groups of eight bits take on a GPU beyond what is stored: it has them in the dtype."""
    bytes_ = 0
    for name, dtype in weights.fixed.items():
        if name.endswith(".qweight") and dtype == "I8":
            scales = f"{name.removesuffix('.qweight')}.scales"
            bytes_ += math.prod(weights.shapes[name]) * (item - 1) - 2 * math.prod(weights.shapes[scales])
    return bytes_
