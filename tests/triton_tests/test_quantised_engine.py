"""Engines on the Triton kernels: quantised weights against the same widened, a cache in eight bits, batch invariance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_kernels.linear import reference as linear_reference
from octavo_kernels.linear import triton as linear_triton
from octavo_kernels.linear.reference import dequantised, quantised
from octavo_kernels.native.arrays import to_tensor
from octavo_kernels.paged_attention import gpu_configurations
from octavo_kernels.testing import assert_close, random_groups
from octavo_runtime.domain import EngineConfig, Request, SamplingParams, ScheduledSequence, SchedulerConfig, StepPlan
from octavo_runtime.engine import executor as executor_module
from octavo_runtime.engine import torch_executor
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.engine.testing import RecordingDevice
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.errors import UnsupportedModel
from octavo_runtime.loading.spec import QUANTIZATION_CONFIG
from octavo_runtime.models.decoder import Decoder

HIDDEN, MLP, DIM, VOCABULARY = 64, 128, 32, 70
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],  # with biases
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "vocab_size": VOCABULARY,
    "eos_token_id": 2,
}
PROMPT = [5, 17, 33, 8, 60, 2]
INVARIANT_PROMPTS = [[(7 * place + 3) % VOCABULARY for place in range(19)], PROMPT[:5]]
Tensors = dict[str, torch.Tensor]


def weights(*, tied: bool) -> Tensors:
    """Random ones, by the checkpoint's names."""
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (2 * DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (DIM, HIDDEN),
        f"{layer}.self_attn.q_proj.bias": (2 * DIM,),
        f"{layer}.self_attn.k_proj.bias": (DIM,),
        f"{layer}.self_attn.v_proj.bias": (DIM,),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, 2 * DIM),
        f"{layer}.mlp.gate_proj.weight": (MLP, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (MLP, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, MLP),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(folder: Path, tensors: Tensors, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def rounded(tensors: Tensors) -> Tensors:
    """What w8a16 makes of them, as floats."""
    return {
        name: dequantised(*quantised(tensor)) if name.endswith("proj.weight") else tensor
        for name, tensor in tensors.items()
    }


def in_groups(tensors: Tensors, eight_bits: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    """Their matrices in random groups, as `octavo convert --quantization keep` stores them, and those as floats."""
    return random_groups(tensors, eight_bits, torch.Generator().manual_seed(1))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TorchExecutor]]:
    """Loads a directory on a form of the kernels. What takes the interpreter long and shows nothing here is left out:
    first steps, and the pieces of a context, most of which are empty."""
    monkeypatch.setattr(executor_module, "prefill_seconds_per_token", lambda *_: 0.0)
    monkeypatch.setattr(torch_executor, "warm_up", lambda *_, **__: None)
    monkeypatch.setattr(gpu_configurations, "_MAX_SPLITS", 4)

    def load(folder: Path, kernels: str, *, graphs: bool = False, **settings: Any) -> TorchExecutor:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
        form.cache_clear()
        scheduler = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8)
        settings = {"kv_cache_dtype": "float32"} | settings  # as a GPU has it, of the weights' type
        config = EngineConfig(str(folder), device="cpu", kv_cache_memory=1 << 17, scheduler=scheduler, **settings)
        executor = load_executor(config, graph_device=(lambda _: RecordingDevice()) if graphs else None)
        assert isinstance(executor, TorchExecutor)
        return executor

    yield load
    form.cache_clear()


def logits(executor: TorchExecutor) -> torch.Tensor:
    """Of a prompt's last token."""
    sampling = SamplingParams(temperature=0, seed=0)
    plan = StepPlan((ScheduledSequence("a", 1, PROMPT, 0, (3,), 1, 0, sampling),))
    return executor.logits(plan)


def held(executor: TorchExecutor) -> int:
    """Bytes of a decoder's weights, each once."""
    decoder = executor._decoder
    assert isinstance(decoder, Decoder)
    found: dict[int, int] = {}

    def look(value: object) -> None:
        if isinstance(value, torch.Tensor):
            found[value.data_ptr()] = value.nbytes
        elif isinstance(value, list):
            for each in value:
                look(each)
        elif is_dataclass(value):
            for field in fields(value):
                if not field.name.endswith("_cache"):
                    look(getattr(value, field.name))

    for part in (decoder._embedding, decoder._norm, decoder._head, decoder._layers):
        look(part)
    return sum(found.values())


