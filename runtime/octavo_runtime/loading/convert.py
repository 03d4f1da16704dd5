"""GGUF file to a Hugging Face directory: configuration, tokenizer and safetensors weights. Imports no torch.

Tensors are dequantised, or kept as they are, and written one at a time, so that the memory needed is that of the largest. The directory
appears under its name only when it is whole.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from gguf import GGUFReader, dequantize

from octavo_runtime.errors import BadFlags, BadWeights, ModelNotFound, StartError, UnsupportedModel, readable
from octavo_runtime.loading.checkpoint import DTYPE_BYTES, TensorEntry
from octavo_runtime.loading.gguf_groups import FOUR_BITS, Stored, stored_as_they_are
from octavo_runtime.loading.gguf_tokenizer import tokenizer_files
from octavo_runtime.loading.spec import QUANTIZATION_CONFIG, decoder_spec
from octavo_runtime.loading.weight_map import weight_map

__all__ = ["convert_gguf"]

# GGUF's name of the architecture to the Hugging Face class and model_type
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SAFETENSORS = {"bfloat16": "BF16", "float32": "F32"}
_ROPE_FREQS = "rope_freqs.weight"


def convert_gguf(
    source: Path,
    target: Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    keep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Converts `source` and publishes the result as the directory `target`.

    Args:
        source: A GGUF file of a Llama, Qwen2 or Qwen3 model.
        target: Directory to make; it must not exist yet, or be empty.
        dtype: Of the weights written.
        keep: Write them as they are stored instead (w4a16): quantised ones in groups, floats in their own type.
        progress: Called with bytes written and bytes in all.

    Raises:
        ModelNotFound: There is no such file, or it cannot be read.
        BadFlags: The target exists and is not empty, or cannot be written.
        UnsupportedModel: An architecture, tokenizer or quantisation that cannot be converted, or kept.
        BadWeights: The file is damaged, or a tensor is missing or not finite.
    """
    with _writing(target):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BadFlags(
                f"{target} exists already", hint="Name a directory that does not exist yet, or remove it first."
            )
    reader = _open(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {_name(tensor.name): tensor for tensor in reader.tensors if tensor.name != _ROPE_FREQS}
    config = _config(fields, {tensor.name: tensor for tensor in reader.tensors}, dtype)
    if keep:
        config |= {"torch_dtype": "float32", "quantization_config": QUANTIZATION_CONFIG}
    spec = decoder_spec(config, source=str(source))
    shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in tensors.items()}
    if keep and not any(tensor.tensor_type in FOUR_BITS for tensor in tensors.values()):
        raise UnsupportedModel(
            f"{source} has no tensor in Q4_0 or Q4_1, so there are no groups of four bits to keep",
            hint="Leave --quantization out, which turns all weights into floating point.",
        )
    tokenizer, tokenizer_config = tokenizer_files(fields)
    heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads} if fields["general.architecture"] == "llama" else {}

    def parts(name: str) -> dict[str, Stored]:
        """What is written of a tensor."""
        tensor = tensors[name]
        try:
            stored = (
                stored_as_they_are(tensor, name, shapes[name]) if keep else {name: _floats(tensor, shapes[name], dtype)}
            )
        except StartError as error:
            raise type(error)(f"{source}: {error}", hint=error.hint) from error
        count = next((heads[part] for part in heads if part in name), None)
        return (
            stored if count is None else {key: (kind, _halves(value, count)) for key, (kind, value) in stored.items()}
        )

    if keep:
        entries = {key: (kind, value.shape) for name in tensors for key, (kind, value) in parts(name).items()}
    else:
        entries = {name: (_SAFETENSORS[dtype], shape) for name, shape in shapes.items()}
    weight_map(spec, {name: TensorEntry(source, *entry, offset=0) for name, entry in entries.items()})

    def fill(directory: Path) -> None:
        for file, content in (
            ("config.json", config),
            ("generation_config.json", _generation_config(fields)),
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", tokenizer_config),
        ):
            (directory / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        with (directory / "model.safetensors").open("wb") as weights:
            values = (value for name in tensors for _, value in parts(name).values())
            _write_safetensors(weights, entries, values, progress or (lambda _done, _total: None))

    with _writing(target):
        _publish(target, fill)


@readable(ModelNotFound)
def _open(source: Path) -> GGUFReader:
    if not source.is_file():
        missing = f"{source} is a directory" if source.is_dir() else f"there is no file {source}"
        raise ModelNotFound(missing, hint="Name a GGUF file.")
    try:
        return GGUFReader(source)
    except (ValueError, IndexError, KeyError) as error:
        raise BadWeights(f"{source} is damaged or no GGUF file: {error}", hint="Download it again.") from error


def _name(name: str) -> str:
    """GGUF's name of a tensor to the Hugging Face one; a name that is not known stays, for the weight map to refuse."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match name.split("."):
        case ["blk", number, part, kind] if part in _LAYER_NAMES:
            return f"model.layers.{number}.{_LAYER_NAMES[part]}.{kind}"
    return name


def _config(fields: dict[str, Any], tensors: dict[str, Any], dtype: str) -> dict[str, Any]:
    """config.json of the file's metadata."""
    gguf = fields.get("general.architecture", "")
    if gguf not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"general.architecture is {gguf!r}; {', '.join(_ARCHITECTURES)} can be converted",
        )
    architecture, model_type = _ARCHITECTURES[gguf]

    def field(name: str, default: Any = None) -> Any:
        value = fields.get(f"{gguf}.{name}", default)
        if value is None:
            raise BadWeights(f"the metadata field {gguf}.{name} is missing")
        return value

    if field("expert_count", 0):
        raise UnsupportedModel(f"{gguf}.expert_count: mixtures of experts are not supported")
    num_heads = field("attention.head_count")
    head_dim = field("attention.key_length", field("embedding_length") // num_heads)
    if field("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{gguf}.rope.dimension_count: rotating part of a head is not supported")
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": field("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": round(field("attention.layer_norm_rms_epsilon"), 12),  # it was a float32
        "rope_theta": field("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(fields, gguf, tensors, head_dim),
        "vocab_size": int(tensors["token_embd.weight"].shape[1]) if "token_embd.weight" in tensors else 0,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": dtype,
        **_special_ids(fields),
    }
    if gguf == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    return config


def _rope_scaling(fields: dict[str, Any], gguf: str, tensors: dict[str, Any], head_dim: int) -> dict[str, Any] | None:
    kind = fields.get(f"{gguf}.rope.scaling.type", "none")
    factor = fields.get(f"{gguf}.rope.scaling.factor")
    if _ROPE_FREQS in tensors:
        return _llama3_scaling(fields, gguf, np.asarray(tensors[_ROPE_FREQS].data), head_dim)
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = fields.get(f"{gguf}.rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(f"{gguf}.rope.scaling.type is {kind!r}; none, linear and yarn can be converted")


def _llama3_scaling(fields: dict[str, Any], gguf: str, divisors: np.ndarray, head_dim: int) -> dict[str, Any]:
    """Llama 3.1 and later: GGUF holds what each frequency is divided by, the configuration the rule that gave it."""
    factor, low, high, original = float(divisors.max()), 1.0, 4.0, 8192
    theta = fields.get(f"{gguf}.rope.freq_base", 10_000.0)
    turns = original / (2 * math.pi) / theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(1 / (blend + (1 - blend) / factor), divisors, rtol=1e-3):
        raise UnsupportedModel(f"{_ROPE_FREQS} does not follow Llama 3's rule, so no configuration describes it")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, Any]:
    """Special tokens by the names of config.json; the end of a turn ends a sequence as well."""
    names = (("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id"), ("pad_token_id", "padding_token_id"))
    ids = {name: fields[f"tokenizer.ggml.{key}"] for name, key in names if f"tokenizer.ggml.{key}" in fields}
    end_of_turn = fields.get("tokenizer.ggml.eot_token_id")
    if end_of_turn is not None and end_of_turn != ids.get("eos_token_id"):
        ids["eos_token_id"] = [*([ids["eos_token_id"]] if "eos_token_id" in ids else []), end_of_turn]
    return ids


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"_from_model_config": True, **_special_ids(fields)}


