from __future__ import annotations

import json
import resource
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from octavo_runtime.cli import run
from octavo_runtime.domain import EngineConfig
from octavo_runtime.errors import BadFlags, BadWeights, ModelNotFound, UnsupportedModel
from octavo_runtime.loading.checkpoint import DTYPE_BYTES, read_header
from octavo_runtime.loading.convert import convert_gguf
from octavo_runtime.loading.plan import plan_model
from octavo_runtime.loading.spec import read_spec
from octavo_runtime.loading.token_ids import read_token_ids

HIDDEN, HEADS, KV_HEADS, DIM, MLP, LAYERS = 32, 4, 2, 8, 64, 2
# The 256 letters of byte-level BPE, two merges and three tokens that are no text.
LETTERS = sorted(ByteLevel.alphabet())
TOKENS = [*LETTERS, "he", "hel", "<s>", "</s>", "<|turn|>"]
KINDS = [1] * 258 + [3] * 3
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def pairs(value: np.ndarray, heads: int) -> np.ndarray:
    """How llama.cpp's converter reorders the rows of q and k of a Llama."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def tensors(arch: str) -> dict[str, np.ndarray]:
    """By Hugging Face names."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(TOKENS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (len(TOKENS), HIDDEN),
    }
    rows = {"attn_q": HEADS * DIM, "attn_k": KV_HEADS * DIM, "attn_v": KV_HEADS * DIM, "attn_output": HIDDEN}
    for layer in range(LAYERS):
        for part, name in HF_NAMES.items():
            shape: tuple[int, ...] = (HIDDEN,)
            if not part.endswith("norm"):
                out = rows.get(part, HIDDEN if part == "ffn_down" else MLP)
                shape = (out, {"attn_output": HEADS * DIM, "ffn_down": MLP}.get(part, HIDDEN))
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if arch == "qwen2" and part in {"attn_q", "attn_k", "attn_v"}:
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    arch: str = "llama",
    *,
    fields: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> dict[str, np.ndarray]:
    """Writes a model, its matrices as `kind`, or as `kinds` says by part; returns its tensors by Hugging Face names."""
    writer = gguf.GGUFWriter(path, arch)
    values: dict[str, Any] = {
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.block_count": LAYERS,
        f"{arch}.feed_forward_length": MLP,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": ["h e", "he l"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 259,
        "tokenizer.ggml.eot_token_id": 260,
        "tokenizer.chat_template": TEMPLATE,
    } | (fields or {})
    for name, value in values.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    truth = tensors(arch)
    to_gguf = {name: part for part, name in HF_NAMES.items()}
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stored: dict[str, np.ndarray] = {}
    for name, value in truth.items():
        base, suffix = name.rsplit(".", 1)
        if base in top:
            stored[f"{top[base]}.{suffix}"] = value
            continue
        _, _, layer, part = base.split(".", 3)
        if arch == "llama" and part.endswith(("q_proj", "k_proj")):
            value = pairs(value, HEADS if part.endswith("q_proj") else KV_HEADS)  # noqa: PLW2901 - the stored form
        stored[f"blk.{layer}.{to_gguf[part]}.{suffix}"] = value
    for name, value in (stored | (extra or {})).items():
        if name in drop:
            continue
        of_part = (kinds or {}).get(name.split(".")[-2], kind)
        if of_part is gguf.GGMLQuantizationType.F32 or value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quantize(value, of_part), raw_dtype=of_part)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return truth


def read(directory: Path) -> dict[str, np.ndarray]:
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118 - it is no dict


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_convert_gguf_float32(arch: str, tmp_path: Path) -> None:
    truth = write_gguf(tmp_path / "m.gguf", arch)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", dtype="float32")
    got = read(tmp_path / "out")
    assert got.keys() == truth.keys()
    for name, value in truth.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    spec = read_spec(tmp_path / "out")
    assert (spec.num_layers, spec.num_kv_heads, spec.rope.theta, spec.rms_norm_eps) == (2, 2, 5000.0, 1e-5)
    assert spec.qkv_bias is (arch == "qwen2")
    assert spec.tie_word_embeddings is False
    ids = read_token_ids(tmp_path / "out", spec)
    assert (ids.vocab_size, ids.eos) == (261, (259, 260))


def test_convert_gguf_bfloat16_rounds_to_nearest(tmp_path: Path) -> None:
    import torch

    truth = write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    for name, value in read(tmp_path / "out").items():
        expected = torch.from_numpy(truth[name]).bfloat16().float().numpy()
        np.testing.assert_array_equal(value, expected, err_msg=name)


def test_convert_gguf_quantised(tmp_path: Path) -> None:
    truth = write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", dtype="float32")
    got = read(tmp_path / "out")["model.layers.1.self_attn.q_proj.weight"]
    want = truth["model.layers.1.self_attn.q_proj.weight"]
    assert 0 < np.abs(got - want).max() < np.abs(want).max() / 100


