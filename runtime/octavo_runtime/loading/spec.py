"""What a model directory's config.json says, as one description of a decoder.

Llama, Mistral, Qwen2, Qwen3 and their like are one network: RMSNorm, rotary grouped-query attention, gated SiLU
MLP. What tells them apart is data: biases, norms on q and k, rotary scaling, tied embeddings. `read_spec` turns the
Hugging Face configuration into that data and refuses, by the field's name, whatever would change the answer and is
not in the description. Imports no torch: `octavo plan` runs on this.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from octavo_runtime.errors import ModelNotFound, StartError, UnsupportedModel, readable

__all__ = [
    "QUANTIZATION_CONFIG",
    "DecoderSpec",
    "RopeKind",
    "RopeSpec",
    "decoder_spec",
    "read_json",
    "read_spec",
    "token_ids",
]

RopeKind = Literal["default", "linear", "llama3", "yarn"]

QUANTIZATION_CONFIG = {"quant_method": "octavo", "format": "w4a16", "group_size": 32}
"""What config.json says of weights in groups (loading/weight_map.py has their form)."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding: base and scaling.

    Attributes:
        kind: How frequencies are stretched beyond the original length.
        theta: Base of the wavelengths.
        factor: Stretch; 1 for `default`.
        original_max_position: Length of the pretraining, in tokens (llama3, yarn).
        low_freq_factor: Wavelengths above original / low are stretched whole (llama3).
        high_freq_factor: Wavelengths below original / high stay (llama3).
        beta_fast: Dimensions that turn more often than this over the original length stay (yarn).
        beta_slow: Dimensions that turn less often are stretched whole (yarn).
        truncate: Whether the bounds of the ramp are rounded to whole dimensions (yarn).
        attention_factor: Multiplies cos and sin (yarn).
    """

    kind: RopeKind = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer.

    Attributes:
        architecture: The Hugging Face class, such as LlamaForCausalLM.
        num_layers: Decoder layers.
        hidden_size: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; num_heads is a multiple.
        head_dim: Width of a head.
        intermediate_size: Width of the MLP.
        vocab_size: Rows of the embedding, padding included.
        max_position: Longest sequence, in tokens, with rotary scaling counted in.
        max_position_field: The field that set max_position, for messages.
        rms_norm_eps: Added to the mean square.
        rope: Rotary embedding.
        qkv_bias: Whether q, k and v projections have biases.
        output_bias: Whether the attention's output projection has one.
        mlp_bias: Whether the MLP's projections have biases.
        qk_norm: Whether q and k are RMS-normalised per head before rotation.
        tie_word_embeddings: Whether the configuration says that logits use the embedding's weight; None when it says
            nothing. What the checkpoint holds decides.
        dtype: What the configuration says the weights are stored in; None when it does not.
        eos_token_ids: End-of-sequence tokens that config.json names.
        quantization: w4a16 where the weights are stored in groups, as `octavo convert --quantization keep` leaves
            them; None otherwise.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    max_position_field: str
    rms_norm_eps: float
    rope: RopeSpec
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool | None
    dtype: str | None
    eos_token_ids: tuple[int, ...]
    quantization: Literal["w4a16"] | None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that one token keeps in the KV cache: keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family's class fixes, where its configuration has no field for it."""

    model_type: str
    qkv_bias: bool | None  # None: the field attention_bias decides, for the output projection too
    qk_norm: bool = False


_FAMILIES = {
    "LlamaForCausalLM": _Family("llama", qkv_bias=None),
    "MistralForCausalLM": _Family("mistral", qkv_bias=False),
    "Qwen2ForCausalLM": _Family("qwen2", qkv_bias=True),
    "Qwen3ForCausalLM": _Family("qwen3", qkv_bias=None, qk_norm=True),
}


