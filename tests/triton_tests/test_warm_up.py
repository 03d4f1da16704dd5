"""What a step can launch was launched while loading. No kernel runs here: launches are written down instead."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_kernels.gpu import Configuration, KernelFailed
from octavo_kernels.gpu.ahead import operations
from octavo_kernels.linear import invariant
from octavo_runtime.domain import (
    BlockCopy,
    CopyKind,
    EngineConfig,
    SamplingParams,
    ScheduledSequence,
    SchedulerConfig,
    StepPlan,
)
from octavo_runtime.engine import warm_up
from octavo_runtime.engine.executor import Progress, load_executor
from octavo_runtime.engine.testing import RecordingDevice
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.errors import DeviceLost, DeviceUnavailable

HIDDEN, MLP, DIM, VOCABULARY = 64, 128, 32, 70
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "vocab_size": VOCABULARY,
    "eos_token_id": 2,
}
MAX_TOKENS, MAX_SEQUENCES = 160, 80

Launch = tuple[object, ...]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (2 * DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (DIM, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, 2 * DIM),
        f"{layer}.mlp.gate_proj.weight": (MLP, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (MLP, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, MLP),
    }
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    return tmp_path


def specialised(argument: Any, *, varies: bool) -> object:
    """What an argument is compiled for: its type, whether a pointer is aligned, what a number is divisible by."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int) and not varies:
        return "int", argument == 1, argument % 16 == 0
    return None if argument is None else type(argument)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Launch]]:
    """Of each launch all that Triton compiles anew for."""
    seen: set[Launch] = set()

    def launch(kernel: Any, grid: tuple[int, ...], configuration: Configuration, *arguments: Any) -> None:
        if 0 in grid:
            return
        varying = kernel.kwargs["do_not_specialize"] or ()
        named = zip(kernel.arg_names, arguments, strict=False)
        types = tuple(specialised(argument, varies=name in varying) for name, argument in named)
        constants = tuple(sorted(configuration.constexprs.items(), key=lambda item: item[0]))
        seen.add((kernel.__name__, constants, types, configuration.num_warps, configuration.num_stages))
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.dtype == torch.int64 and "sample" in kernel.__name__:
                argument.zero_()  # tokens

    for module in (*(module for _, module in operations()), invariant):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "triton")
    form.cache_clear()
    yield seen
    form.cache_clear()


def load(
    model: Path, progress: Progress | None = None, *, max_num_seqs: int = MAX_SEQUENCES, **settings: Any
) -> TorchExecutor:
    config = EngineConfig(
        str(model),
        device="cpu",
        **({"quantization": "w8a16"} | settings),
        kv_cache_memory=1 << 22,
        swap_space=1 << 20,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=MAX_TOKENS),
    )
    executor = load_executor(config, progress, graph_device=lambda _: RecordingDevice())
    assert isinstance(executor, TorchExecutor)
    return executor


def plans() -> Iterator[StepPlan]:
    """Steps of one prompt of any length, of any number of decodes, and of both; and copies."""

    def sequence(number: int, tokens: int, **settings: Any) -> ScheduledSequence:
        blocks = tuple(range(number, number + -(-tokens // 16)))
        return ScheduledSequence(
            "a", number, (0,) * tokens, 0, blocks, 1, 0, SamplingParams(**({"temperature": 0, "seed": 0} | settings))
        )

    for kind in CopyKind:
        yield StepPlan(copies=(BlockCopy(kind, 0, 1), BlockCopy(kind, 2, 3)))
    for tokens in (1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 64, 65, 66, 127, 128, 129, MAX_TOKENS):
        yield StepPlan((sequence(0, tokens),))
        yield StepPlan((sequence(0, tokens, temperature=0.5, top_k=3),))
    for count in range(1, MAX_SEQUENCES + 1):
        decodes = tuple(sequence(number, 1) for number in range(count))
        yield StepPlan(decodes)
        if count < MAX_SEQUENCES:
            yield StepPlan((*decodes, sequence(count, 40, temperature=0.7)))
        yield StepPlan((*decodes[:-1], sequence(count, 1, n=2)))  # not a graph's


def later(executor: TorchExecutor, launches: set[Launch]) -> set[str]:
    """Names of kernels that are launched as never while loading."""
    before = set(launches)
    for plan in plans():
        executor.execute(plan)
    return {str(launch[0]) for launch in launches - before}


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "none"},
        {"quantization": "none", "batch_invariant": True},
        {"quantization": "none", "kv_cache_dtype": "int8"},
        {"quantization": "w8a16"},
        {"quantization": "w8a8"},
        {"quantization": "w8a8", "batch_invariant": True},
    ],
    ids=str,
)
def test_no_step_launches_what_loading_did_not(settings: dict[str, Any], model: Path, launches: set[Launch]) -> None:
    executor = load(model, **settings)
    assert len({launch[0] for launch in launches}) >= 6
    assert not later(executor, launches)


@pytest.mark.parametrize("rows", [(1, 17, 33), (1, 17, 65), (33, 65)], ids=str)
def test_each_number_of_rows_is_needed(
    rows: tuple[int, ...], model: Path, launches: set[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_ROWS", rows)
    monkeypatch.setattr("octavo_runtime.engine.executor.prefill_seconds_per_token", lambda *_: 0.0)
    monkeypatch.setattr("octavo_runtime.engine.torch_executor._graphs", lambda *_: None)
    assert "int8_kernel" in later(load(model), launches)


def test_a_block_copy_is_needed(model: Path, launches: set[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_runtime.engine.torch_executor.copy_a_block", lambda _: None)
    monkeypatch.setattr("octavo_runtime.engine.executor.swap_seconds_per_block", lambda _: 0.0)
    assert later(load(model), launches) == {"copy_pairs_kernel"}


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize(("max_num_seqs", "steps"), [(MAX_SEQUENCES, 8), (20, 6), (1, 5)])
def test_progress(max_num_seqs: int, steps: int, model: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load(model, lambda *news: seen.append(news), max_num_seqs=max_num_seqs)
    assert [news for news in seen if news[0] == "kernels"] == [("kernels", done, steps) for done in range(steps + 1)]
    stages = [name for name, *_ in seen]
    assert stages.index("kernels") > stages.index("weights")
    assert stages[-1] == "kv cache"


@pytest.mark.usefixtures("launches")
def test_a_kernel_that_does_not_compile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kernel: Any, *_: Any) -> None:
        raise KernelFailed(f"the Triton kernel {kernel.__name__} does not compile for this GPU")

    monkeypatch.setattr("octavo_kernels.gated_activation.triton.launch", fail)
    with pytest.raises(DeviceUnavailable, match="the Triton kernel silu_mul_kernel does not compile") as raised:
        load(model)
    assert "OCTAVO_KERNELS=reference" in raised.value.hint


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("by_device", [False, True])
def test_a_kernel_that_is_not_started_ends_the_engine(
    by_device: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loaded engine, also in the step after: nothing takes a kernel's place."""
    executor = load(model)

    def fail(kernel: Any, *_: Any) -> None:
        raise KernelFailed(f"the Triton kernel {kernel.__name__} was not started", by_device=by_device)

    monkeypatch.setattr("octavo_kernels.gated_activation.triton.launch", fail)
    for plan in itertools.islice((plan for plan in plans() if plan.sequences), 3):
        with pytest.raises(DeviceLost if by_device else DeviceUnavailable, match="silu_mul_kernel was not") as raised:
            executor.execute(plan)
        assert "OCTAVO_KERNELS=reference" in raised.value.hint