def weights_of(directory: Path) -> dict[str, np.ndarray]:
    """By the names of a checkpoint in floats, with groups dequantised by the kernels' reference."""
    import torch

    from octavo_kernels.linear.reference import from_groups

    with safe_open(directory / "model.safetensors", framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    found = {}
    for name, value in stored.items():
        base, kind = name.rsplit(".", 1)
        if kind == "qweight":
            value = from_groups(value, stored[f"{base}.scales"], stored.get(f"{base}.minima"))  # noqa: PLW2901
            assert value.dtype == torch.float32
            found[f"{base}.weight"] = value.numpy()
        elif kind not in {"scales", "minima"}:
            found[name] = value.float().numpy()
    return found


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_convert_gguf_keep(kind: gguf.GGMLQuantizationType, arch: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", arch, kind=kind)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "floats", dtype="float32")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "kept", keep=True)
    truth, got = read(tmp_path / "floats"), weights_of(tmp_path / "kept")
    assert got.keys() == truth.keys()
    for name, value in truth.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert read_spec(tmp_path / "kept").quantization == "w4a16"
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("kept", "floats")]
    assert sizes[0] < sizes[1] / 4


def test_convert_gguf_keep_eight_bits_and_narrow_floats(tmp_path: Path) -> None:
    # What llama.cpp does with the largest weights of a file in four bits.
    kinds = {"token_embd": gguf.GGMLQuantizationType.Q8_0, "output": gguf.GGMLQuantizationType.F16}
    write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1, kinds=kinds)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "floats", dtype="float32")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "kept", keep=True)
    truth, got = read(tmp_path / "floats"), weights_of(tmp_path / "kept")
    for name, value in truth.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    header = read_header(tmp_path / "kept" / "model.safetensors")
    kept = {name: header[name].dtype for name in ("model.embed_tokens.qweight", "lm_head.weight", "model.norm.weight")}
    assert kept == {"model.embed_tokens.qweight": "I8", "lm_head.weight": "F16", "model.norm.weight": "F32"}