def read_json(path: Path, damaged: type[StartError] = UnsupportedModel) -> dict[str, Any]:
    """Reads a JSON object of a model directory.

    Args:
        path: The file.
        damaged: What to raise when it is no JSON object.

    Raises:
        ModelNotFound: There is no such file.
        OSError: It cannot be read.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        where = f"the directory {path.parent} does not exist" if not path.parent.is_dir() else f"{path} does not exist"
        raise ModelNotFound(
            where,
            hint="MODEL is a directory with config.json, safetensors weights and tokenizer.json; "
            "`octavo convert FILE.gguf OUT_DIR` makes one from a GGUF file.",
        ) from error
    except NotADirectoryError as error:
        raise ModelNotFound(
            f"{path.parent} is a file, not a model directory",
            hint="For a GGUF file run `octavo convert FILE.gguf OUT_DIR` first and name OUT_DIR.",
        ) from error
    except ValueError as error:
        raise damaged(f"{path} cannot be read as JSON: {error}", hint="Download the file again.") from error
    if not isinstance(value, dict):
        raise damaged(f"{path} holds a JSON {type(value).__name__}, not an object", hint="Download the file again.")
    return value


@readable(ModelNotFound)
def read_spec(directory: Path) -> DecoderSpec:
    """Reads config.json.

    Raises:
        ModelNotFound: No such directory, or no config.json in it that can be read.
        UnsupportedModel: It describes a network, or a feature, that Octavo does not run; the field is named.
    """
    path = directory / "config.json"
    return decoder_spec(read_json(path), source=str(path))


def decoder_spec(config: dict[str, Any], source: str = "config.json") -> DecoderSpec:
    """Describes the decoder of a Hugging Face configuration.

    Args:
        config: config.json as a dict, of transformers 4 or 5.
        source: What messages call it.

    Raises:
        UnsupportedModel: As `read_spec`.
    """
    fields = _Fields(config, source)
    architecture, family = _family(fields)
    if fields.text("hidden_act", "silu") not in {"silu", "swish"}:
        fields.refuse("hidden_act", f"{config['hidden_act']!r} is not supported, only 'silu'")

    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        fields.refuse("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads ({num_heads})")
    hidden_size = fields.count("hidden_size")
    if config.get("head_dim") is None and hidden_size % num_heads:
        fields.refuse("hidden_size", f"{hidden_size} is no multiple of num_attention_heads ({num_heads})")
    head_dim = fields.count("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        fields.refuse("head_dim", f"{head_dim} is odd, so it cannot be rotated in pairs")

    max_position = fields.count("max_position_embeddings")
    max_position_field = "max_position_embeddings"
    rope = _rope_spec(fields, max_position)
    if rope.kind == "yarn":
        max_position, max_position_field = int(rope.original_max_position * rope.factor), "rope_scaling"
    elif rope.kind == "linear":
        max_position, max_position_field = int(max_position * rope.factor), "rope_scaling"
    window = _sliding_window(fields, family)
    if window is not None and window < max_position:
        # Up to the window's length, attention within the window is full attention.
        max_position, max_position_field = window, "sliding_window"

    attention_bias = fields.flag("attention_bias", default=False)
    return DecoderSpec(
        architecture=architecture,
        num_layers=fields.count("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.count("intermediate_size"),
        vocab_size=fields.count("vocab_size"),
        max_position=max_position,
        max_position_field=max_position_field,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=fields.flag("mlp_bias", default=False) if family.model_type == "llama" else False,
        qk_norm=family.qk_norm,
        tie_word_embeddings=config.get("tie_word_embeddings"),
        dtype=config.get("dtype") or config.get("torch_dtype"),
        eos_token_ids=token_ids(config.get("eos_token_id")),
        quantization=_quantization(fields),
    )


def _quantization(fields: _Fields) -> Literal["w4a16"] | None:
    """What `quantization_config` says that the weights are stored as; only our own converter's form is known."""
    stored = fields.config.get("quantization_config")
    if not stored:
        return None
    if stored != QUANTIZATION_CONFIG:
        method = stored.get("quant_method", "unknown") if isinstance(stored, dict) else stored
        known = QUANTIZATION_CONFIG["quant_method"]
        fields.refuse(
            "quantization_config",
            f"this form of {known}'s groups is of another version: convert the model again"
            if method == known
            else f"quantised weights ({method}) are not supported yet",
        )
    return "w4a16"


