"""Which checkpoint tensor belongs where in a decoder: the weight map, as data. Imports no torch.

Our parameters fuse what is used together, so that a layer runs four matrix products instead of seven:

    layers.N.qkv.weight     = rows of [q_proj; k_proj; v_proj]
    layers.N.gate_up.weight = rows of [gate_proj; up_proj]

All others are the checkpoint's own tensors under shorter names.

A weight [out, in] may be stored in groups of 32 inputs instead, in four bits or in eight; ours has the same parts:

    X.qweight   U8 [out, in / 2]: in each 16 bytes the inputs 0 to 15 of a group in the lower four bits, 16 to 31 in the
                upper ones; or I8 [out, in]
    X.scales    F16 [out, in / 32]
    X.minima    F16 [out, in / 32], with four bits: a weight is scale * q + minimum
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import DTYPE_BYTES, TensorEntry
from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["GROUP", "Slot", "WeightMap", "weight_map"]

logger = logging.getLogger(__name__)

GROUP = 32
"""Inputs that share a scale, in weights that are stored in groups."""

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Older Llama checkpoints carry the rotary frequencies, which follow from the configuration.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one checkpoint tensor.

    Attributes:
        source: Its name in the checkpoint.
        target: The parameter it is a part of.
        first_row: Where its rows begin in the parameter.
        shape: The shape that it must have.
        dtype: The type that it must have, as the format names it; None: floating point.
    """

    source: str
    target: str
    first_row: int
    shape: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class WeightMap:
    """All slots of a checkpoint.

    Attributes:
        slots: One for each tensor to read.
        shapes: Parameter name to shape.
        fixed: Type of each parameter that is a part of a weight in groups; the others take any floating type.
        tied: Whether the logits use the embedding's weight.
    """

    slots: tuple[Slot, ...]
    shapes: dict[str, tuple[int, ...]]
    fixed: dict[str, str]
    tied: bool

    @property
    def num_elements(self) -> int:
        """Numbers in all parameters of a floating type."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if name not in self.fixed)

    @property
    def group_bytes(self) -> int:
        """Bytes of all weights in groups."""
        return sum(math.prod(self.shapes[name]) * DTYPE_BYTES[dtype] for name, dtype in self.fixed.items())

    def stored_dtypes(self, checkpoint: dict[str, TensorEntry]) -> set[str]:
        """The floating types in the checkpoint, by safetensors' names."""
        return {checkpoint[slot.source].dtype for slot in self.slots if slot.dtype is None}


