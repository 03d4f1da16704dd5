"""Small models with random weights, of each family and kind, against transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_kernels.linear.reference import dequantised, from_groups, quantised, rounded_groups, rounded_rows
from octavo_kernels.native import Context
from octavo_kernels.testing import assert_close, random_groups
from octavo_runtime.domain import EngineConfig, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.testing import LoadedExecutor, poison
from octavo_runtime.loading.plan import plan_model
from octavo_runtime.loading.spec import QUANTIZATION_CONFIG
from octavo_runtime.models import native_decoder

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 6}),
    "llama-mqa-wide-heads": ("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 8}),
    "mistral-within-window": ("mistral", {"sliding_window": 40, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-bias": ("qwen3", {"head_dim": 8, "attention_bias": True}),
}
GREEDY = SamplingParams(temperature=0, seed=0)


def make(directory: Path, model_type: str, changes: dict[str, Any]) -> PreTrainedModel:
    """Saves a random model; norms and biases are random too, or a mistake in them would not show."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **(SIZES | changes))
    auto: Any = AutoModelForCausalLM  # its methods have no types
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    model.save_pretrained(directory)
    return model


def load(directory: Path, **changes: Any) -> LoadedExecutor:
    config = EngineConfig(str(directory), device="cpu", kv_cache_memory=1 << 20, block_size=8)
    return poisoned(load_executor(replace(config, **changes)))


def poisoned(executor: LoadedExecutor) -> LoadedExecutor:
    poison(executor)
    return executor


def sequence(request_id: str, tokens: list[int], computed: int, blocks: tuple[int, ...]) -> ScheduledSequence:
    return ScheduledSequence(request_id, 0, tuple(tokens), computed, blocks, 1, 0, GREEDY)


def logits(executor: LoadedExecutor, *sequences: ScheduledSequence) -> torch.Tensor:
    """[sequences, vocabulary] of a step."""
    return torch.as_tensor(executor.logits(StepPlan(sequences)))