def token_ids(value: Any) -> tuple[int, ...]:
    """The eos_token_id of a configuration: a number, a list of them, or nothing."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


class _Fields:
    """Typed reading of a configuration, with errors that name the field."""

    def __init__(self, config: dict[str, Any], source: str) -> None:
        self.config = config
        self.source = source

    def refuse(self, field: str, why: str) -> NoReturn:
        raise UnsupportedModel(f"{self.source}: {field}: {why}")

    def number(self, field: str, default: float | None = None) -> float:
        value = self.config.get(field)
        if value is None:
            value = default
        if value is None:
            self.refuse(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, f"must be a number, not {value!r}")
        return float(value)

    def count(self, field: str, default: int | None = None) -> int:
        value = self.number(field, default)
        if value < 1 or value != int(value):
            self.refuse(field, f"must be a whole number of at least 1, not {value!r}")
        return int(value)

    def flag(self, field: str, *, default: bool) -> bool:
        value = self.config.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(field, f"must be true or false, not {value!r}")
        return bool(value)

    def text(self, field: str, default: str) -> str:
        value = self.config.get(field)
        return default if value is None else str(value)


def _family(fields: _Fields) -> tuple[str, _Family]:
    """The family by `architectures`, or by `model_type` where there is none."""
    names = fields.config.get("architectures") or []
    if not names:
        model_type = fields.config.get("model_type")
        names = [name for name, family in _FAMILIES.items() if family.model_type == model_type]
        if not names:
            fields.refuse("model_type", f"{model_type!r} is not supported; supported are {', '.join(_FAMILIES)}")
    family = _FAMILIES.get(names[0])
    if family is None:
        fields.refuse("architectures", f"{names[0]} is not supported; supported are {', '.join(_FAMILIES)}")
    return names[0], family


def _sliding_window(fields: _Fields, family: _Family) -> int | None:
    """Tokens that a layer sees, where any layer sees less than all."""
    if family.model_type.startswith("qwen") and not fields.flag("use_sliding_window", default=False):
        return None
    kinds = set(fields.config.get("layer_types") or [])
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        fields.refuse("layer_types", f"{sorted(unknown)} are not supported")
    if kinds == {"full_attention"} or fields.config.get("sliding_window") is None:
        return None
    return fields.count("sliding_window")


def _rope_spec(fields: _Fields, max_position: int) -> RopeSpec:
    """One form of what configurations spell in several.

    transformers 4 has `rope_theta` and `rope_scaling` with `rope_type` or, older, `type`; transformers 5 has both in
    `rope_parameters`.
    """
    config = fields.config
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    inner = _Fields(scaling, f"{fields.source}: {name}")
    theta = inner.number("rope_theta", fields.number("rope_theta", 10_000.0))
    for where in (inner, fields):
        if where.number("partial_rotary_factor", 1.0) != 1.0:
            where.refuse("partial_rotary_factor", "only 1.0, rotating whole heads, is supported")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind not in {"linear", "llama3", "yarn"}:
        inner.refuse("rope_type", f"{kind!r} is not supported; supported are default, linear, llama3 and yarn")

    # A field beside the scaling wins over one inside, which some older files fill with the stretched length.
    original = fields.count(
        "original_max_position_embeddings", inner.count("original_max_position_embeddings", max_position)
    )
    factor = inner.number("factor", max_position / original if kind == "yarn" else None)
    if factor < 1:
        inner.refuse("factor", f"must be at least 1, not {factor}")
    if kind == "linear":
        return RopeSpec(kind="linear", theta=theta, factor=factor)
    if kind == "llama3":
        low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
        if not 0 < low < high:
            inner.refuse("high_freq_factor", f"must be greater than low_freq_factor ({low}), not {high}")
        return RopeSpec(
            kind="llama3",
            theta=theta,
            factor=factor,
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    return RopeSpec(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position=original,
        beta_fast=inner.number("beta_fast", 0) or 32.0,
        beta_slow=inner.number("beta_slow", 0) or 1.0,
        truncate=inner.flag("truncate", default=True),
        attention_factor=_yarn_attention_factor(inner, factor),
    )


def _yarn_attention_factor(inner: _Fields, factor: float) -> float:
    """YaRN's softmax temperature as a factor on cos and sin: 0.1 ln(factor) + 1 (Peng et al. 2023, section 3.4)."""
    if inner.config.get("attention_factor") is not None:
        return inner.number("attention_factor")

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    mscale_num, mscale_den = inner.number("mscale", 0), inner.number("mscale_all_dim", 0)
    if mscale_num and mscale_den:
        return mscale(mscale_num) / mscale(mscale_den)
    return mscale(1.0)
