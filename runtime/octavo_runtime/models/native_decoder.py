"""The decoder on a CPU with native kernels: one call per step, weights as they are stored, everything else in float32."""

from __future__ import annotations

import logging

import numpy as np

from octavo_kernels.decoder_step import DecoderStep, LayerWeights, unsupported
from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, forced_form
from octavo_kernels.linear.packing import GROUP, PackedLinear, pack_groups, pack_linear, pack_quantised, pack_rounded
from octavo_kernels.native import Context, NativeUnavailable
from octavo_kernels.native.arrays import Array, cast
from octavo_kernels.paged_attention import PagedBatch
from octavo_runtime.domain import INT8_WEIGHTS, EngineConfig
from octavo_runtime.errors import BadFlags
from octavo_runtime.loading.spec import DecoderSpec
from octavo_runtime.loading.weights import StoredWeights
from octavo_runtime.models.rope import rotary_table

__all__ = ["NativeDecoder", "open_native"]

logger = logging.getLogger(__name__)

# How to do without each.
_WITHOUT = {
    "--quantization w8a16": "leave --quantization out, for the weights as they are stored",
    "--quantization w8a8": "leave --quantization out, for the weights as they are stored",
    "--quantization w4a16": "convert the GGUF file without --quantization keep",
    "--kv-cache-dtype int8": "leave --kv-cache-dtype out",
    "--batch-invariant": "leave --batch-invariant out",
}


def open_native(spec: DecoderSpec, config: EngineConfig, threads: int) -> Context | None:
    """The native kernels, where they run this model and the environment does not force another form.

    Args:
        spec: The model.
        config: How it is served, with the quantization resolved. Torch takes the kernels' place where it can do that.
        threads: How many may be busy at once.

    Raises:
        BadFlags: The environment forces a form that does not exist; or this one cannot run, and the environment forces
            it or a flag needs it.
    """
    needed_by = _needed_by(config)
    try:
        forced = forced_form("cpu")
    except RuntimeError as error:
        raise BadFlags(str(error)) from error
    if forced not in {None, "native"}:
        if needed_by and forced != "triton":
            raise BadFlags(
                f"{needed_by} needs the native kernels, but {ENVIRONMENT_VARIABLE}={forced}",
                hint=f"Leave {ENVIRONMENT_VARIABLE} out, or {_WITHOUT[needed_by]}.",
            )
        return None
    why = unsupported(spec.head_dim)
    if why is None:
        try:
            return Context(threads)
        except NativeUnavailable as error:
            why = str(error)
    if needed_by:
        raise BadFlags(
            f"{needed_by} needs the native kernels, but {why}",
            hint=f"To run on torch, {_WITHOUT[needed_by]}.",
        )
    if forced:
        raise BadFlags(
            f"{ENVIRONMENT_VARIABLE}={forced}, but {why}", hint=f"Leave {ENVIRONMENT_VARIABLE} out to run on torch."
        )
    logger.warning("running on torch's kernels, which give the same tokens, slower: %s", why)
    return None


def _needed_by(config: EngineConfig) -> str | None:
    """The flag that native kernels alone can do, with its value."""
    if config.quantization != "none":
        return f"--quantization {config.quantization}"
    if config.kv_cache_dtype == "int8":
        return "--kv-cache-dtype int8"
    return "--batch-invariant" if config.batch_invariant else None


class NativeDecoder:
    """A decoder-only transformer over a paged KV cache.

    Args:
        context: The library and its threads.
        spec: The model.
        weights: Its parameters. Each is packed before the next one is read.
        kv_cache: [layers, 2, blocks, block size, kv heads, row], keys first, as `KVPool` has it.
        vocab_size: Logits are computed for the ids below; rows of the embedding above are padding.
        max_model_len: Positions that can occur.
        quantization: w8a16: linear layers and head take eight bits for a weight, the head with a scale for each 32
            inputs; w8a8: for activations of the layers, too. Weights that are stored in groups stay so in any case. But for
            none, attention may round to bfloat16 over a cache in it.
    """

    def __init__(
        self,
        context: Context,
        spec: DecoderSpec,
        weights: StoredWeights,
        *,
        kv_cache: Array,
        vocab_size: int,
        max_model_len: int,
        quantization: str = "none",
    ) -> None:
        def vector(name: str) -> Array | None:
            return norm(name) if name in weights else None

        def norm(name: str) -> Array:
            return cast(weights.read(name), np.dtype(np.float32))

        def pack(weight: Array, bias: Array | None) -> PackedLinear:
            if quantization not in INT8_WEIGHTS:
                return pack_linear(weight, bias)
            return pack_quantised(weight, bias, quads=context.quads, int8_rows=quantization == "w8a8")

        def groups(name: str, rows: int | None = None, bias: Array | None = None) -> PackedLinear:
            """The first rows of a weight in groups; all when None."""
            parts = [f"{name}.{part}" for part in ("qweight", "scales", "minima")]
            quants, scales, *minima = (weights.read(part)[:rows] for part in parts if part in weights)
            return pack_groups(quants, scales, minima[0] if minima else None, bias)

        def linear(name: str) -> PackedLinear:
            bias = vector(f"{name}.bias")
            if f"{name}.qweight" in weights:
                return groups(name, bias=bias)
            return pack(weights.read(f"{name}.weight"), bias)

        layers = [
            LayerWeights(
                attention_norm=norm(f"{layer}.attention_norm"),
                qkv=linear(f"{layer}.qkv"),
                q_norm=vector(f"{layer}.q_norm"),
                k_norm=vector(f"{layer}.k_norm"),
                output=linear(f"{layer}.output"),
                mlp_norm=norm(f"{layer}.mlp_norm"),
                gate_up=linear(f"{layer}.gate_up"),
                down=linear(f"{layer}.down"),
            )
            for layer in (f"layers.{number}" for number in range(spec.num_layers))
        ]

        def head_of(name: str) -> PackedLinear:
            if f"{name}.qweight" in weights:
                return groups(name, vocab_size)
            weight = weights.read(name)[:vocab_size]
            rounded = quantization in INT8_WEIGHTS and weight.shape[1] % GROUP == 0  # ADR 46
            return pack_rounded(weight) if rounded else pack_linear(weight)

        embedding: Array | PackedLinear | None = None  # its rows are the head's
        if not weights.tied:
            embedding = groups("embedding") if "embedding.qweight" in weights else weights.read("embedding")
        cos, sin = rotary_table(spec.rope, spec.head_dim, max_model_len)
        self._step = DecoderStep(
            context,
            layers,
            norm=norm("norm"),
            head=head_of("embedding" if weights.tied else "head"),
            embedding=embedding,
            cos=cos,
            sin=sin,
            kv_cache=kv_cache,
            num_heads=spec.num_heads,
            eps=spec.rms_norm_eps,
            rounded=quantization != "none",
        )

    def forward(
        self,
        token_ids: Array,
        positions: Array,
        slots: Array,
        batch: PagedBatch,
        logit_rows: Array,
    ) -> Array:
        """Runs one step and writes its KV, as `Decoder.forward` does.

        Returns:
            [rows, vocab_size], float32.
        """
        return self._step(token_ids, positions, slots, batch, logit_rows)
