from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, KernelFailed, form
from octavo_kernels.native import NativeUnavailable
from octavo_runtime.domain import BlockCopy, CopyKind, EngineConfig, ScheduledSequence, StepPlan, StepResult
from octavo_runtime.engine import devices, native_executor, torch_executor
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.native_executor import NativeExecutor
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.errors import (
    BadFlags,
    BadWeights,
    DeviceLost,
    DeviceUnavailable,
    ModelNotFound,
    NotEnoughMemoryForKV,
    NotEnoughMemoryForWeights,
)
from octavo_runtime.loading.weights import StoredWeights
from octavo_runtime.models import native_decoder

WriteModel = Callable[..., Path]
BuildSequence = Callable[..., ScheduledSequence]
BLOCK = 2048


def load(directory: Path, **changes: Any) -> NativeExecutor | TorchExecutor:
    return load_executor(replace(EngineConfig(str(directory), device="cpu", kv_cache_memory=16 * BLOCK), **changes))


def without_time(result: StepResult) -> StepResult:
    return replace(result, seconds=0.0)


def caches(executor: NativeExecutor | TorchExecutor) -> Iterator[Any]:
    for keys, values in executor.pool.device:
        yield keys
        yield values


def test_load_executor_info(write_model: WriteModel) -> None:
    info = load(write_model()).info
    assert (info.num_blocks, info.block_size, info.max_model_len) == (16, 16, 96)
    assert (info.vocab_size, info.eos_token_ids) == (30, (2,))
    assert (info.device, info.dtype, info.kv_cache_dtype) == ("cpu", "float32", "float32")
    assert (info.max_num_blocks, info.num_host_blocks, info.block_bytes) == (16, 0, BLOCK)
    assert info.prefill_seconds_per_token > 0
    assert info.swap_seconds_per_block == 0


def test_load_executor_fits_the_length(write_model: WriteModel) -> None:
    assert load(write_model(), kv_cache_memory=3 * BLOCK + 1).info.max_model_len == 48
    assert load(write_model(), kv_cache_memory=3 * BLOCK, kv_cache_dtype="bfloat16").info.max_model_len == 96
    assert load(write_model(), max_model_len=33).info.max_model_len == 33


def test_load_executor_host_tier_and_room_to_grow(write_model: WriteModel) -> None:
    info = load(write_model(), kv_cache_memory_max=40 * BLOCK + 1, swap_space=5 * BLOCK + 1).info
    assert (info.num_blocks, info.max_num_blocks, info.num_host_blocks) == (16, 40, 5)
    assert 0 < info.swap_seconds_per_block < 0.1


def test_load_executor_swap_space_of_less_than_a_block(write_model: WriteModel) -> None:
    with pytest.raises(BadFlags, match=f"--swap-space {BLOCK - 1} is less than one KV block of {BLOCK} bytes"):
        load(write_model(), swap_space=BLOCK - 1)


def test_load_executor_less_room_to_grow_than_at_first(write_model: WriteModel) -> None:
    with pytest.raises(BadFlags, match=f"--kv-cache-memory-max {BLOCK} is less than the {16 * BLOCK} bytes"):
        load(write_model(), kv_cache_memory_max=BLOCK)


def test_load_executor_more_room_to_grow_than_addresses(write_model: WriteModel) -> None:
    with pytest.raises(NotEnoughMemoryForKV, match="bytes of addresses for KV blocks cannot be reserved") as raised:
        load(write_model(), kv_cache_memory_max=1 << 50)
    assert raised.value.needed == 1 << 50


def test_load_executor_growth_on_a_gpu(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredWeights, "read", lambda *_: pytest.fail("it must not come so far"))
    for first in (None, 16 * BLOCK):
        with pytest.raises(BadFlags, match="on a GPU: there the KV cache keeps the size"):
            load(write_model(), device="cuda", kv_cache_memory=first, kv_cache_memory_max=17 * BLOCK)


def test_load_executor_progress(write_model: WriteModel) -> None:
    seen: list[tuple[str, int, int]] = []
    config = EngineConfig(str(write_model()), device="cpu", kv_cache_memory=BLOCK)
    load_executor(config, lambda *news: seen.append(news))
    weights = [news for news in seen if news[0] == "weights"]
    assert weights[-1][1] == weights[-1][2] > 0
    assert seen[-1] == ("kv cache", BLOCK, BLOCK)


def test_execute_nothing(write_model: WriteModel) -> None:
    result = load(write_model()).execute(StepPlan())
    assert (result.tokens, result.logprobs, result.failed) == ((), (), {})


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
    for (name, prompt), token in zip(prompts.items(), together.tokens, strict=True):
        alone = executor.execute(StepPlan((sequence(name, prompt, 0, (12, 13, 14), **drawn[name]),)))
        assert list(alone.tokens) == [token]


