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

from octavo_kernels.linear.pairs import pack_pairs
from octavo_runtime.cli import run
from octavo_runtime.domain import EngineConfig, SchedulerConfig
from octavo_runtime.errors import BadFlags, NotEnoughMemoryForKV, NotEnoughMemoryForWeights, UnsupportedModel
from octavo_runtime.loading.plan import plan_model, resolve_dtype, storage_dtype
from octavo_runtime.loading.spec import decoder_spec
from octavo_runtime.loading.weight_bytes import check_packing, held_bytes, most_bytes
from octavo_runtime.loading.weight_map import WeightMap

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
SCALES = 2  # of keys and values


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


@pytest.mark.parametrize(("dtype", "device"), [("int8", "cpu"), ("int8", "cuda"), ("fp8", "cuda")])
def test_plan_model_kv_cache_of_eight_bits(model: Path, dtype: str, device: str) -> None:
    plan = plan_model(model, config(model, device=device, kv_cache_dtype=dtype, kv_cache_memory=1 << 20))
    assert plan.kv_bytes_per_token == TOKEN + 4 * SCALES
    assert plan.num_blocks == (1 << 20) // (plan.kv_bytes_per_token * 16)


def test_plan_model_fp8_kv_cache_on_a_cpu(model: Path) -> None:
    with pytest.raises(BadFlags, match="--kv-cache-dtype fp8 is for GPUs, and the device is cpu"):
        plan_model(model, config(model, device="cpu", kv_cache_dtype="fp8"))


@pytest.mark.parametrize(("dtype", "item"), [("auto", 2), ("float16", 2)])
def test_plan_model_quantised(dtype: str, item: int, model: Path) -> None:
    plan = plan_model(model, config(model, dtype=dtype, quantization="w8a16"))
    # The embedding, which is the head, and three norms as they are stored.
    outputs = 8 + 4 + 4 + 8 + 10 + 10 + 8
    assert plan.weights_bytes == ELEMENTS - (6 * 8 + 3 * 8) + 8 * outputs + (6 * 8 + 3 * 8) * item
    assert plan.quantization == "w8a16"
    both = plan_model(model, config(model, dtype=dtype, quantization="w8a8"))
    assert both == replace(plan, quantization="w8a8")


def test_plan_model_quantised_on_a_gpu(model: Path) -> None:
    plan = plan_model(model, config(model, device="auto", quantization="w8a16"), gpu_memory=1 << 30)
    outputs = 8 + 4 + 4 + 8 + 10 + 10 + 8
    assert plan.weights_bytes == ELEMENTS - (6 * 8 + 3 * 8) + 4 * outputs + (6 * 8 + 3 * 8) * 2
    stored = plan_model(model, config(model, device="auto"), gpu_memory=1 << 30)
    assert plan.kv_cache_bytes is not None
    assert stored.kv_cache_bytes is not None
    gained = plan.kv_cache_bytes - stored.kv_cache_bytes
    assert gained == pytest.approx(stored.weights_bytes - plan.weights_bytes, abs=TOKEN * 2 * 16)


def test_plan_model_kv_cache_of_quantised_weights(model: Path) -> None:
    for quantization in ("w8a16", "w8a8"):
        assert plan_model(model, config(model, quantization=quantization)).kv_cache_dtype == "bfloat16"
        wide = config(model, quantization=quantization, kv_cache_dtype="float32")
        assert plan_model(model, wide).kv_cache_dtype == "float32"
    on_gpu = config(model, device="cuda", dtype="float16", quantization="w8a16")
    assert plan_model(model, on_gpu, gpu_memory=1 << 30).kv_cache_dtype == "float16"


