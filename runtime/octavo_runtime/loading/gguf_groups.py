"""The tensors of a GGUF file as they are stored: groups of 32 numbers stay groups, floats stay floats. No torch.

GGUF stores a row of a quantised tensor as blocks, each of 32 numbers with its scale (and minimum) before them:

    Q4_0   scale F16, 16 bytes                  scale * (q - 8), q from 0 to 15
    Q4_1   scale F16, minimum F16, 16 bytes     scale * q + minimum
    Q8_0   scale F16, 32 bytes                  scale * q, q from -127 to 127

What is written is the form that loading/weight_map.py describes, with the bytes of the quants as they are. A Q4_0 gets
minima of -8 times the scale, which float16 holds exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import dequantize

from octavo_runtime.errors import BadWeights, UnsupportedModel

__all__ = ["FOUR_BITS", "stored_as_they_are"]

FOUR_BITS = (Type.Q4_0, Type.Q4_1)

_BLOCK = 32
_FLOATS = {Type.F32: ("F32", "<f4"), Type.F16: ("F16", "<f2"), Type.BF16: ("BF16", "")}

Stored = tuple[str, np.ndarray]
"""Type by safetensors' names, and the numbers, rows first; bfloat16 as its bits."""


def stored_as_they_are(tensor: Any, name: str, shape: tuple[int, ...]) -> dict[str, Stored]:
    """What to write of a tensor: name to numbers.

    Args:
        tensor: Of a GGUFReader.
        name: Its Hugging Face name.
        shape: Rows first.

    Raises:
        UnsupportedModel: It is quantised in a way that cannot be kept; the message names it.
        BadWeights: A scale, a minimum or a number is not finite.
    """
    kind = tensor.tensor_type
    if kind in _FLOATS:
        dtype, format_ = _FLOATS[kind]
        values = dequantize(tensor.data, kind).reshape(shape)
        _check_finite(tensor.name, values)
        return {name: (dtype, values.astype(format_) if format_ else (values.view("<u4") >> 16).astype("<u2"))}
    if kind not in {*FOUR_BITS, Type.Q8_0} or not name.endswith(".weight"):
        raise UnsupportedModel(
            f"{tensor.name} is quantised as {kind.name}, and --quantization keep keeps Q4_0, Q4_1 and Q8_0",
            hint="Leave --quantization out, which turns all weights into floating point.",
        )
    numbers = 2 if kind == Type.Q4_1 else 1
    blocks = tensor.data.reshape(shape[0], shape[1] // _BLOCK, -1)  # [out, groups, bytes]
    heads = np.ascontiguousarray(blocks[..., : 2 * numbers]).view("<f2")  # [out, groups, scale and minimum]
    quants = np.ascontiguousarray(blocks[..., 2 * numbers :]).reshape(shape[0], -1)
    scales = np.ascontiguousarray(heads[..., 0])
    base = name.removesuffix(".weight")
    parts: dict[str, Stored] = {
        f"{base}.qweight": ("I8", quants.view("i1")) if kind == Type.Q8_0 else ("U8", quants),
        f"{base}.scales": ("F16", scales),
    }
    if kind in FOUR_BITS:
        minima = heads[..., 1] if kind == Type.Q4_1 else (scales.astype("<f4") * -8).astype("<f2")
        _check_finite(tensor.name, minima)
        parts[f"{base}.minima"] = ("F16", np.ascontiguousarray(minima))
    _check_finite(tensor.name, scales)
    return parts


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise BadWeights(f"{name} has values that are not finite")
