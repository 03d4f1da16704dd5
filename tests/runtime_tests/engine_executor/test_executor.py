from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_runtime.domain import EngineConfig, ScheduledSequence, StepPlan, StepResult
from octavo_runtime.engine import executor as module
from octavo_runtime.engine import memory
from octavo_runtime.engine.executor import TorchExecutor, load_executor
from octavo_runtime.errors import (
    BadFlags,
    BadWeights,
    DeviceLost,
    DeviceUnavailable,
    ModelNotFound,
    NotEnoughMemoryForKV,
    NotEnoughMemoryForWeights,
)

WriteModel = Callable[..., Path]
BuildSequence = Callable[..., ScheduledSequence]
BLOCK = 2048


def load(directory: Path, **changes: Any) -> TorchExecutor:
    return load_executor(replace(EngineConfig(str(directory), device="cpu", kv_cache_memory=16 * BLOCK), **changes))


def caches(executor: TorchExecutor) -> Iterator[torch.Tensor]:
    for layer in executor._decoder._layers:
        yield layer.attention.k_cache
        yield layer.attention.v_cache


def test_load_executor_info(write_model: WriteModel) -> None:
    info = load(write_model()).info
    assert (info.num_blocks, info.block_size, info.max_model_len) == (16, 16, 96)
    assert (info.vocab_size, info.eos_token_ids) == (30, (2,))
    assert (info.device, info.dtype, info.kv_cache_dtype) == ("cpu", "float32", "float32")


def test_load_executor_fits_the_length(write_model: WriteModel) -> None:
    assert load(write_model(), kv_cache_memory=3 * BLOCK + 1).info.max_model_len == 48
    assert load(write_model(), kv_cache_memory=3 * BLOCK, kv_cache_dtype="bfloat16").info.max_model_len == 96
    assert load(write_model(), max_model_len=33).info.max_model_len == 33


def test_load_executor_progress(write_model: WriteModel) -> None:
    seen: list[tuple[str, int, int]] = []
    config = EngineConfig(str(write_model()), device="cpu", kv_cache_memory=BLOCK)
    load_executor(config, lambda *news: seen.append(news))
    weights = [news for news in seen if news[0] == "weights"]
    assert weights[-1][1] == weights[-1][2] > 0
    assert seen[-1] == ("kv cache", BLOCK, BLOCK)


def test_execute_nothing(write_model: WriteModel) -> None:
    assert load(write_model()).execute(StepPlan(())) == StepResult({}, {})


def test_execute_batched_as_alone(write_model: WriteModel, sequence: BuildSequence) -> None:
    executor = load(write_model(), block_size=8)
    prompts = {"a": [3, 4, 5], "b": [6] * 17, "c": [7, 8, 9, 10, 11, 12, 13, 14]}
    tables = {"a": (9, 1), "b": (4, 0, 7), "c": (2, 5)}
    drawn: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"temperature": 1.0, "seed": 4},
        "c": {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    }
    together = executor.execute(StepPlan(tuple(sequence(n, p, 0, tables[n], **drawn[n]) for n, p in prompts.items())))
    for name, prompt in prompts.items():
        alone = executor.execute(StepPlan((sequence(name, prompt, 0, (12, 13, 14), **drawn[name]),)))
        assert alone.sampled == {name: together.sampled[name]}


def test_execute_not_finite_ends_one_request(write_model: WriteModel, sequence: BuildSequence) -> None:
    executor = load(write_model())
    sick, well = sequence("sick", [3, 4], 0, (5,)), sequence("well", [3, 4], 0, (6,))
    executor.execute(StepPlan((sick, well)))
    for cache in caches(executor):
        cache[5, 0] = torch.nan
    step = StepPlan((sequence("sick", [7], 2, (5,)), sequence("well", [7], 2, (6,))))
    result = executor.execute(step)
    assert result.failed.keys() == {"sick"}
    assert result.sampled.keys() == {"well"}
    # The next owner of the sick block sees nothing of what is left in it, alone or beside a longer sequence.
    long = sequence("long", [3] * 30, 0, (6, 7))
    clean = executor.execute(StepPlan((sequence("clean", [8, 9], 0, (1,)), long)))
    reused = executor.execute(StepPlan((sequence("clean", [8, 9], 0, (5,)), long)))
    assert reused == clean
    decode = executor.execute(StepPlan((sequence("clean", [10], 2, (1,)), sequence("long", [4], 30, (6, 7)))))
    assert executor.execute(StepPlan((sequence("clean", [10], 2, (5,)), sequence("long", [4], 30, (6, 7))))) == decode


