from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.spec import DecoderSpec, RopeSpec
from octavo_runtime.loading.weight_map import weight_map
from octavo_runtime.loading.weights import load_weights

SPEC = DecoderSpec(
    architecture="Qwen3ForCausalLM",
    num_layers=2,
    hidden_size=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    intermediate_size=10,
    vocab_size=7,
    max_position=64,
    max_position_field="max_position_embeddings",
    rms_norm_eps=1e-6,
    rope=RopeSpec(),
    qkv_bias=True,
    output_bias=False,
    mlp_bias=True,
    qk_norm=True,
    tie_word_embeddings=True,
    dtype=None,
    eos_token_ids=(),
)


def checkpoint(*, tied: bool = True, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Every tensor of SPEC, each number of it different."""
    layer = {
        "input_layernorm.weight": (12,),
        "post_attention_layernorm.weight": (12,),
        "self_attn.q_proj.weight": (24, 12),
        "self_attn.q_proj.bias": (24,),
        "self_attn.k_proj.weight": (12, 12),
        "self_attn.k_proj.bias": (12,),
        "self_attn.v_proj.weight": (12, 12),
        "self_attn.v_proj.bias": (12,),
        "self_attn.o_proj.weight": (12, 24),
        "self_attn.q_norm.weight": (6,),
        "self_attn.k_norm.weight": (6,),
        "mlp.gate_proj.weight": (10, 12),
        "mlp.gate_proj.bias": (10,),
        "mlp.up_proj.weight": (10, 12),
        "mlp.up_proj.bias": (10,),
        "mlp.down_proj.weight": (12, 10),
        "mlp.down_proj.bias": (12,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (7, 12), "model.norm.weight": (12,)}
    for number in range(2):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    if not tied:
        shapes["lm_head.weight"] = (7, 12)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def load(directory: Path, tensors: dict[str, torch.Tensor], spec: DecoderSpec = SPEC) -> dict[str, torch.Tensor]:
    save_file(tensors, directory / "model.safetensors")
    entries = open_checkpoint(directory)
    return load_weights(entries, weight_map(spec, entries), device=torch.device("cpu"), dtype=torch.float32)


def test_load_weights_fuses(tmp_path: Path) -> None:
    tensors = checkpoint()
    got = load(tmp_path, tensors)
    attention, mlp = "model.layers.1.self_attn", "model.layers.1.mlp"
    for kind in ("weight", "bias"):
        qkv = torch.cat([tensors[f"{attention}.{name}_proj.{kind}"] for name in "qkv"])
        assert torch.equal(got[f"layers.1.qkv.{kind}"], qkv)
        gate_up = torch.cat([tensors[f"{mlp}.{name}_proj.{kind}"] for name in ("gate", "up")])
        assert torch.equal(got[f"layers.1.gate_up.{kind}"], gate_up)
        assert torch.equal(got[f"layers.1.down.{kind}"], tensors[f"{mlp}.down_proj.{kind}"])
    assert torch.equal(got["layers.1.output.weight"], tensors[f"{attention}.o_proj.weight"])
    assert "layers.1.output.bias" not in got
    assert torch.equal(got["layers.0.q_norm"], tensors["model.layers.0.self_attn.q_norm.weight"])
    assert got["head"] is got["embedding"]
    assert sum(tensor.numel() for name, tensor in got.items() if name != "head") == sum(
        tensor.numel() for tensor in tensors.values()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_load_weights_casts(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = checkpoint(dtype=dtype)
    assert torch.equal(load(tmp_path, tensors)["embedding"], tensors["model.embed_tokens.weight"].float())


def test_load_weights_progress(tmp_path: Path) -> None:
    save_file(checkpoint(dtype=torch.bfloat16), tmp_path / "model.safetensors")
    entries = open_checkpoint(tmp_path)
    seen: list[tuple[int, int]] = []
    load_weights(
        entries,
        weight_map(SPEC, entries),
        device=torch.device("cpu"),
        dtype=torch.float32,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(entry.num_elements * 2 for entry in entries.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_load_weights_finishes_each_when_it_is_whole(tmp_path: Path) -> None:
    save_file(checkpoint(), tmp_path / "model.safetensors")
    entries = open_checkpoint(tmp_path)
    weights = weight_map(SPEC, entries)
    truth = load_weights(entries, weights, device=torch.device("cpu"), dtype=torch.float32)
    finished: list[str] = []

    def finish(name: str, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        assert torch.equal(parameter, truth[name]), f"{name} is not whole"
        finished.append(name)
        return {name: parameter + 1, f"{name}.copy": parameter}

    got = load_weights(entries, weights, device=torch.device("cpu"), dtype=torch.float32, finish=finish)
    assert sorted(finished) == sorted(weights.shapes)
    for name in weights.shapes:
        assert torch.equal(got[name], truth[name] + 1)
        assert torch.equal(got[f"{name}.copy"], truth[name])


def test_weight_map_untied_by_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = checkpoint(tied=False)
    with caplog.at_level(logging.WARNING):
        got = load(tmp_path, tensors)
    assert torch.equal(got["head"], tensors["lm_head.weight"])
    assert "tie_word_embeddings=true, but the checkpoint has lm_head.weight" in caplog.text


def test_weight_map_tied_by_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        got = load(tmp_path, checkpoint(), replace(SPEC, tie_word_embeddings=False))
    assert got["head"] is got["embedding"]
    assert "tie_word_embeddings=false, but the checkpoint lacks lm_head.weight" in caplog.text


@pytest.mark.parametrize(("said", "tied"), [(None, True), (None, False), (True, True), (False, False)])
def test_weight_map_tied_as_said(
    tmp_path: Path, said: bool | None, tied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, checkpoint(tied=tied), replace(SPEC, tie_word_embeddings=said))
    assert not caplog.records


def test_load_weights_stored_twice(tmp_path: Path) -> None:
    tensors = checkpoint()
    got = load(tmp_path, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert got["head"] is got["embedding"]


def test_weight_map_missing(tmp_path: Path) -> None:
    tensors = checkpoint()
    del tensors["model.layers.1.self_attn.k_norm.weight"]
    with pytest.raises(BadWeights, match=r"model\.layers\.1\.self_attn\.k_norm\.weight is missing"):
        load(tmp_path, tensors)


def test_weight_map_wrong_shape(tmp_path: Path) -> None:
    tensors = checkpoint()
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(13, 12)
    with pytest.raises(
        BadWeights, match=r"k_proj\.weight has the shape \[13, 12\], but config\.json makes it \[12, 12\]"
    ):
        load(tmp_path, tensors)


def test_weight_map_unknown(tmp_path: Path) -> None:
    tensors = checkpoint() | {"model.layers.0.self_attn.sinks": torch.zeros(4)}
    with pytest.raises(BadWeights, match=r"self_attn\.sinks \(1 in all\) have no place in Qwen3ForCausalLM"):
        load(tmp_path, tensors)


def test_weight_map_more_layers_than_configured(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"model\.layers\.1\..* … \(17 in all\) have no place"):
        load(tmp_path, checkpoint(), replace(SPEC, num_layers=1))


def test_weight_map_wrong_type(tmp_path: Path) -> None:
    tensors = checkpoint()
    tensors["model.norm.weight"] = torch.zeros(12, dtype=torch.int8)
    with pytest.raises(BadWeights, match=r"model\.norm\.weight is stored as I8"):
        load(tmp_path, tensors)


def test_weight_map_ignores_rotary_frequencies(tmp_path: Path) -> None:
    tensors = checkpoint() | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)}
    assert "layers.0.qkv.weight" in load(tmp_path, tensors)