def test_execute_not_finite_ends_one_request(write_model: WriteModel, sequence: BuildSequence) -> None:
    executor = load(write_model())
    sick, well = sequence("sick", [3, 4], 0, (5,)), sequence("well", [3, 4], 0, (6,))
    executor.execute(StepPlan((sick, well)))
    for cache in caches(executor):
        cache[5, 0] = torch.nan
    step = StepPlan((sequence("sick", [7], 2, (5,)), sequence("well", [7], 2, (6,))))
    result = executor.execute(step)
    assert result.failed.keys() == {0}
    assert len(result.tokens) == 2
    # What was planned ahead for the sick one runs into nothing.
    fed = [sequence(name, [0], 3, (block,), feeds=True) for name, block in (("sick", 5), ("well", 6))]
    assert executor.execute(StepPlan(tuple(fed))).failed.keys() == {0}
    # The next owner of the sick block sees nothing of what is left in it, alone or beside a longer sequence.
    long = sequence("long", [3] * 30, 0, (6, 7))
    clean = executor.execute(StepPlan((sequence("clean", [8, 9], 0, (1,)), long)))
    reused = executor.execute(StepPlan((sequence("clean", [8, 9], 0, (5,)), long)))
    assert without_time(reused) == without_time(clean)
    decode = executor.execute(StepPlan((sequence("clean", [10], 2, (1,)), sequence("long", [4], 30, (6, 7)))))
    again = executor.execute(StepPlan((sequence("clean", [10], 2, (5,)), sequence("long", [4], 30, (6, 7)))))
    assert without_time(again) == without_time(decode)


@pytest.mark.parametrize("temperature", [0, 1])
def test_execute_never_samples_padding(
    write_model: WriteModel, tensors: dict[str, torch.Tensor], sequence: BuildSequence, temperature: float
) -> None:
    # The tokenizer knows 20 of 30 ids, and the model would like 25 best.
    tensors["lm_head.weight"][25] = tensors["lm_head.weight"].mean(0) * 1000
    tensors["lm_head.weight"][26] = -tensors["lm_head.weight"][25]
    directory = write_model()
    assert load(directory).execute(StepPlan((sequence("a", [3], 0, (0,)),))).tokens[0] in {25, 26}
    vocab = {f"t{number}": number for number in range(20)}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    executor = load(directory)
    assert executor.info.vocab_size == 20
    for token in range(3, 20):
        plan = StepPlan((sequence("a", [token], 0, (0,), temperature=temperature, seed=token),))
        assert executor.execute(plan).tokens[0] < 20


def test_execute_feeds_what_was_sampled(write_model: WriteModel, sequence: BuildSequence) -> None:
    executor = load(write_model())
    prompts = {"a": [3, 4, 5], "b": [6, 7]}
    tables = {"a": (1, 2), "b": (0, 3)}
    first = executor.execute(StepPlan(tuple(sequence(n, p, 0, tables[n], seed=n == "a") for n, p in prompts.items())))
    tokens = dict(zip(prompts, first.tokens, strict=True))

    def decode(names: str, **fields: Any) -> StepPlan:
        return StepPlan(
            tuple(
                sequence(
                    n, [fields.get("token", tokens[n])], len(prompts[n]), tables[n], feeds=fields.get("feeds", False)
                )
                for n in names
            )
        )

    fed = executor.execute(decode("ba", token=0, feeds=True))
    # Known beforehand it is the same, and where it is written it can be written again.
    assert without_time(executor.execute(decode("ba"))) == without_time(fed)
    executor.execute(decode("b"))
    with pytest.raises(KeyError):
        executor.execute(decode("a", token=0, feeds=True))


def test_execute_copies_before_it_computes(write_model: WriteModel, sequence: BuildSequence) -> None:
    executor = load(write_model(), swap_space=4 * BLOCK)
    for cache in caches(executor):
        cache.fill(torch.nan)
    prompt = list(range(3, 23))
    executor.execute(StepPlan((sequence("a", prompt, 0, (4, 5)),)))
    truth = executor.execute(StepPlan((sequence("a", [9], 20, (4, 5)),)))
    # Copy on write of the tail, then out, over the place it was in, and back to others.
    executor.execute(StepPlan((sequence("a", prompt, 0, (4, 5)),), (BlockCopy(CopyKind.DEVICE, 5, 7),)))
    executor.execute(StepPlan((sequence("a", prompt[16:], 16, (4, 7)),)))
    assert without_time(executor.execute(StepPlan((sequence("a", [9], 20, (4, 7)),)))) == without_time(truth)
    copies = (
        BlockCopy(CopyKind.OUT, 4, 3),
        BlockCopy(CopyKind.OUT, 7, 0),
        BlockCopy(CopyKind.DEVICE, 9, 4),  # what is not a number
        BlockCopy(CopyKind.IN, 3, 11),
        BlockCopy(CopyKind.IN, 0, 9),
    )
    executor.execute(StepPlan(copies=copies))
    assert without_time(executor.execute(StepPlan((sequence("a", [9], 20, (11, 9)),)))) == without_time(truth)