def _halves(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from GGUF's pairs (rotated: 0 with 1, 2 with 3 …) to halves (0 with d/2, 1 with d/2+1 …)."""
    pairs = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return pairs.swapaxes(1, 2).reshape(value.shape)


def _floats(tensor: Any, shape: tuple[int, ...], dtype: str) -> Stored:
    """A tensor's numbers, dequantised."""
    try:
        value = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"{tensor.name} is quantised as {tensor.tensor_type.name}, which cannot be read"
        ) from error
    if not np.isfinite(value).all():
        raise BadWeights(f"{tensor.name} has values that are not finite")
    return _SAFETENSORS[dtype], _to_bfloat16(value) if dtype == "bfloat16" else value.astype("<f4", copy=False)


def _write_safetensors(
    file: BinaryIO,
    entries: dict[str, tuple[str, tuple[int, ...]]],
    values: Iterable[np.ndarray],
    progress: Callable[[int, int], None],
) -> None:
    """Writes the header, then one tensor after the other: safetensors' own writer wants them all at once."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    done = 0
    for value in values:
        done += file.write(value.tobytes())
        progress(done, end)


def _to_bfloat16(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16's bits, rounded to nearest even; the values are finite."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """What the file system says while the target is written."""
    try:
        yield
    except OSError as error:
        raise BadFlags(
            f"{target} cannot be written: {error.strerror}",
            hint="Name a directory that you may write to, on a disk that has room.",
        ) from error


def _publish(target: Path, fill: Callable[[Path], None]) -> None:
    """Fills a directory beside the target and renames it, so that nobody ever sees a part of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent))
    try:
        fill(partial)
        for file in partial.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        partial.chmod(0o755)  # mkdtemp made it for its owner alone
        partial.rename(target)  # also onto an empty directory
    except BaseException:
        shutil.rmtree(partial)
        raise