@pytest.mark.parametrize("kernels", ["native", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_family(name: str, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "native" and "wide-heads" in name:
        kernels = ""  # what has no native form runs on torch, unless a form is forced
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
    truth = make(tmp_path, *CASES[name])
    executor = load(tmp_path)
    assert executor.info.kernels.startswith(kernels or "cpu")
    first = torch.randint(3, 97, (38,)).tolist()
    second = torch.randint(3, 97, (11,)).tolist()
    with torch.inference_mode():
        expected = truth(torch.tensor([first])).logits[0]
        expected_second = truth(torch.tensor([second])).logits[0, -1]
    blocks = (7, 2, 11, 5, 9)
    # A chunk, a second chunk beside another prompt, then a decode: the last token of each is compared.
    assert_close(logits(executor, sequence("a", first[:13], 0, blocks))[0], expected[12], 1e-5)
    both = logits(executor, sequence("b", second, 0, (0, 3)), sequence("a", first[13:37], 13, blocks))
    assert_close(both[0], expected_second, 1e-5)
    assert_close(both[1], expected[36], 1e-5)
    assert_close(logits(executor, sequence("a", first[37:], 37, blocks))[0], expected[37], 1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_family_narrow(dtype: str, tmp_path: Path) -> None:
    truth = make(tmp_path, "qwen3", {"head_dim": 16}).to(getattr(torch, dtype))
    executor = load(tmp_path, dtype=dtype)
    assert (executor.info.dtype, executor.info.kv_cache_dtype) == (dtype, dtype)
    tokens = torch.randint(3, 97, (20,)).tolist()
    with torch.inference_mode():
        expected = truth(torch.tensor([tokens])).logits[0, -1]
    got = logits(executor, sequence("a", tokens, 0, (0, 1, 2)))[0]
    assert_close(got.to(expected.dtype), expected, 0.03)


def test_family_narrow_kv_cache(tmp_path: Path) -> None:
    truth = make(tmp_path, "llama", {})
    executor = load(tmp_path, kv_cache_dtype="bfloat16")
    tokens = torch.randint(3, 97, (20,)).tolist()
    with torch.inference_mode():
        expected = truth(torch.tensor([tokens])).logits[0, -1]
    cold = logits(executor, sequence("a", tokens, 0, (0, 1, 2)))[0]
    warm = logits(executor, sequence("b", tokens[16:], 16, (0, 1, 3)))[0]
    assert_close(cold, expected, 0.03)
    assert_close(warm, cold, 1e-5)  # what was cached is what was computed with


def test_family_sharded(tmp_path: Path) -> None:
    truth = make(tmp_path, "llama", {})
    (tmp_path / "model.safetensors").unlink()
    truth.save_pretrained(tmp_path, max_shard_size="40KB")
    weight_map = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 3
    executor = load(tmp_path)
    with torch.inference_mode():
        expected = truth(torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert_close(logits(executor, sequence("a", [5, 6, 7], 0, (0,)))[0], expected, 1e-5)


@pytest.fixture
def forced(instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine runs on this instruction set."""
    monkeypatch.setattr(native_decoder, "Context", partial(Context, isa=instruction_set))
    return instruction_set


def test_family_many_tokens(forced: str, tmp_path: Path) -> None:
    # More rows than an item of the products has.
    make(tmp_path, "llama", {}).bfloat16().save_pretrained(tmp_path)
    truth = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    executor = load(tmp_path, kv_cache_dtype="float32")
    assert executor.info.kernels == f"native ({forced})"
    prompts = [torch.randint(3, 97, (length,)).tolist() for length in (120, 3, 127)]
    steps = [sequence(str(n), tokens, 0, tuple(range(16 * n, 16 * n + 16))) for n, tokens in enumerate(prompts)]
    got = logits(executor, *steps)
    for row, tokens in zip(got, prompts, strict=True):
        with torch.inference_mode():
            assert_close(row, truth(torch.tensor([tokens])).logits[0, -1], 1e-5)


def with_rounded_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Each linear layer's weights as they are when quantised, and the head's, which may be the embedding's."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.detach()
            if name != "lm_head":
                module.weight = torch.nn.Parameter(dequantised(*quantised(weight)))
            elif weight.shape[1] % 32 == 0:  # else it stays
                weight.copy_(from_groups(*rounded_groups(weight), None))
    return model


def with_rounded_rows(model: PreTrainedModel) -> PreTrainedModel:
    """The same for what goes into each linear layer."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(lambda _, given: (rounded_rows(given[0].flatten(0, 1))[None],))
    return model


GROUPED = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}  # multiples of 32, as in GGUF


@pytest.mark.parametrize("quantization", ["w8a16", "w8a8"])
@pytest.mark.parametrize(
    ("name", "sizes"), [("llama", {}), ("llama-biases", GROUPED), ("qwen2", {}), ("qwen2", GROUPED), ("qwen3", {})]
)
def test_family_quantised(name: str, sizes: dict[str, Any], quantization: str, forced: str, tmp_path: Path) -> None:
    model_type, changes = CASES[name]
    truth = with_rounded_weights(make(tmp_path, model_type, changes | sizes))
    executor = load(tmp_path, quantization=quantization, kv_cache_dtype="float32")
    assert executor.info.kernels == f"native ({forced}, {quantization})"
    # Activations have 16 bits there, and in a head of groups; else they are float32.
    tolerance = 1e-3 if forced in {"amx", "avx512bf16", "avx512vnni"} or sizes else 1e-5
    if quantization == "w8a8":
        truth = with_rounded_rows(truth)
        tolerance = 0.02  # a number in the middle of two steps may be rounded to either
    tokens = torch.randint(3, 97, (38,)).tolist()
    with torch.inference_mode():
        expected = truth(torch.tensor([tokens])).logits[0]
    blocks = (7, 2, 11, 5, 9)
    assert_close(logits(executor, sequence("a", tokens[:37], 0, blocks))[0], expected[36], tolerance)
    assert_close(logits(executor, sequence("a", tokens[37:], 37, blocks))[0], expected[37], tolerance)


def keep_groups(directory: Path, eight_bits: tuple[str, ...] = ("embed_tokens",)) -> dict[str, torch.Tensor]:
    """Stores the directory's matrices in random groups, as `octavo convert` would; returns them as floats."""
    file = directory / "model.safetensors"
    stored, floats = random_groups(load_file(file), eight_bits, torch.Generator().manual_seed(1))
    save_file(stored, file)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION_CONFIG}))
    return floats


@pytest.mark.parametrize("eight_bits", [("embed_tokens",), ("lm_head", "down_proj"), ()])
@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2"])
def test_family_in_groups(name: str, eight_bits: tuple[str, ...], forced: str, tmp_path: Path) -> None:
    model_type, changes = CASES[name]
    truth = make(tmp_path, model_type, changes | GROUPED)
    truth.load_state_dict(keep_groups(tmp_path, eight_bits), strict=False)
    executor = load(tmp_path)
    assert executor.info.kernels == f"native ({forced}, w4a16)"
    plan = plan_model(tmp_path, EngineConfig(str(tmp_path), device="cpu", kv_cache_memory=1 << 20))
    assert executor.info.weights_bytes == plan.weights_bytes
    tokens = torch.randint(3, 97, (38,)).tolist()
    with torch.inference_mode():
        expected = truth(torch.tensor([tokens])).logits[0]
    blocks = (7, 2, 11, 5, 9)
    # Activations have 16 bits.
    assert_close(logits(executor, sequence("a", tokens[:37], 0, blocks))[0], expected[36], 1e-3)
    assert_close(logits(executor, sequence("a", tokens[37:], 37, blocks))[0], expected[37], 1e-3)


@pytest.mark.parametrize("quantization", ["none", "w8a16", "w8a8", "w4a16"])
@pytest.mark.usefixtures("forced")
def test_family_batch_changes_nothing(quantization: str, tmp_path: Path) -> None:
    # The native kernels sum in one order: a row has the same logits, to the last bit, alone, in a batch, and in chunks.
    make(tmp_path, "llama", GROUPED)
    if quantization == "w4a16":
        keep_groups(tmp_path)
    executor = load(tmp_path, quantization=quantization)
    assert executor.info.kernels.startswith("native")
    prompts = {name: torch.randint(3, 97, (length,)).tolist() for name, length in (("a", 30), ("b", 7), ("c", 12))}
    tables = {"a": (4, 1, 6, 2), "b": (0,), "c": (3, 5)}
    together = logits(executor, *(sequence(name, prompt, 0, tables[name]) for name, prompt in prompts.items()))
    for row, (name, prompt) in enumerate(prompts.items()):
        assert torch.equal(logits(executor, sequence(name, prompt, 0, tables[name]))[0], together[row])
    logits(executor, sequence("a", prompts["a"][:11], 0, tables["a"]))
    assert torch.equal(logits(executor, sequence("a", prompts["a"][11:], 11, tables["a"]))[0], together[0])