def test_execute_in_another_thread_has_the_threads_of_loading(
    write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    executor = load(write_model())
    calls: list[int] = []
    monkeypatch.setattr(torch_executor, "set_threads", lambda: calls.append(threading.get_ident()))
    plan = StepPlan((sequence("a", [3], 0, (0,)),))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(threading.get_ident).result()
        for _ in range(2):
            pool.submit(executor.execute, plan).result()
    executor.execute(plan)
    assert calls == [other, threading.get_ident()], "once whenever the thread is another one; it was loaded in this one"


def test_execute_reports_its_time(write_model: WriteModel, sequence: BuildSequence) -> None:
    result = load(write_model()).execute(StepPlan((sequence("a", [3], 0, (0,)),)))
    assert 0 < result.seconds < 5


def test_execute_forms_of_kernels_agree(
    write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [
        StepPlan((sequence("a", [3, 4, 5, 6], 0, (0,)), sequence("b", [9] * 20, 0, (1, 2)))),
        StepPlan((sequence("a", [7], 4, (0,)), sequence("b", [8, 9], 20, (1, 2), temperature=1.0, seed=3))),
    ]
    results = {}
    for name in ("native", "cpu", "reference"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, name)
        form.cache_clear()
        executor = load(write_model())
        assert executor.info.kernels.startswith(name)
        results[name] = [without_time(executor.execute(plan)) for plan in plans]
    form.cache_clear()
    assert results["native"] == results["cpu"] == results["reference"]


@pytest.mark.parametrize("forced", ["native", None])
def test_load_executor_heads_without_native_form(
    forced: str | None, write_model: WriteModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, forced or "")
    narrow = {"num_attention_heads": 4, "num_key_value_heads": 2}
    why = "the model's heads are 4 wide, and the native kernels take multiples of 8"
    if forced:
        with pytest.raises(BadFlags, match=f"{ENVIRONMENT_VARIABLE}=native, but {why}"):
            load(write_model(**narrow))
        return
    assert load(write_model(**narrow)).info.kernels == "cpu"
    assert f"running on torch's kernels, which give the same tokens, slower: {why}" in caplog.text


def test_load_executor_without_native_library(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(_threads: int) -> NoReturn:
        raise NativeUnavailable("there is none")

    monkeypatch.setattr(native_decoder, "Context", missing)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert load(write_model()).info.kernels == "cpu"
    assert "slower: there is none" in caplog.text


@pytest.mark.parametrize("quantization", ["w8a16", "w8a8"])
@pytest.mark.parametrize("forced", ["cpu", "reference"])
def test_load_executor_quantised_with_another_form(
    forced: str, quantization: str, write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, forced)
    said = f"--quantization {quantization} needs the native kernels, but {ENVIRONMENT_VARIABLE}={forced}"
    with pytest.raises(BadFlags, match=said):
        load(write_model(), quantization=quantization)


def test_load_executor_quantised_without_native_library(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_threads: int) -> NoReturn:
        raise NativeUnavailable("there is none")

    monkeypatch.setattr(native_decoder, "Context", missing)
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    with pytest.raises(BadFlags, match="--quantization w8a16 needs the native kernels, but there is none"):
        load(write_model(), quantization="w8a16")


def test_load_executor_quantised_heads_without_native_form(write_model: WriteModel) -> None:
    with pytest.raises(BadFlags, match="w8a16 needs the native kernels, but the model's heads are 4 wide"):
        load(write_model(num_attention_heads=4, num_key_value_heads=2), quantization="w8a16")


def test_load_executor_unknown_form(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "fast")
    with pytest.raises(BadFlags, match=f"{ENVIRONMENT_VARIABLE}=fast, but on cpu there are only the forms native, cpu"):
        load(write_model())


def test_execute_device_lost(write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    executor = load(write_model())

    def fail(*_: Any) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(executor._decoder, "forward", fail)
    with pytest.raises(DeviceLost, match="ECC"):
        executor.execute(StepPlan((sequence("a", [3], 0, (0,)),)))


def test_execute_kernel_does_not_compile(
    write_model: WriteModel, sequence: BuildSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    executor = load(write_model())

    def fail(*_: Any) -> torch.Tensor:
        raise KernelFailed("the Triton kernel decode_kernel does not compile for this GPU")

    monkeypatch.setattr(executor._decoder, "forward", fail)
    with pytest.raises(DeviceUnavailable, match="decode_kernel does not compile") as caught:
        executor.execute(StepPlan((sequence("a", [3], 0, (0,)),)))
    assert "OCTAVO_KERNELS=reference" in caught.value.hint


def test_load_executor_gpu_that_the_kernels_are_not_for(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    with pytest.raises(DeviceUnavailable, match=r"compute capability 7\.0"):
        load(write_model(), device="cuda")


def test_load_executor_no_gpu(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="no usable GPU"):
        load(write_model(), device="cuda")
    monkeypatch.setattr(devices, "gpu_driver", lambda: True)
    with pytest.raises(DeviceUnavailable, match="no usable GPU"):
        load(write_model(), device="auto")  # never a silent fall to the CPU
    monkeypatch.setattr(devices, "gpu_driver", lambda: False)
    assert load(write_model(), device="auto").info.device == "cpu"


def test_load_executor_no_memory_for_weights(
    write_model: WriteModel, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_executor, "available_memory", lambda: 1000)
    monkeypatch.setattr(StoredWeights, "read", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(NotEnoughMemoryForWeights, match="and 1000 are available on cpu") as raised:
        load(write_model())
    assert raised.value.needed == sum(tensor.numel() * 4 for tensor in tensors.values())
    assert raised.value.available == 1000
    assert "bfloat16" in raised.value.hint


def test_load_executor_no_memory_for_kv(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredWeights, "read", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(NotEnoughMemoryForKV, match=f"takes {6 * BLOCK} bytes, and there are {5 * BLOCK}") as raised:
        load(write_model(), max_model_len=96, kv_cache_memory=5 * BLOCK)
    assert "--max-model-len 80" in raised.value.hint


def test_load_executor_kv_more_than_there_is(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_executor, "available_memory", lambda: 10 * BLOCK)
    with pytest.raises(NotEnoughMemoryForKV, match=f"with the weights loaded {10 * BLOCK} are available") as raised:
        load(write_model(), kv_cache_memory=11 * BLOCK)
    assert (raised.value.needed, raised.value.available) == (11 * BLOCK, 10 * BLOCK)
    assert f"--kv-cache-memory {9 * BLOCK} or less" in raised.value.hint


def test_load_executor_both_tiers_more_than_there_is(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_executor, "available_memory", lambda: 30 * BLOCK)
    with pytest.raises(NotEnoughMemoryForKV, match=f"{16 * BLOCK} bytes and the swap space {15 * BLOCK}") as raised:
        load(write_model(), swap_space=15 * BLOCK)
    assert (raised.value.needed, raised.value.available) == (31 * BLOCK, 30 * BLOCK)


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


WITHOUT_TORCH = """
import sys
from pathlib import Path
sys.modules["torch"] = None  # as if it were not installed
from octavo_runtime.domain import EngineConfig, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.errors import DeviceUnavailable

def plan(computed, tokens, sampling, num_samples=1):
    return StepPlan((ScheduledSequence("a", 0, tokens, computed, (0, 1), num_samples, 0, sampling),))

config = EngineConfig(sys.argv[1], device=sys.argv[2], quantization=sys.argv[3], kv_cache_memory=1 << 20)
try:
    executor = load_executor(config)
except DeviceUnavailable as error:
    sys.exit(f"{error} {error.hint}")
drawn = SamplingParams(temperature=1, top_k=5, top_p=0.9, seed=0)
beams = SamplingParams(n=2, use_beam_search=True, seed=0)
results = [executor.execute(plan(0, (3, 4, 5), drawn)), executor.execute(plan(3, (6,), beams, 4))]
assert [len(result.tokens) for result in results] == [1, 4]
assert not any(result.failed for result in results)
print(executor.info.kernels)
"""


def run_without_torch(
    model: Path, device: str = "cpu", quantization: str = "none", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(model), device, quantization],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.parametrize("quantization", ["none", "w8a16"])
def test_load_executor_without_torch(write_model: WriteModel, quantization: str) -> None:
    done = run_without_torch(write_model(), quantization=quantization)
    assert done.stdout.startswith("native ("), done.stderr


def test_load_executor_without_torch_where_it_is_needed(write_model: WriteModel) -> None:
    on_gpu = run_without_torch(write_model(), "cuda")
    assert "torch is not installed, and without it nothing runs here on cuda" in on_gpu.stderr
    assert "Install octavo[torch], or use --device cpu." in on_gpu.stderr
    forced = run_without_torch(write_model(), OCTAVO_KERNELS="cpu")
    assert "torch is not installed, and without it nothing runs here on cpu" in forced.stderr