@pytest.mark.parametrize("temperature", [0, 1])
def test_execute_never_samples_padding(
    write_model: WriteModel, tensors: dict[str, torch.Tensor], sequence: BuildSequence, temperature: float
) -> None:
    # The tokenizer knows 20 of 30 ids, and the model would like 25 best.
    tensors["lm_head.weight"][25] = tensors["lm_head.weight"].mean(0) * 1000
    tensors["lm_head.weight"][26] = -tensors["lm_head.weight"][25]
    directory = write_model()
    assert load(directory).execute(StepPlan((sequence("a", [3], 0, (0,)),))).sampled["a"] in {25, 26}
    vocab = {f"t{number}": number for number in range(20)}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    executor = load(directory)
    assert executor.info.vocab_size == 20
    for token in range(3, 20):
        plan = StepPlan((sequence("a", [token], 0, (0,), temperature=temperature, seed=token),))
        assert executor.execute(plan).sampled["a"] < 20


def test_execute_reference_kernels_agree(
    write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [
        StepPlan((sequence("a", [3, 4, 5, 6], 0, (0,)), sequence("b", [9] * 20, 0, (1, 2)))),
        StepPlan((sequence("a", [7], 4, (0,)), sequence("b", [8, 9], 20, (1, 2), temperature=1.0, seed=3))),
    ]
    results = {}
    for name in ("cpu", "reference"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, name)
        form.cache_clear()
        executor = load(write_model())
        results[name] = [executor.execute(plan) for plan in plans]
    form.cache_clear()
    assert results["cpu"] == results["reference"]


def test_execute_device_lost(write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load(write_model())

    def fail(*_: Any) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(executor._decoder, "forward", fail)
    with pytest.raises(DeviceLost, match="ECC"):
        executor.execute(StepPlan((sequence("a", [3], 0, (0,)),)))


def test_load_executor_no_gpu(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="no usable GPU"):
        load(write_model(), device="cuda")
    assert load(write_model(), device="auto").info.device == "cpu"


def test_load_executor_no_memory_for_weights(
    write_model: WriteModel, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    monkeypatch.setattr(module, "load_weights", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(NotEnoughMemoryForWeights, match="and 1000 are available on cpu") as raised:
        load(write_model())
    assert raised.value.needed == sum(tensor.numel() * 4 for tensor in tensors.values())
    assert raised.value.available == 1000
    assert "bfloat16" in raised.value.hint


def test_load_executor_no_memory_for_kv(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_weights", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(NotEnoughMemoryForKV, match=f"takes {6 * BLOCK} bytes, and there are {5 * BLOCK}") as raised:
        load(write_model(), max_model_len=96, kv_cache_memory=5 * BLOCK)
    assert "--max-model-len 80" in raised.value.hint


def test_load_executor_kv_more_than_there_is(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 10 * BLOCK)
    with pytest.raises(NotEnoughMemoryForKV, match=f"with the weights loaded {10 * BLOCK} are available") as raised:
        load(write_model(), kv_cache_memory=11 * BLOCK)
    assert (raised.value.needed, raised.value.available) == (11 * BLOCK, 10 * BLOCK)
    assert f"--kv-cache-memory {9 * BLOCK} or less" in raised.value.hint


def test_load_executor_bad_directory(write_model: WriteModel, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load(tmp_path / "nowhere")
    directory = write_model()
    with pytest.raises(BadFlags, match="--max-model-len 97 is more than the 96"):
        load(directory, max_model_len=97)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BadWeights, match="truncated"):
        load(directory)
