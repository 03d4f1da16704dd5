"""Which checkpoint tensor belongs where in a decoder: the weight map, as data. Imports no torch.

Our parameters fuse what is used together, so that a layer runs four matrix products instead of seven:

    layers.N.qkv.weight     = rows of [q_proj; k_proj; v_proj]
    layers.N.gate_up.weight = rows of [gate_proj; up_proj]

All others are the checkpoint's own tensors under shorter names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import TensorEntry
from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["Slot", "WeightMap", "weight_map"]

logger = logging.getLogger(__name__)

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
    """

    source: str
    target: str
    first_row: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightMap:
    """All slots of a checkpoint.

    Attributes:
        slots: One for each tensor to read.
        shapes: Parameter name to shape.
        tied: Whether the logits use the embedding's weight.
    """

    slots: tuple[Slot, ...]
    shapes: dict[str, tuple[int, ...]]
    tied: bool

    @property
    def num_elements(self) -> int:
        """Numbers in all parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def weight_map(spec: DecoderSpec, checkpoint: dict[str, TensorEntry]) -> WeightMap:
    """Matches a checkpoint's tensors with a decoder's parameters.

    Whether the embedding is tied is decided by what the checkpoint holds: a configuration that contradicts it has
    more than once made a model answer gibberish.

    Raises:
        BadWeights: A tensor is missing, of the wrong shape, or has no place in this decoder.
    """
    tied = _HEAD not in checkpoint
    if spec.tie_word_embeddings is not None and spec.tie_word_embeddings != tied:
        logger.warning(
            "config.json says tie_word_embeddings=%s, but the checkpoint %s %s: going by the checkpoint",
            str(spec.tie_word_embeddings).lower(),
            "lacks" if tied else "has",
            _HEAD,
        )
    slots = tuple(_slots(spec, tied=tied))
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
        if entry.dtype not in {"F32", "F16", "BF16", "F64"}:
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
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        rows = slot.first_row + slot.shape[0]
        shapes[slot.target] = (max(rows, shapes.get(slot.target, (0,))[0]), *slot.shape[1:])
    return WeightMap(slots, shapes, tied)


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