def test_convert_gguf_keep_is_planned_as_stored(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", keep=True)
    header = read_header(tmp_path / "out" / "model.safetensors")
    config = EngineConfig(str(tmp_path / "out"), device="cpu", kv_cache_memory=1 << 20)
    for asked in ("none", "w4a16"):
        plan = plan_model(tmp_path / "out", replace(config, quantization=asked))
        assert plan.quantization == "w4a16"
        assert plan.weights_bytes == sum(entry.num_elements * DTYPE_BYTES[entry.dtype] for entry in header.values())
    with pytest.raises(BadFlags, match="--quantization w8a16, but the model directory holds weights in w4a16"):
        plan_model(tmp_path / "out", replace(config, quantization="w8a16"))
    # No GPU kernel takes inputs that are no multiple of 64.
    with pytest.raises(UnsupportedModel, match="embedding is stored in groups of four bits and has 32 inputs"):
        plan_model(tmp_path / "out", replace(config, device="auto"), gpu_memory=1 << 30)


def test_convert_gguf_keep_without_its_mark(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", keep=True)
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": None}))
    with pytest.raises(BadWeights, match=r"has weights in groups, but config.json lacks their quantization_config"):
        plan_model(tmp_path / "out", EngineConfig(str(tmp_path / "out"), device="cpu"))


@pytest.mark.parametrize(
    ("kinds", "error", "message"),
    [
        (
            {"attn_k": "Q5_0"},
            UnsupportedModel,
            r"blk.0.attn_k.weight is quantised as Q5_0, and --quantization keep keeps",
        ),
        ({"attn_k": "Q8_0"}, BadWeights, "self_attn.k_proj.qweight are one weight for the kernels, .* different ways"),
        ({"attn_v": "F16"}, BadWeights, "self_attn.v_proj.weight are one weight for the kernels, .* different ways"),
    ],
)
def test_convert_gguf_keep_refused(kinds: dict[str, str], error: type[Exception], message: str, tmp_path: Path) -> None:
    types = {part: gguf.GGMLQuantizationType[name] for part, name in kinds.items()}
    write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_0, kinds=types)
    with pytest.raises(error, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out", keep=True)
    assert not (tmp_path / "out").exists()


def test_convert_gguf_keep_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(UnsupportedModel, match="has no tensor in Q4_0 or Q4_1"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out", keep=True)


def test_convert_keep_and_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "m.gguf", str(tmp_path / "out"), "--quantization", "keep", "--dtype", "float32"]) == 2
    assert "--dtype float32 with --quantization keep" in capsys.readouterr().err


def test_convert_gguf_tied(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", drop=("output.weight",))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert read_spec(tmp_path / "out").tie_word_embeddings is True


def test_convert_gguf_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    text = "hello 42  été 🦀\n<|turn|>x"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[:3] == ["hel", "l", "o"]
    assert "<|turn|>" in encoded.tokens
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (config["chat_template"], config["bos_token"], config["eos_token"]) == (TEMPLATE, "<s>", "</s>")


@pytest.mark.parametrize(("pre", "words"), [("smollm", ["Ġ", "1", "2", "3", "4"]), ("gpt-2", ["Ġ1234"])])
def test_convert_gguf_cuts_numbers_as_the_model_does(pre: str, words: list[str], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", fields={"tokenizer.ggml.pre": pre})
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(" 1234")] == words


@pytest.mark.parametrize(("pre", "words"), [("llama-bpe", ["123", "4", "Ġa"]), ("qwen2", ["1", "2", "3", "4", "Ġa"])])
def test_convert_gguf_regular_expressions(pre: str, words: list[str], tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", fields={"tokenizer.ggml.pre": pre})
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("1234 a")] == words
    # Llama 3 begins with its begin-of-text token even where the file does not say so.
    assert (tokenizer.encode("a").tokens[0] == "<s>") is (pre == "llama-bpe")


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_convert_gguf_llama3_rope(factor: float, tmp_path: Path) -> None:
    # What llama.cpp's converter writes for Llama 3.1: the divisor of each frequency.
    frequencies = 1 / 500_000.0 ** (np.arange(0, DIM, 2) / DIM)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    fields = {"llama.rope.freq_base": 500_000.0}
    write_gguf(tmp_path / "m.gguf", fields=fields, extra={"rope_freqs.weight": divisors})
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    rope = read_spec(tmp_path / "out").rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("llama3", factor, 8192)


def test_convert_gguf_rope_scaling(tmp_path: Path) -> None:
    fields = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    fields |= {"llama.rope.scaling.original_context_length": 32}
    write_gguf(tmp_path / "m.gguf", fields=fields)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    spec = read_spec(tmp_path / "out")
    assert (spec.rope.kind, spec.rope.factor, spec.rope.original_max_position, spec.max_position) == (
        "yarn",
        4,
        32,
        128,
    )


NAN = np.full((HIDDEN,), np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fields": {"tokenizer.ggml.model": "llama"}}, UnsupportedModel, r"tokenizer\.ggml\.model is 'llama'"),
        ({"fields": {"tokenizer.ggml.pre": "poro"}}, UnsupportedModel, r"tokenizer\.ggml\.pre is 'poro'; known are"),
        ({"fields": {"llama.expert_count": 8}}, UnsupportedModel, "mixtures of experts"),
        ({"fields": {"llama.rope.dimension_count": 4}}, UnsupportedModel, "rotating part of a head"),
        ({"fields": {"llama.rope.scaling.type": "longrope"}}, UnsupportedModel, "'longrope'"),
        ({"fields": {"llama.block_count": None}}, BadWeights, r"llama\.block_count is missing"),
        ({"extra": {"rope_freqs.weight": np.ones(4, np.float32) * 3}}, UnsupportedModel, "Llama 3's rule"),
        ({"drop": ("blk.1.ffn_up.weight",)}, BadWeights, r"layers\.1\.mlp\.up_proj\.weight is missing"),
        ({"extra": {"blk.0.attn_sinks.weight": NAN}}, BadWeights, r"blk\.0\.attn_sinks\.weight \(1 in all\) have no"),
        ({"extra": {"output_norm.weight": NAN}}, BadWeights, r"output_norm\.weight has values that are not finite"),
        ({"arch": "gemma"}, UnsupportedModel, r"general\.architecture is 'gemma'"),
    ],
)
def test_convert_gguf_refused(changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(error, match=message):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"], "nothing is left behind"


def test_convert_gguf_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not a model at all, only text", b"GGUF\x03\x00\x00\x00" + b"\xff" * 16])
def test_convert_gguf_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(BadWeights, match="damaged or no GGUF file"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_convert_gguf_truncated(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadWeights, match="damaged or no GGUF file"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_convert_gguf_target_exists(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").touch()
    with pytest.raises(BadFlags, match="out exists already"):
        convert_gguf(tmp_path / "m.gguf", target)
    (target / "precious").unlink()
    convert_gguf(tmp_path / "m.gguf", target)
    assert (target / "model.safetensors").is_file()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_convert_gguf_source_that_is_no_file(tmp_path: Path) -> None:
    for name, told in (("none", "there is no file"), (".", "is a directory"), ("n" * 300, "File name too long")):
        with pytest.raises(ModelNotFound, match=told):
            convert_gguf(tmp_path / name, tmp_path / "out")


def test_convert_gguf_target_that_cannot_be_written(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "file").touch()
    for target, told in (
        ("file/out", "File exists"),
        ("file/in/out", "Not a directory"),
        ("n" * 300, "File name too long"),
    ):
        with pytest.raises(BadFlags, match=f"{target} cannot be written: {told}"):
            convert_gguf(tmp_path / "m.gguf", tmp_path / target)


def test_convert_gguf_disk_full(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(BadFlags, match="out cannot be written: File too large"):
            convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_convert_gguf_progress(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    seen: list[tuple[int, int]] = []
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    total = sum(value.size * 2 for value in tensors("llama").values())
    assert seen[-1] == (total, total)
    assert len(seen) == len(tensors("llama"))


def test_convert_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert run(["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out"), "--dtype", "float32"]) == 0
    assert "octavo serve" in capsys.readouterr().out
    assert run(["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