@pytest.mark.parametrize(("width", "tied"), [(64, True), (64, False), (40, True)])
def test_held_bytes_of_a_head_in_eight_bits(width: int, tied: bool) -> None:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (7, width), "layers.0.down.weight": (8, 10)}
    if not tied:
        shapes["head"] = (7, width)
    weights = WeightMap((), shapes, {}, tied=tied)
    layers, stored, rounded = 80 + 8 * 8, 7 * width * 2, 7 * (width + width // 32 * 2)
    head = rounded if width == 64 else stored
    assert held_bytes(weights, "bfloat16", "w8a16", packed=False) == layers + head + (0 if tied else stored)
    on_gpu = 80 + 4 * 8 + stored * (1 if tied else 2)
    assert held_bytes(weights, "bfloat16", "w8a16", packed=True) == on_gpu
    loading = 7 * width * 3 if width == 64 else 8 * 10 * 2
    held = held_bytes(weights, "bfloat16", "w8a16", packed=False)
    assert most_bytes(weights, "bfloat16", "w8a16", packed=False) == held + loading


def in_groups(four_bits: bool, width: int) -> WeightMap:
    """A single weight of 8 outputs beside a norm of 10."""
    shapes: dict[str, tuple[int, ...]] = {"norm": (10,), "layers.0.down.scales": (8, width // 32)}
    fixed = {"layers.0.down.scales": "F16", "layers.0.down.qweight": "U8" if four_bits else "I8"}
    shapes["layers.0.down.qweight"] = (8, width // 2 if four_bits else width)
    if four_bits:
        shapes["layers.0.down.minima"], fixed["layers.0.down.minima"] = (8, width // 32), "F16"
    return WeightMap((), shapes, fixed, tied=True)


def test_held_bytes_in_groups() -> None:
    four, eight = in_groups(True, 64), in_groups(False, 64)
    for packed in (False, True):
        assert held_bytes(four, "bfloat16", "w4a16", packed=packed) == 8 * 32 + 2 * 8 * 2 * 2 + 20
    assert held_bytes(eight, "bfloat16", "w4a16", packed=False) == 8 * 64 + 8 * 2 * 2 + 20
    assert held_bytes(eight, "bfloat16", "w4a16", packed=True) == 8 * 64 * 2 + 20


@pytest.mark.parametrize("width", [32, 64, 96, 128])
def test_check_packing_as_the_kernels_do(width: int) -> None:
    check_packing(in_groups(True, width), "w4a16", packed=False)
    check_packing(in_groups(False, width), "w4a16", packed=True)
    numbers = torch.zeros(8, width // 32, dtype=torch.float16)
    if width % 64:
        with pytest.raises(
            UnsupportedModel, match=rf"layers\.0\.down .* has {width} inputs; on a GPU .* multiple of 64"
        ):
            check_packing(in_groups(True, width), "w4a16", packed=True)
        with pytest.raises(ValueError, match="multiple of 64"):
            pack_pairs(torch.zeros(8, width, dtype=torch.uint8), numbers, numbers)
    else:
        check_packing(in_groups(True, width), "w4a16", packed=True)
        pack_pairs(torch.zeros(8, width, dtype=torch.uint8), numbers, numbers)


def test_check_packing_rows_that_are_too_wide() -> None:
    def weights(width: int) -> WeightMap:
        return WeightMap((), {"norm": (width,), "layers.0.down.weight": (8, width)}, {}, tied=True)

    check_packing(weights(32768), "w8a8", packed=True)
    check_packing(weights(32769), "w8a16", packed=True)
    check_packing(weights(32769), "w8a8", packed=False)
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.down has 32769 inputs; on a GPU w8a8 takes at most 32768"):
        check_packing(weights(32769), "w8a8", packed=True)


def test_plan_model_in_groups_without_any(model: Path) -> None:
    with pytest.raises(BadFlags, match="--quantization w4a16, but the model directory does not hold weights in groups"):
        plan_model(model, config(model, quantization="w4a16"))


def test_plan_model_gpu(model: Path) -> None:
    plan = plan_model(model, config(model, device="cuda"))
    assert (plan.dtype, plan.weights_bytes) == ("bfloat16", ELEMENTS * 2)
    assert (plan.num_blocks, plan.kv_tokens, plan.max_model_len, plan.max_concurrency) == (None, None, None, None)
    assert plan_model(model, config(model, device="cuda", kv_cache_memory=1 << 20)).num_blocks == 4096


def test_plan_model_for_a_gpu_of_this_size(model: Path) -> None:
    plan = plan_model(model, config(model, device="auto"), gpu_memory=1 << 30)
    assert (plan.device, plan.dtype, plan.gpu_memory_bytes) == ("cuda", "bfloat16", 1 << 30)
    # A prompt of 256 tokens: residual and norm; q, k and v, twice; scores of two heads in float32, three times.
    assert plan.activations_bytes == 256 * 2 * 8 * 2 + 256 * 2 * 16 * 2 + 3 * 2 * 256**2 * 4
    left = (1 << 30) - (1 << 29) - ELEMENTS * 2 - plan.activations_bytes - int((1 << 30) * (1 - 0.9))
    assert plan.kv_cache_bytes is not None
    assert plan.num_blocks == left // (16 * TOKEN * 2)
    assert plan.kv_cache_bytes == plan.num_blocks * 16 * TOKEN * 2
    assert (plan.max_model_len, plan.max_concurrency) == (256, plan.num_blocks / 16)
    larger = plan_model(model, config(model, device="auto", gpu_memory_utilization=1.0), gpu_memory=1 << 30)
    assert larger.kv_cache_bytes is not None
    assert larger.kv_cache_bytes - plan.kv_cache_bytes == pytest.approx(0.1 * (1 << 30), abs=16 * TOKEN * 2)
    smaller = plan_model(model, config(model, kv_cache_memory=1 << 20, device="cuda"), gpu_memory=1 << 30)
    assert smaller.kv_cache_bytes == 1 << 20
    short_steps = SchedulerConfig(max_num_batched_tokens=64)
    shorter = plan_model(model, config(model, device="cuda", scheduler=short_steps), gpu_memory=1 << 30)
    assert shorter.activations_bytes is not None
    assert shorter.activations_bytes < plan.activations_bytes / 4


def test_plan_model_for_a_gpu_that_is_too_small(model: Path) -> None:
    with pytest.raises(NotEnoughMemoryForWeights, match=f"take {ELEMENTS * 2} bytes.* has {ELEMENTS * 2 - 1} for them"):
        plan_model(model, config(model, device="cuda"), gpu_memory=(1 << 29) + ELEMENTS * 2 - 1)
    with pytest.raises(NotEnoughMemoryForWeights, match="a GPU of 1048576 has 0 for them"):
        plan_model(model, config(model, device="cuda"), gpu_memory=1 << 20)
    with pytest.raises(NotEnoughMemoryForKV, match="one block of 16 tokens"):
        plan_model(model, config(model, device="cuda"), gpu_memory=(1 << 29) + ELEMENTS * 2)
    with pytest.raises(NotEnoughMemoryForKV, match="is to take 536870912 bytes, but beside weights") as raised:
        plan_model(model, config(model, device="cuda", kv_cache_memory=1 << 29), gpu_memory=1 << 30)
    assert raised.value.available is not None
    fits = config(model, device="cuda", kv_cache_memory=raised.value.available)
    assert plan_model(model, fits, gpu_memory=1 << 30).num_blocks


def test_plan_model_share_of_a_gpu_that_is_too_small(model: Path) -> None:
    """The hint's values work, and nothing less does."""

    def plan(share: float, longest: int | None = 250) -> int:
        settings = config(model, device="cuda", max_model_len=longest, gpu_memory_utilization=share)
        return plan_model(model, settings, gpu_memory=1 << 30).num_blocks or 0

    with pytest.raises(NotEnoughMemoryForKV, match="one request of --max-model-len 250 takes") as raised:
        plan(0.2)
    share = float(raised.value.hint.split("--gpu-memory-utilization ")[1].split(",")[0].rstrip("."))
    assert plan(share) >= 16
    with pytest.raises(NotEnoughMemoryForKV, match="--max-model-len 250") as raised:
        plan(share - 0.001)
    assert f"--gpu-memory-utilization {share}" in raised.value.hint
    # Where even the whole GPU is too small, no share is named.
    steps = SchedulerConfig(max_num_batched_tokens=4096)
    held = plan_model(model, config(model, device="cuda")).weights_bytes
    with pytest.raises(NotEnoughMemoryForKV) as raised:
        plan_model(model, config(model, device="cuda", scheduler=steps), gpu_memory=(1 << 29) + held)
    assert raised.value.hint.startswith("Use a larger GPU, or less than --max-num-batched-tokens 4096")


def test_plan_model_for_a_gpu_that_is_too_small_while_loading(model: Path) -> None:
    quantised = config(model, device="cuda", quantization="w8a16")
    held = plan_model(model, quantised).weights_bytes
    largest = 10 * 2 * 8 * 2  # gate and up, before they are rounded
    assert plan_model(model, quantised, gpu_memory=1 << 30).weights_bytes == held
    with pytest.raises(NotEnoughMemoryForWeights, match=f"take {held + largest} bytes while they are loaded") as raised:
        plan_model(model, quantised, gpu_memory=(1 << 29) + held + largest - 1)
    assert "quantization" not in raised.value.hint
    with pytest.raises(NotEnoughMemoryForKV):
        plan_model(model, quantised, gpu_memory=(1 << 29) + held + largest)


def test_plan_model_gpu_memory_on_a_cpu(model: Path) -> None:
    with pytest.raises(BadFlags, match="--gpu-memory plans for a GPU, and --device is cpu"):
        plan_model(model, config(model), gpu_memory=1 << 30)


def test_plan_model_host_tier(model: Path) -> None:
    block = 16 * TOKEN * 4
    assert plan_model(model, config(model, swap_space=10 * block + 5)).num_host_blocks == 10
    assert plan_model(model, config(model)).num_host_blocks == 0
    with pytest.raises(BadFlags, match=f"--swap-space {block - 1} is less than one KV block of {block} bytes"):
        plan_model(model, config(model, swap_space=block - 1))


def test_plan_model_room_to_grow(model: Path) -> None:
    plan_model(model, config(model, kv_cache_memory=1 << 20, kv_cache_memory_max=1 << 21))
    with pytest.raises(BadFlags, match="--kv-cache-memory-max 1048575 is less than the 1048576 bytes"):
        plan_model(model, config(model, kv_cache_memory=1 << 20, kv_cache_memory_max=(1 << 20) - 1))
    with pytest.raises(BadFlags, match="--kv-cache-memory-max 1048577 on a GPU"):
        plan_model(model, config(model, device="cuda", kv_cache_memory=1 << 20, kv_cache_memory_max=(1 << 20) + 1))


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


@pytest.mark.parametrize(
    ("dtype", "stored", "expected"),
    [
        ("float32", {"BF16"}, "bfloat16"),
        ("float32", {"F16"}, "float16"),
        ("float32", {"F32"}, "float32"),
        ("float32", {"F64"}, "float32"),
        ("float32", {"BF16", "F16"}, "float32"),  # neither holds the other
        ("bfloat16", {"F32"}, "bfloat16"),  # asked for
        ("float16", {"BF16"}, "float16"),
    ],
)
def test_storage_dtype_loses_nothing(dtype: str, stored: set[str], expected: str) -> None:
    assert storage_dtype(dtype, stored) == expected


def test_plan_command_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "termination"
    argv = ["plan", str(model), "--device", "cpu", "--kv-cache-memory", "2Ki", "--json", "--termination-log", str(log)]
    assert run(argv) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(log.read_text())
    assert len(log.read_bytes()) < 1024  # the kubelet cuts a termination message after 4,096
    assert printed["weightsBytes"] == ELEMENTS * 4
    assert printed["kvBytesPerToken"] == TOKEN * 4
    assert (printed["kvTokens"], printed["maxConcurrency"]) == (64, 1.0)


def test_plan_command_readable(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(model), "--device", "cpu", "--kv-cache-memory", "2Ki"]) == 0
    out = capsys.readouterr().out
    assert "64 tokens" in out
    assert "2 KiB" in out
    assert run(["plan", str(model), "--device", "cuda"]) == 0
    assert "name --gpu-memory or --kv-cache-memory" in capsys.readouterr().out


def test_plan_command_for_a_gpu(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", str(model), "--gpu-memory", "1Gi", "--swap-space", "1Mi", "--max-num-batched-tokens", "128"]
    assert run(argv) == 0
    out = capsys.readouterr().out
    assert "1 GiB, about 512 MiB of it for CUDA itself; an estimate" in out
    assert "in the largest step; an estimate" in out
    assert "4,096 blocks on the host" in out
    assert run([*argv, "--json", "--gpu-memory-utilization", "0.8"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["gpuMemoryBytes"], printed["numHostBlocks"]) == (1 << 30, 4096)
    assert printed["kvCacheBytes"] < (1 << 30) * 0.3
    assert run([*argv, "--device", "cpu"]) == 2


def test_plan_command_failure(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "termination"
    argv = ["plan", str(model), "--max-model-len", "64", "--kv-cache-memory", "1Ki", "--termination-log", str(log)]
    assert run(argv) == 14
    assert json.loads(log.read_text())["code"] == "NotEnoughMemoryForKV"
    assert "--kv-cache-memory 2048" in capsys.readouterr().err


def test_plan_command_termination_log_that_cannot_be_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "no" / "log"
    assert run(["plan", str(model), "--termination-log", str(log)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"--termination-log: {log} cannot be written: No such file or directory" in told.err


def test_plan_command_imports_no_torch(model: Path) -> None:
    script = f"""
import sys
from octavo_runtime.cli import run
code = run(["plan", {str(model)!r}, "--json"])
heavy = {{"torch", "transformers", "zmq", "aiohttp"}} & set(sys.modules)
sys.exit(f"imported: {{heavy}}" if heavy else code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["numLayers"] == 1