def weight_map(spec: DecoderSpec, checkpoint: dict[str, TensorEntry]) -> WeightMap:
    """Matches a checkpoint's tensors with a decoder's parameters.

    Whether the embedding is tied is decided by what the checkpoint holds: a configuration that contradicts it has
    more than once made a model answer gibberish.

    Raises:
        BadWeights: A tensor is missing, of the wrong shape, or has no place in this decoder.
    """
    tied = _HEAD not in checkpoint and _part(_HEAD, "qweight") not in checkpoint
    if spec.tie_word_embeddings is not None and spec.tie_word_embeddings != tied:
        logger.warning(
            "config.json says tie_word_embeddings=%s, but the checkpoint %s %s: going by the checkpoint",
            str(spec.tie_word_embeddings).lower(),
            "lacks" if tied else "has",
            _HEAD,
        )
    slots = tuple(part for slot in _slots(spec, tied=tied) for part in _stored_as(slot, checkpoint))
    for slot in slots:
        entry = checkpoint.get(slot.source)
        if entry is None:
            raise BadWeights(
                f"{slot.source} is missing from the checkpoint",
                hint=f"config.json describes {spec.architecture} with {spec.num_layers} layers: "
                "are configuration and weights of the same model?",
            )
        if entry.shape != slot.shape:
            raise BadWeights(
                f"{entry.file}: {slot.source} has the shape {list(entry.shape)}, "
                f"but config.json makes it {list(slot.shape)}"
            )
        if slot.dtype is not None and entry.dtype != slot.dtype:
            raise BadWeights(
                f"{entry.file}: {slot.source} is stored as {entry.dtype}, and weights in groups have it in {slot.dtype}"
            )
        if slot.dtype is None and entry.dtype not in {"F32", "F16", "BF16", "F64"}:
            raise BadWeights(
                f"{entry.file}: {slot.source} is stored as {entry.dtype}; Octavo reads F32, F16 and BF16 weights"
            )
    known = {slot.source for slot in slots}
    extra = sorted(name for name in checkpoint if name not in known and not name.endswith(_IGNORED_SUFFIX))
    if extra:
        raise BadWeights(
            f"{checkpoint[extra[0]].file}: {', '.join(extra[:3])}{' …' if len(extra) > 3 else ''} "
            f"({len(extra)} in all) have no place in {spec.architecture}",
            hint="The model has parts that config.json does not describe, so its answers would be wrong.",
        )
    fixed = {slot.target: slot.dtype for slot in slots if slot.dtype is not None}
    if bool(fixed) != (spec.quantization is not None):
        raise BadWeights(
            f"the checkpoint {'has' if fixed else 'lacks'} weights in groups, but config.json "
            f"{'lacks' if fixed else 'has'} their quantization_config",
            hint="Are configuration and weights of the same model?",
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        rows = slot.first_row + slot.shape[0]
        shapes[slot.target] = (max(rows, shapes.get(slot.target, (0,))[0]), *slot.shape[1:])
    _check_fused(slots)
    return WeightMap(slots, shapes, fixed, tied)


def _part(weight: str, part: str) -> str:
    """Name of a part of a weight in groups; also of our parameters, whose embedding and head have no `.weight`."""
    return f"{weight.removesuffix('.weight')}.{part}"


def _stored_as(slot: Slot, checkpoint: dict[str, TensorEntry]) -> tuple[Slot, ...]:
    """The slot itself, or those of the parts of a weight in groups."""
    quants = checkpoint.get(_part(slot.source, "qweight"))
    if slot.source in checkpoint or quants is None:
        return (slot,)
    out, columns = slot.shape
    four_bits = quants.dtype == "U8"
    parts = [("qweight", "U8" if four_bits else "I8", columns // 2 if four_bits else columns)]
    parts += [(name, "F16", columns // GROUP) for name in (("scales", "minima") if four_bits else ("scales",))]
    return tuple(
        Slot(_part(slot.source, name), _part(slot.target, name), slot.first_row, (out, width), dtype)
        for name, dtype, width in parts
    )


def _check_fused(slots: tuple[Slot, ...]) -> None:
    """Checks that what becomes one weight is stored in one way."""
    kinds: dict[str, tuple[str | None, str]] = {}
    for slot in slots:
        if slot.target.endswith((".weight", ".qweight")):
            weight = _part(slot.target.removesuffix(".qweight"), "weight")
            dtype, source = kinds.setdefault(weight, (slot.dtype, slot.source))
            if dtype != slot.dtype:
                raise BadWeights(
                    f"{source} and {slot.source} are one weight for the kernels, and stored in different ways "
                    f"({dtype or 'floating point'} and {slot.dtype or 'floating point'})"
                )


def _slots(spec: DecoderSpec, *, tied: bool) -> Iterator[Slot]:
    hidden, mlp = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield Slot(_EMBEDDING, "embedding", 0, (spec.vocab_size, hidden))
    for number in range(spec.num_layers):
        layer = f"model.layers.{number}"
        # (checkpoint name, our name, first row, rows, columns, has bias)
        for name, target, first, rows, columns, bias in (
            ("self_attn.q_proj", "qkv", 0, q_rows, hidden, spec.qkv_bias),
            ("self_attn.k_proj", "qkv", q_rows, kv_rows, hidden, spec.qkv_bias),
            ("self_attn.v_proj", "qkv", q_rows + kv_rows, kv_rows, hidden, spec.qkv_bias),
            ("self_attn.o_proj", "output", 0, hidden, q_rows, spec.output_bias),
            ("mlp.gate_proj", "gate_up", 0, mlp, hidden, spec.mlp_bias),
            ("mlp.up_proj", "gate_up", mlp, mlp, hidden, spec.mlp_bias),
            ("mlp.down_proj", "down", 0, hidden, mlp, spec.mlp_bias),
        ):
            yield Slot(f"{layer}.{name}.weight", f"layers.{number}.{target}.weight", first, (rows, columns))
            if bias:
                yield Slot(f"{layer}.{name}.bias", f"layers.{number}.{target}.bias", first, (rows,))
        yield Slot(f"{layer}.input_layernorm.weight", f"layers.{number}.attention_norm", 0, (hidden,))
        yield Slot(f"{layer}.post_attention_layernorm.weight", f"layers.{number}.mlp_norm", 0, (hidden,))
        if spec.qk_norm:
            yield Slot(f"{layer}.self_attn.q_norm.weight", f"layers.{number}.q_norm", 0, (spec.head_dim,))
            yield Slot(f"{layer}.self_attn.k_norm.weight", f"layers.{number}.k_norm", 0, (spec.head_dim,))
    yield Slot("model.norm.weight", "norm", 0, (hidden,))
    if not tied:
        yield Slot(_HEAD, "head", 0, (spec.vocab_size, hidden))