@pytest.mark.parametrize("tied", [False, True])
def test_w8a16(tied: bool, load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    stored = weights(tied=tied)
    executor = load(write(tmp_path / "stored", stored), "triton", quantization="w8a16")
    assert executor.info.kernels == "triton (w8a16)"
    assert executor.info.weights_bytes == held(executor)
    got = logits(executor)
    assert_close(got, logits(load(write(tmp_path / "rounded", rounded(stored)), "reference")), 1e-5)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_w8a8(
    batch_invariant: bool, load: Callable[..., TorchExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "model", weights(tied=True))
    executor = load(model, "triton", quantization="w8a8", batch_invariant=batch_invariant)
    assert executor.info.kernels == "triton (w8a8)"
    assert executor.info.weights_bytes == held(executor)
    got = logits(executor)
    for name in ("linear_w8a8", "linear_w8a8_invariant"):
        monkeypatch.setattr(linear_triton, name, linear_reference.linear_w8a8)
    # A number in the middle of two steps may be rounded to either.
    assert_close(got, logits(executor), 0.02)


@pytest.mark.parametrize(
    ("tied", "eight_bits"), [(True, ()), (True, ("embed_tokens",)), (False, ("lm_head", "down_proj"))], ids=str
)
def test_w4a16(tied: bool, eight_bits: tuple[str, ...], load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    stored, floats = in_groups(weights(tied=tied), eight_bits)
    executor = load(write(tmp_path / "stored", stored, quantization_config=QUANTIZATION_CONFIG), "triton")
    assert executor.info.kernels == "triton (w4a16)"
    assert executor.info.weights_bytes == held(executor)
    got = logits(executor)
    assert_close(got, logits(load(write(tmp_path / "floats", floats), "reference")), 1e-5)


def answers(executor: TorchExecutor) -> dict[str, list[int]]:
    config = EngineConfig("", scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8))
    core = EngineCore(executor, config)
    for name, length in (("a", 3), ("b", 5)):
        sampling = SamplingParams(temperature=0.8, seed=length, max_tokens=3, ignore_eos=True)
        core.add(Request(name, tuple(PROMPT[:length]), sampling))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    while core.has_work:
        for event in core.step().events:
            assert not event.error
            tokens[event.request_id] += event.token_ids
    return tokens


@pytest.mark.parametrize("quantization", ["w8a16", "w8a8", "w4a16"])
def test_graphs_answer_as_without(quantization: str, load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    tensors = weights(tied=True)
    config: dict[str, Any] = {}
    if quantization == "w4a16":
        tensors, config = in_groups(tensors, ())[0], {"quantization_config": QUANTIZATION_CONFIG}
    executor = load(write(tmp_path / "model", tensors, **config), "triton", graphs=True, quantization=quantization)
    graphs = executor._graphs
    assert graphs is not None
    truth = answers(executor.without_graphs())
    assert answers(executor) == truth
    assert all(len(tokens) == 3 for tokens in truth.values())
    device = graphs._device
    assert isinstance(device, RecordingDevice)
    assert device.replayed


def test_kv_cache_in_int8(load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    model = write(tmp_path / "model", weights(tied=True))
    executor = load(model, "triton", kv_cache_dtype="int8", swap_space=1 << 14)
    wide = load(model, "triton")
    assert executor.info.block_bytes * 4 * DIM == wide.info.block_bytes * (DIM + 4)
    assert_close(logits(executor), logits(wide), 0.05)
    assert not torch.equal(logits(executor), logits(wide))


def all_logits(executor: TorchExecutor, *steps: list[tuple[int, int, int]]) -> dict[tuple[int, int], torch.Tensor]:
    """Of each token of two sequences: (sequence, token) to logits. A step is of (sequence, first token, behind the last)."""
    sampling = SamplingParams(temperature=0, seed=0)
    found: dict[tuple[int, int], torch.Tensor] = {}
    for step in steps:
        scheduled = tuple(
            ScheduledSequence(
                str(name),
                name,
                tuple(INVARIANT_PROMPTS[name][first:end]),
                first,
                (4 * name + 1, 4 * name + 2),
                1,
                0,
                sampling,
            )
            for name, first, end in step
        )
        batch = build_batch(StepPlan(scheduled), {}, 16)
        token_ids, positions, slots = to_tensor(batch.tokens)
        computed = executor._decoder.forward(token_ids, positions, slots, batch.paged, torch.arange(len(token_ids)))
        names = [(name, token) for name, first, end in step for token in range(first, end)]
        found |= dict(zip(names, computed, strict=True))
    return found


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
def test_batch_invariant(quantization: str, load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    """Logits have the same bits alone, together, in chunks and token by token."""
    model = write(tmp_path / "model", weights(tied=True))
    executor = load(model, "triton", batch_invariant=True, quantization=quantization)
    alone = all_logits(executor, [(0, 0, 19)], [(1, 0, 5)])
    other_ways: list[list[list[tuple[int, int, int]]]] = [
        [[(1, 0, 5), (0, 0, 19)]],
        [[(0, 0, 16), (1, 0, 1)], [(1, 1, 4), (0, 16, 17)], [(0, 17, 19), (1, 4, 5)]],
    ]
    for steps in other_ways:
        computed = all_logits(executor, *steps)
        assert computed.keys() == alone.keys()
        assert all(torch.equal(computed[key], logits) for key, logits in alone.items())
    if quantization != "none":
        return
    truth = all_logits(load(model, "reference"), [(0, 0, 19)])
    assert_close(torch.stack([alone[key] for key in truth]), torch.stack(list(truth.values())), 1e-5)


def test_groups_that_cannot_be_packed(load: Callable[..., TorchExecutor], tmp_path: Path) -> None:
    tensors = weights(tied=True)
    mlp = "model.layers.0.mlp"
    for name, shape in (("gate_proj", (96, HIDDEN)), ("up_proj", (96, HIDDEN)), ("down_proj", (HIDDEN, 96))):
        tensors[f"{mlp}.{name}.weight"] = torch.zeros(shape)
    config = {"quantization_config": QUANTIZATION_CONFIG, "intermediate_size": 96}
    model = write(tmp_path / "model", in_groups(tensors, ())[0], **config)
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.down is stored in groups of four bits and has 96 inputs"):
        load(model, "triton")
    # In eight bits it is widened.
    write(tmp_path / "wide", in_groups(tensors, ("down_proj",))[0], **config)
    assert load(tmp_path / "wide", "triton").info.kernels == "triton (w4a16)"
