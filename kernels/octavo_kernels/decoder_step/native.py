"""The native decoder: its weights and KV cache as the library takes them, then one call per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo_kernels.linear.packing import PackedLinear
from octavo_kernels.native import Context, abi
from octavo_kernels.native.arrays import Array, dtype_name
from octavo_kernels.paged_attention.batch import PagedBatch
from octavo_kernels.paged_attention.native import LOG2_E, NativeBatch, attention_struct
from octavo_kernels.paged_attention.rows import head_dim_of

__all__ = ["DecoderStep", "LayerWeights", "unsupported"]

_HEAD_DIM_UNIT = 8  # the narrowest vector


def unsupported(head_dim: int) -> str | None:
    """Why a decoder with heads of this width has no native form; None when it has one."""
    if head_dim % _HEAD_DIM_UNIT:
        return f"the model's heads are {head_dim} wide, and the native kernels take multiples of {_HEAD_DIM_UNIT}"
    return None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A layer's weights.

    Attributes:
        attention_norm: [hidden], float32, as are all norms.
        qkv: To the heads of q, k and v, in this order.
        q_norm: [head_dim] of the norm of each query head, or None.
        k_norm: The same for keys.
        output: From the query heads back.
        mlp_norm: [hidden].
        gate_up: To the gate's and the up projection's columns, in this order.
        down: Back.
    """

    attention_norm: Array
    qkv: PackedLinear
    q_norm: Array | None
    k_norm: Array | None
    output: PackedLinear
    mlp_norm: Array
    gate_up: PackedLinear
    down: PackedLinear

    def struct(self, kv: Array) -> abi.Layer:
        """What the library takes; kv: [2, blocks, …], keys first."""
        return abi.Layer(
            attention_norm=self.attention_norm.ctypes.data,
            q_norm=None if self.q_norm is None else self.q_norm.ctypes.data,
            k_norm=None if self.k_norm is None else self.k_norm.ctypes.data,
            mlp_norm=self.mlp_norm.ctypes.data,
            qkv=self.qkv.struct(),
            output=self.output.struct(),
            gate_up=self.gate_up.struct(),
            down=self.down.struct(),
            keys=kv[0].ctypes.data,
            values=kv[1].ctypes.data,
        )


class DecoderStep:
    """A decoder over a paged KV cache, one native call per step.

    Args:
        context: The library and its threads.
        layers: Their weights.
        norm: [hidden], float32: of the last norm.
        head: To the vocabulary.
        embedding: [vocabulary, hidden], or packed in groups; None: the head's weight, as it was stored.
        cos: [positions, head_dim], float32.
        sin: The same.
        kv_cache: [layers, 2, blocks, block size, kv heads, row] (paged_attention/rows.py). Within a block the library has an order of its
            own (paged_attention/native.h).
        num_heads: Query heads.
        eps: Of all norms.
        rounded: Whether attention may round its queries and weights to bfloat16 where the cache is in it (ADR 50).
    """

    def __init__(
        self,
        context: Context,
        layers: Sequence[LayerWeights],
        *,
        norm: Array,
        head: PackedLinear,
        embedding: Array | PackedLinear | None,
        cos: Array,
        sin: Array,
        kv_cache: Array,
        num_heads: int,
        eps: float,
        rounded: bool = False,
    ) -> None:
        rows = embedding.panels if isinstance(embedding, PackedLinear) else embedding
        if isinstance(embedding, np.ndarray):
            embedding_type = abi.TYPES[dtype_name(embedding.dtype)]
        else:
            embedding_type = (embedding or head).type
        assert embedding_type not in {abi.TYPES["int8"], abi.QUADS}, "an embedding is as it is stored"
        self._context = context
        self._vocab_size = head.out
        structs = (abi.Layer * len(layers))(*(layer.struct(kv) for layer, kv in zip(layers, kv_cache, strict=True)))
        self._kept = (layers, norm, head, embedding, cos, sin, kv_cache, structs)  # what the model points to
        self._model = abi.Model(
            hidden=norm.shape[0],
            intermediate=layers[0].down.columns,
            layer_count=len(layers),
            attention=attention_struct(
                kv_cache[0, 0], num_heads, head_dim_of(kv_cache) ** -0.5 * LOG2_E, rounded=rounded
            ),
            eps=eps,
            layers=structs,
            norm=norm.ctypes.data,
            head=head.struct(),
            embedding=None if rows is None else rows.ctypes.data,
            embedding_type=embedding_type,
            cos=cos.ctypes.data,
            sin=sin.ctypes.data,
        )

    def __call__(
        self,
        token_ids: Array,
        positions: Array,
        slots: Array,
        batch: PagedBatch,
        wanted_rows: Array,
    ) -> Array:
        """Runs a step and writes its KV.

        Args:
            token_ids: [tokens], int64, sequence after sequence, as the next two.
            positions: [tokens], int64.
            slots: [tokens], int64: where each token's KV goes.
            batch: Which tokens are whose.
            wanted_rows: [rows], int64: the tokens whose logits are wanted.

        Returns:
            [rows, vocabulary], float32.

        Raises:
            MemoryError: The step's own memory cannot be had.
        """
        native = NativeBatch(batch, token_ids=token_ids, positions=positions, slots=slots, wanted_rows=wanted_rows)
        logits = np.empty((len(wanted_rows), self._vocab_size), np.float32)
        if not self._context.library.octavo_decoder_step(
            self._context.handle, ctypes.byref(self._model), ctypes.byref(native.struct), logits.ctypes.data
        ):
            raise MemoryError(f"there is no memory for a step of {token_ids.shape[0]} tokens")
        return logits
