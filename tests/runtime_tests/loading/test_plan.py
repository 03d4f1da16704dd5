from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo_runtime.cli import run
from octavo_runtime.domain import EngineConfig
from octavo_runtime.errors import BadFlags, NotEnoughMemoryForKV
from octavo_runtime.loading.plan import plan_model, resolve_dtype
from octavo_runtime.loading.spec import decoder_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "vocab_size": 6,
    "tie_word_embeddings": True,
}
# embedding, q, k, v, o, gate, up, down, three norms
ELEMENTS = 6 * 8 + 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8 + 3 * 10 * 8 + 3 * 8
TOKEN = 2 * 1 * 4  # numbers of KV: keys and values of one layer, one head of 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (6, 8),
        "model.norm.weight": (8,),
        f"{layer}.input_layernorm.weight": (8,),
        f"{layer}.post_attention_layernorm.weight": (8,),
        f"{layer}.self_attn.q_proj.weight": (8, 8),
        f"{layer}.self_attn.k_proj.weight": (4, 8),
        f"{layer}.self_attn.v_proj.weight": (4, 8),
        f"{layer}.self_attn.o_proj.weight": (8, 8),
        f"{layer}.mlp.gate_proj.weight": (10, 8),
        f"{layer}.mlp.up_proj.weight": (10, 8),
        f"{layer}.mlp.down_proj.weight": (8, 10),
    }
    save_file(
        {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    return tmp_path


def config(model: Path, **changes: Any) -> EngineConfig:
    return replace(EngineConfig(str(model), device="cpu"), **changes)


def test_plan_model(model: Path) -> None:
    plan = plan_model(model, config(model, kv_cache_memory=100 * TOKEN * 4 + 1))
    assert (plan.dtype, plan.kv_cache_dtype, plan.device) == ("float32", "float32", "cpu")
    assert plan.weights_bytes == ELEMENTS * 4
    assert plan.kv_bytes_per_token == TOKEN * 4
    assert (plan.num_blocks, plan.kv_tokens, plan.kv_cache_bytes) == (6, 96, 96 * TOKEN * 4)
    assert (plan.max_model_len, plan.max_concurrency) == (96, 1.0)


def test_plan_model_roomy(model: Path) -> None:
    plan = plan_model(model, config(model, max_model_len=100, block_size=32, kv_cache_dtype="bfloat16"))
    assert plan.kv_bytes_per_token == TOKEN * 2
    assert plan.kv_tokens == (1 << 30) // (TOKEN * 2)
    assert (plan.max_model_len, plan.max_concurrency) == (100, (1 << 30) / (TOKEN * 2) / 100)
    assert plan_model(model, config(model)).max_model_len == 256


def test_plan_model_gpu(model: Path) -> None:
    plan = plan_model(model, config(model, device="cuda"))
    assert (plan.dtype, plan.weights_bytes) == ("bfloat16", ELEMENTS * 2)
    assert (plan.num_blocks, plan.kv_tokens, plan.max_model_len, plan.max_concurrency) == (None, None, None, None)
    assert plan_model(model, config(model, device="cuda", kv_cache_memory=1 << 20)).num_blocks == 4096


def test_plan_model_too_long(model: Path) -> None:
    with pytest.raises(BadFlags, match=r"--max-model-len 257 is more than the 256 .*max_position_embeddings"):
        plan_model(model, config(model, max_model_len=257))


def test_plan_model_no_room(model: Path) -> None:
    block = 16 * TOKEN * 4
    with pytest.raises(NotEnoughMemoryForKV, match=f"takes {7 * block} bytes, and there are {6 * block}") as raised:
        plan_model(model, config(model, max_model_len=100, kv_cache_memory=6 * block))
    assert (raised.value.needed, raised.value.available) == (7 * block, 6 * block)
    assert f"--kv-cache-memory {7 * block}, or --max-model-len 96 or less" in raised.value.hint
    # What the hint says works.
    assert plan_model(model, config(model, max_model_len=100, kv_cache_memory=7 * block)).num_blocks == 7
    assert plan_model(model, config(model, max_model_len=96, kv_cache_memory=6 * block)).num_blocks == 6


def test_plan_model_not_even_a_block(model: Path) -> None:
    with pytest.raises(NotEnoughMemoryForKV, match="one block of 16 tokens"):
        plan_model(model, config(model, kv_cache_memory=100))


@pytest.mark.parametrize(
    ("dtype", "device", "stored", "expected"),
    [
        ("auto", "cpu", {"BF16"}, "float32"),
        ("float16", "cpu", {"BF16"}, "float16"),
        ("auto", "cuda", {"BF16"}, "bfloat16"),
        ("auto", "cuda", {"F16"}, "float16"),
        ("auto", "cuda", {"F32"}, "bfloat16"),
        ("auto", "cuda", {"F16", "F32"}, "float16"),
        ("float32", "cuda", {"BF16"}, "float32"),
    ],
)
def test_resolve_dtype(dtype: str, device: str, stored: set[str], expected: str) -> None:
    assert resolve_dtype(dtype, device, decoder_spec(CONFIG | {"torch_dtype": "float16"}), stored) == expected


def test_plan_command_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "termination"
    argv = ["plan", str(model), "--device", "cpu", "--kv-cache-memory", "2Ki", "--json", "--termination-log", str(log)]
    assert run(argv) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(log.read_text())
    assert printed["weightsBytes"] == ELEMENTS * 4
    assert printed["kvBytesPerToken"] == TOKEN * 4
    assert (printed["kvTokens"], printed["maxConcurrency"]) == (64, 1.0)


def test_plan_command_readable(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), "--device", "cpu", "--kv-cache-memory", "2Ki"]) == 0
    out = capsys.readouterr().out
    assert "64 tokens" in out
    assert "2 KiB" in out
    assert run(["plan", str(model), "--device", "cuda"]) == 0
    assert "name --kv-cache-memory to plan it" in capsys.readouterr().out


def test_plan_command_failure(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "termination"
    argv = ["plan", str(model), "--max-model-len", "64", "--kv-cache-memory", "1Ki", "--termination-log", str(log)]
    assert run(argv) == 14
    assert json.loads(log.read_text())["code"] == "NotEnoughMemoryForKV"
    assert "--kv-cache-memory 2048" in capsys.readouterr().err


def test_plan_command_imports_no_torch(model: Path) -> None:
    script = f"""
import sys
from octavo_runtime.cli import run
code = run(["plan", {str(model)!r}, "--json"])
heavy = {{"torch", "transformers", "numpy", "zmq", "aiohttp"}} & set(sys.modules)
sys.exit(f"imported: {{heavy}}" if heavy else code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["numLayers"] == 1
