"""The decoder on a CPU with native kernels: one call per step, weights as they are stored, everything else in float32."""

from __future__ import annotations

import logging

import torch

from octavo_kernels.decoder_step import DecoderStep, LayerWeights, unsupported
from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, forced_form
from octavo_kernels.linear.packing import PackedLinear, pack_groups, pack_linear, pack_quantised
from octavo_kernels.native import Context, NativeUnavailable
from octavo_kernels.paged_attention import PagedBatch
from octavo_runtime.errors import BadFlags
from octavo_runtime.layers.rotary import RotaryTable
from octavo_runtime.loading.spec import DecoderSpec
from octavo_runtime.models.rope import inverse_frequencies

__all__ = ["NativeDecoder", "open_native"]

logger = logging.getLogger(__name__)

# How to do without each.
_WITHOUT = {
    "--quantization w8a16": "leave --quantization out, for the weights as they are stored",
    "--quantization w4a16": "convert the GGUF file without --quantization keep",
    "--kv-cache-dtype int8": "leave --kv-cache-dtype out",
    "--batch-invariant": "leave --batch-invariant out",
}


def open_native(spec: DecoderSpec, threads: int, needed_by: str | None = None) -> Context | None:
    """The native kernels, where they run this model and the environment does not force another form.

    Args:
        spec: The model.
        threads: How many may be busy at once.
        needed_by: The flag that only they can do, with its value; None: torch may take their place.

    Raises:
        BadFlags: The environment forces a form that does not exist; or this one cannot run, and the environment forces
            it or a flag needs it.
    """
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


class NativeDecoder:
    """A decoder-only transformer over a paged KV cache.

    Args:
        context: The library and its threads.
        spec: The model.
        parameters: Name to tensor, as `loading.weight_map` names them; emptied, so that a weight is not held twice.
        kv_cache: [layers, 2, blocks, block size, kv heads, row], keys first, as `KVPool` has it.
        vocab_size: Logits are computed for the ids below; rows of the embedding above are padding.
        max_model_len: Positions that can occur.
        quantise: Whether linear layers take eight bits for a weight (w8a16). The embedding stays as it is; logits of a
            tied one come from a quantised copy. Weights that are stored in groups stay so in any case.
    """

    def __init__(
        self,
        context: Context,
        spec: DecoderSpec,
        parameters: dict[str, torch.Tensor],
        *,
        kv_cache: torch.Tensor,
        vocab_size: int,
        max_model_len: int,
        quantise: bool = False,
    ) -> None:
        def vector(name: str) -> torch.Tensor | None:
            value = parameters.pop(name, None)
            return None if value is None else value.float().contiguous()

        def norm(name: str) -> torch.Tensor:
            return parameters.pop(name).float().contiguous()

        def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
            return pack_quantised(weight, bias, quads=context.quads) if quantise else pack_linear(weight, bias)

        def groups(name: str, rows: int | None = None, bias: torch.Tensor | None = None) -> PackedLinear:
            """The first rows of a weight in groups; all when None."""
            parts = (parameters.pop(f"{name}.{part}", None) for part in ("qweight", "scales", "minima"))
            quants, scales, minima = (None if part is None else part[:rows] for part in parts)
            assert quants is not None
            assert scales is not None
            return pack_groups(quants, scales, minima, bias)

        def linear(name: str) -> PackedLinear:
            bias = parameters.pop(f"{name}.bias", None)
            if f"{name}.qweight" in parameters:
                return groups(name, bias=bias)
            return pack(parameters.pop(f"{name}.weight"), bias)

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
        head_name, embedding_name = (
            ("head.qweight", "embedding.qweight") if "head.qweight" in parameters else ("head", "embedding")
        )
        embedding: torch.Tensor | PackedLinear | None = None
        if parameters[head_name] is parameters.get(embedding_name) and not quantise:
            for name in [name for name in parameters if name.startswith("embedding")]:
                del parameters[name]  # its rows are the head's
        elif "embedding.qweight" in parameters:
            embedding = groups("embedding")
        else:
            embedding = parameters.pop("embedding")
        head = groups("head", vocab_size) if "head.qweight" in parameters else pack(parameters.pop("head")[:vocab_size])
        table = RotaryTable(
            inverse_frequencies(spec.rope, spec.head_dim),
            attention_factor=spec.rope.attention_factor,
            length=max_model_len,
            dtype=torch.float32,
            device=kv_cache.device,
        )
        self._step = DecoderStep(
            context,
            layers,
            norm=norm("norm"),
            head=head,
            embedding=embedding,
            cos=table.cos,
            sin=table.sin,
            kv_cache=kv_cache,
            num_heads=spec.num_heads,
            eps=spec.rms_norm_eps,
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: PagedBatch,
        logit_rows: torch.Tensor,
    ) -> torch.Tensor:
        """Runs one step and writes its KV, as `Decoder.forward` does.

        Returns:
            [rows, vocab_size], float32.
        """
        return self._step(token_ids, positions, slots, batch, logit_rows)
