"""The decoder: what a spec describes, with its weights and its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo_kernels.linear import linear_w8a8, linear_w8a8_invariant, linear_w8a16
from octavo_kernels.native.arrays import to_tensor
from octavo_kernels.paged_attention import PagedBatch, prepare
from octavo_kernels.rms_norm import add_rms_norm, rms_norm
from octavo_runtime.layers.attention import Attention, AttentionStep
from octavo_runtime.layers.embedding import AnyEmbedding, Embedding, GroupedEmbedding
from octavo_runtime.layers.head import Head
from octavo_runtime.layers.linear import AnyLinear, GroupedLinear, Int8Linear, Int8Product, InvariantLinear, Linear
from octavo_runtime.layers.mlp import GatedMLP
from octavo_runtime.layers.rotary import RotaryTable
from octavo_runtime.loading.spec import DecoderSpec
from octavo_runtime.models.rope import rotary_table

__all__ = ["Decoder"]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor  # [hidden]
    attention: Attention
    mlp_norm: torch.Tensor  # [hidden]
    mlp: GatedMLP


class Decoder:
    """A decoder-only transformer over a paged KV cache.

    Args:
        spec: Its description.
        parameters: Name to tensor, as `loading.weight_map` names them; quantised ones as `models.quantised` does.
        kv_cache: [layers, 2, blocks, block size, kv heads, row], keys first, as `KVPool` has it.
        vocab_size: Logits are computed for the ids below; rows of the embedding above are padding.
        max_model_len: Positions that can occur.
        batch_invariant: Whether a token's logits must have the same bits in any batch and chunk (ADR 37): with Triton's
            kernels and weights as they are stored, or int8_rows.
        int8_rows: Whether layers of int8 weights round activations to int8 as well.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: Mapping[str, torch.Tensor],
        *,
        kv_cache: torch.Tensor,
        vocab_size: int,
        max_model_len: int,
        batch_invariant: bool = False,
        int8_rows: bool = False,
    ) -> None:
        plain = InvariantLinear if batch_invariant else Linear
        of_int8 = (linear_w8a8_invariant if batch_invariant else linear_w8a8) if int8_rows else linear_w8a16
        self._eps = spec.rms_norm_eps
        self._norm = parameters["norm"]
        self._embedding = _embedding(parameters)
        stored = InvariantLinear if batch_invariant else Head
        self._head = _linear(parameters, stored, of_int8, "head", "head", vocab_size)
        cos, sin = map(to_tensor, rotary_table(spec.rope, spec.head_dim, max_model_len))
        self._rotary = RotaryTable(
            cos,
            sin,
            dtype=self._norm.dtype,
            device=self._norm.device,
        )

        def linear(name: str) -> AnyLinear:
            return _linear(parameters, plain, of_int8, name, f"{name}.weight")

        self._layers = [
            _Layer(
                attention_norm=parameters[f"layers.{number}.attention_norm"],
                attention=Attention(
                    qkv=linear(f"layers.{number}.qkv"),
                    output=linear(f"layers.{number}.output"),
                    q_norm=parameters.get(f"layers.{number}.q_norm"),
                    k_norm=parameters.get(f"layers.{number}.k_norm"),
                    eps=spec.rms_norm_eps,
                    head_dim=spec.head_dim,
                    k_cache=kv_cache[number, 0],
                    v_cache=kv_cache[number, 1],
                    batch_invariant=batch_invariant,
                ),
                mlp_norm=parameters[f"layers.{number}.mlp_norm"],
                mlp=GatedMLP(linear(f"layers.{number}.gate_up"), linear(f"layers.{number}.down")),
            )
            for number in range(spec.num_layers)
        ]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: PagedBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Runs one step and writes its KV.

        Args:
            token_ids: [tokens], int64, sequence after sequence.
            positions: [tokens], int64.
            slots: [tokens], int64: where each token's KV goes.
            batch: Which tokens are whose.
            logit_rows: [rows], int64: the tokens whose logits are wanted.

        Returns:
            [rows, vocab_size].
        """
        return self.forward_prepared(token_ids, positions, slots, prepare(batch, token_ids.device), logit_rows)

    def forward_prepared(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        prepared: Any,
        logit_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `forward`, with what paged attention has prepared for the batch.

        Args:
            token_ids: [tokens], int64, sequence after sequence.
            positions: [tokens], int64.
            slots: [tokens], int64: where each token's KV goes; -1: nowhere.
            prepared: From `prepare` or `prepare_rows` of octavo_kernels.paged_attention.
            logit_rows: [rows], int64: the tokens whose logits are wanted; None: all.

        Returns:
            [rows, vocab_size].
        """
        cos, sin = self._rotary.at(positions)
        step = AttentionStep(cos, sin, slots, prepared)
        residual = self._embedding(token_ids)  # [tokens, hidden]
        x = rms_norm(residual, self._layers[0].attention_norm, self._eps)
        for layer, following in zip(self._layers, [*self._layers[1:], None], strict=True):
            x = layer.attention(x, step)
            x = layer.mlp(add_rms_norm(x, residual, layer.mlp_norm, self._eps))
            if following is not None:
                x = add_rms_norm(x, residual, following.attention_norm, self._eps)
        # Norm and head are per token: only for the rows that are wanted.
        if logit_rows is not None:
            x, residual = x.index_select(0, logit_rows), residual.index_select(0, logit_rows)
        return self._head(add_rms_norm(x, residual, self._norm, self._eps))


def _linear(
    parameters: Mapping[str, torch.Tensor],
    plain: type[Linear],
    of_int8: Int8Product,
    name: str,
    weight_name: str,
    rows: int | None = None,
) -> AnyLinear:
    """A layer from what there is of it, `plain` of a stored weight; `rows`: the first outputs, of one without a bias.

    An int8 weight is multiplied by `of_int8`.
    """
    bias = parameters.get(f"{name}.bias")
    if f"{name}.packed" in parameters:
        return GroupedLinear(parameters[f"{name}.packed"], parameters[f"{name}.groups"], bias)
    weight = parameters[weight_name][:rows]
    if weight.dtype == torch.int8:
        return Int8Linear(weight, parameters[f"{name}.scales"][:rows], bias, of_int8)
    return plain(weight, bias)


def _embedding(parameters: Mapping[str, torch.Tensor]) -> AnyEmbedding:
    if "embedding.packed" in parameters:
        return GroupedEmbedding(
            parameters["embedding.packed"], parameters["embedding.groups"], parameters["norm"].dtype
        )
    return Embedding(parameters["embedding"])
