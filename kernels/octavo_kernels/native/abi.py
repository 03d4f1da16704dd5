"""The structures of native/abi.h, field for field, and the library's functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_void_p

__all__ = ["GROUPS", "QUADS", "TYPES", "Attention", "Batch", "Draws", "Layer", "Linear", "Model", "declare"]

TYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3}
"""The types that weights and the KV cache can have, by numpy's names, as the library numbers them."""

QUADS = 4
"""The type of int8 weights in quads (linear/quads.h)."""

GROUPS = {4: 5, 8: 6}
"""The types of weights in groups (linear/groups.h), by bits."""


class Linear(ctypes.Structure):
    """A packed weight."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("out", c_int64),
        ("in_", c_int64),
        ("type", c_int64),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("int8_rows", c_int64),
    )


class Layer(ctypes.Structure):
    """A layer's weights and its part of the KV cache."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


class Attention(ctypes.Structure):
    """The shape of attention."""

    _fields_ = (
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("type", c_int64),
        ("rounded", c_int64),
        ("scale", c_float),
    )


class Model(ctypes.Structure):
    """A decoder."""

    _fields_ = (
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("layer_count", c_int64),
        ("attention", Attention),
        ("eps", c_float),
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("head", Linear),
        ("embedding", c_void_p),
        ("embedding_type", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    )


class Batch(ctypes.Structure):
    """A step's tokens."""

    _fields_ = (
        ("tokens", c_int64),
        ("sequences", c_int64),
        ("wanted", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_lens", c_void_p),
        ("context_lens", c_void_p),
        ("table_starts", c_void_p),
        ("blocks", c_void_p),
        ("wanted_rows", c_void_p),
    )


class Draws(ctypes.Structure):
    """How a token is drawn from each row of logits."""

    _fields_ = (
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("uniform", c_void_p),
    )


_FUNCTIONS = {
    "octavo_stamp": (c_char_p, ()),
    "octavo_isa": (c_char_p, (c_int,)),
    "octavo_without_amx": (c_char_p, ()),
    "octavo_open": (c_void_p, (c_char_p, c_int)),
    "octavo_close": (None, (c_void_p,)),
    "octavo_decoder_step": (c_int, (c_void_p, POINTER(Model), POINTER(Batch), c_void_p)),
    "octavo_sample": (c_int, (c_void_p, c_void_p, c_int64, c_int64, POINTER(Draws), c_void_p)),
    "octavo_linear": (c_int, (c_void_p, POINTER(Linear), c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int)),
    "octavo_rms_norm": (None, (c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int64)),
    "octavo_gated_linear": (c_int, (c_void_p, POINTER(Linear), c_void_p, c_void_p, c_int64)),
    "octavo_silu_mul": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "octavo_rotary_kv": (
        None,
        (c_void_p, POINTER(Attention), POINTER(Batch), POINTER(Layer), c_float, c_void_p, c_void_p, c_void_p),
    ),
    "octavo_paged_attention": (
        c_int,
        (c_void_p, POINTER(Attention), POINTER(Batch), c_void_p, c_void_p, c_void_p, c_void_p),
    ),
}


def declare(library: ctypes.CDLL) -> None:
    """Gives the library's functions their types.

    Raises:
        AttributeError: It lacks one.
    """
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
