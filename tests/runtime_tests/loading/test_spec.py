from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.errors import ModelNotFound, UnsupportedModel
from octavo_runtime.loading.spec import RopeSpec, decoder_spec, read_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def test_decoder_spec_llama() -> None:
    spec = decoder_spec(LLAMA | {"tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": [2, 3]})
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm) == (False, False, False, False)
    assert (spec.tie_word_embeddings, spec.dtype, spec.eos_token_ids) == (True, "bfloat16", (2, 3))
    assert spec.max_position == 2048


def test_kv_elements_per_token() -> None:
    # 32 layers, 8 kv heads of 128 in 2 bytes: 131,072 bytes a token.
    spec = decoder_spec(
        LLAMA | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    )
    assert spec.kv_elements_per_token * 2 == 131_072


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN2, (True, False, False, False)),
        (QWEN3, (False, False, False, True)),
        (QWEN3 | {"attention_bias": True}, (True, True, False, True)),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, (True, True, True, False)),
        (MISTRAL | {"sliding_window": None}, (False, False, False, False)),
    ],
    ids=["qwen2", "qwen3", "qwen3-bias", "llama-bias", "mistral"],
)
def test_decoder_spec_families(config: dict[str, Any], expected: tuple[bool, ...]) -> None:
    spec = decoder_spec(config)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm) == expected


def test_decoder_spec_defaults() -> None:
    config = {name: value for name, value in LLAMA.items() if name != "architectures"}
    config |= {"num_key_value_heads": None, "head_dim": None, "rope_theta": None}
    spec = decoder_spec(config)
    assert (spec.architecture, spec.num_kv_heads, spec.head_dim) == ("LlamaForCausalLM", 4, 16)
    assert spec.rope == RopeSpec(theta=10_000.0)
    assert spec.tie_word_embeddings is None
    assert spec.eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "rope", "max_position"),
    [
        ({"rope_theta": 5e5}, RopeSpec(theta=5e5), 2048),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeSpec(theta=5e5), 2048),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, RopeSpec("linear", factor=4.0), 8192),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, RopeSpec("linear", factor=2.0), 4096),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            RopeSpec("llama3", 1e4, 8.0, 8192, 1.0, 4.0),
            131072,
        ),
        # The length is the original's times the factor, whether the configuration counted the factor in or not.
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
            RopeSpec("yarn", 1e4, 4.0, 2048, attention_factor=1.1386294361119891),
            8192,
        ),
        (
            {
                "max_position_embeddings": 8192,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
            },
            RopeSpec("yarn", 1e4, 4.0, 2048, attention_factor=1.1386294361119891),
            8192,
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 0.9, "beta_fast": 16}},
            RopeSpec("yarn", 1e4, 4.0, 2048, beta_fast=16.0, attention_factor=0.9),
            8192,
        ),
    ],
)
def test_decoder_spec_rope(changes: dict[str, Any], rope: RopeSpec, max_position: int) -> None:
    spec = decoder_spec(LLAMA | changes)
    assert spec.rope == rope
    assert spec.max_position == max_position


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MISTRAL | {"sliding_window": 512}, (512, "sliding_window")),
        (MISTRAL | {"sliding_window": 4096}, (2048, "max_position_embeddings")),
        (QWEN2 | {"sliding_window": 512, "use_sliding_window": False}, (2048, "max_position_embeddings")),
        (QWEN2 | {"sliding_window": 512, "use_sliding_window": True}, (512, "sliding_window")),
        (QWEN3 | {"sliding_window": 512, "layer_types": ["full_attention"] * 2}, (2048, "max_position_embeddings")),
    ],
)
def test_decoder_spec_sliding_window(config: dict[str, Any], expected: tuple[int, str]) -> None:
    spec = decoder_spec(config)
    assert (spec.max_position, spec.max_position_field) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "architectures: MambaForCausalLM is not supported; supported are Llama",
        ),
        ({"architectures": None, "model_type": "bert"}, "model_type: 'bert' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantization_config: quantised weights \(awq\)"),
        ({"quantization_config": {"quant_method": "octavo"}}, "of another version: convert the model again"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: rope_type: 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: rope_type: 'longrope' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor: is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor: must be at least 1"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor: is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: only 1.0"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: must be a number, not '64'"),
        ({"hidden_size": 62}, "hidden_size: 62 is no multiple of num_attention_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a whole number of at least 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"attention_bias": "yes"}, "attention_bias: must be true or false"),
        ({"layer_types": ["linear_attention"]}, "layer_types: .'linear_attention'. are not supported"),
    ],
)
def test_decoder_spec_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        decoder_spec(LLAMA | changes)


def test_read_spec(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="missing does not exist"):
        read_spec(tmp_path / "missing")
    with pytest.raises(ModelNotFound, match=r"config\.json does not exist"):
        read_spec(tmp_path)
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(UnsupportedModel, match=r"config\.json cannot be read as JSON"):
        read_spec(tmp_path)
    path.write_text("[]")
    with pytest.raises(UnsupportedModel, match="holds a JSON list"):
        read_spec(tmp_path)
    path.write_text(json.dumps(LLAMA))
    assert read_spec(tmp_path).num_layers == 2
    with pytest.raises(ModelNotFound, match="is a file, not a model directory"):
        read_spec(path)
