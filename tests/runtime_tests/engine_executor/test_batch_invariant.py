"""A request's logits are the same to the last bit, whatever else runs and however its own tokens come to be computed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_kernels.native.arrays import Array
from octavo_runtime.domain import EngineConfig, Request, SamplingParams, ScheduledSequence, SchedulerConfig, StepResult
from octavo_runtime.engine import native_executor as module
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.gpu import require_invariant_kernels
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.engine.sampler import SamplingForm, sample_tokens
from octavo_runtime.errors import BadFlags
from octavo_runtime.loading.plan import check_batch_invariant

WriteModel = Callable[..., Path]
BLOCK = 1024  # bytes, of 8 tokens in float32
BLOCKS = {"float32": BLOCK, "bfloat16": 512, "int8": 384}
OUTPUT = 30
Logits = dict[tuple[str, int], Array]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Logits:
    """By request and number of output tokens so far, the logits that the next one was taken from."""
    logits_of: Logits = {}

    def recorded(logits: Array, sequences: Sequence[ScheduledSequence], form: SamplingForm) -> StepResult:
        rows = iter(logits)
        for each in sequences:
            if each.num_samples and each.number >= 0:
                place, row = (each.request_id, each.num_generated), next(rows).copy()
                assert np.array_equal(logits_of.setdefault(place, row), row), f"{place} has other logits"
        return sample_tokens(logits, sequences, form)

    monkeypatch.setattr(module, "sample_tokens", recorded)
    return logits_of


PROMPTS = {
    str(number): tuple(random.Random(number).randrange(3, 30) for _ in range(length))
    for number, length in enumerate((1, 7, 9, 25, 40, 61))
}


def run(
    model: Path, seen: Logits, *, apart: bool = False, twice: bool = False, blocks: int = 100, **settings: Any
) -> EngineCore:
    """Runs all prompts, together or one after the other, with so many KV blocks; checks that each logits were seen."""
    block_bytes = BLOCKS[settings.get("kv_cache_dtype", "float32")]
    scheduler = SchedulerConfig(
        max_num_seqs=8,
        admission="max-utilization",
        max_num_batched_tokens=settings.pop("max_num_batched_tokens", 256),
        async_scheduling=settings.pop("async_scheduling", False),
    )
    config = EngineConfig(
        str(model), device="cpu", kv_cache_memory=blocks * block_bytes, block_size=8, batch_invariant=True
    )
    config = replace(config, scheduler=scheduler, **settings)
    executor = load_executor(config)
    assert executor.info.num_blocks == blocks
    executor.info = replace(executor.info, swap_seconds_per_block=0.0)  # to swap pays
    core = EngineCore(executor, config)
    for _ in range(2 if twice else 1):
        for name, prompt in PROMPTS.items():
            core.add(Request(name, prompt, SamplingParams(temperature=0, seed=0, max_tokens=OUTPUT, ignore_eos=True)))
            while apart and core.has_work:
                core.step()
        while core.has_work:
            core.step()
    assert seen.keys() == {(name, number) for name in PROMPTS for number in range(OUTPUT)}
    return core


@pytest.mark.parametrize(
    ("quantization", "kv_cache_dtype"),
    [
        *(("none", "float32"), ("none", "bfloat16"), ("none", "int8")),
        *(("w8a16", "float32"), ("w8a16", "bfloat16"), ("w8a8", "bfloat16")),
    ],
)
def test_logits_are_the_same_however_they_are_computed(
    write_model: WriteModel, seen: Logits, quantization: str, kv_cache_dtype: str
) -> None:
    model = write_model()
    mode: dict[str, Any] = {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    run(model, seen, apart=True, **mode)
    run(model, seen, **mode)
    run(model, seen, async_scheduling=True, **mode)
    run(model, seen, max_num_batched_tokens=8, **mode)  # prompts in chunks, beside decodes
    cached = run(model, seen, twice=True, **mode).idle().stats
    assert cached.prefix_hits > 0
    preempted = run(model, seen, blocks=14, **mode).idle().stats
    assert preempted.num_preemptions > 0
    assert preempted.num_recomputed_tokens > 0
    swapped = run(model, seen, blocks=14, swap_space=40 * BLOCK, **mode).idle().stats
    assert swapped.num_swapped_in > 0


@pytest.mark.parametrize("form", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("flag", "setting"),
    [("--batch-invariant", {"batch_invariant": True}), ("--kv-cache-dtype int8", {"kv_cache_dtype": "int8"})],
)
def test_load_executor_without_native_kernels_that_a_flag_needs(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch, form: str, flag: str, setting: dict[str, Any]
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, form)
    with pytest.raises(BadFlags, match=f"{flag} needs the native kernels, but {ENVIRONMENT_VARIABLE}={form}"):
        load_executor(EngineConfig(str(write_model()), device="cpu", **setting))


def test_check_batch_invariant_on_a_gpu() -> None:
    config = EngineConfig("model", device="cuda", batch_invariant=True)
    check_batch_invariant(config)
    check_batch_invariant(replace(config, quantization="w8a8"))
    with pytest.raises(BadFlags, match="--batch-invariant with weights in w8a16 on a GPU"):
        check_batch_invariant(replace(config, quantization="w8a16"))


def test_require_invariant_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    require_invariant_kernels()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "reference")
    with pytest.raises(BadFlags, match="--batch-invariant needs the Triton kernels, but OCTAVO_KERNELS=reference"):
        require_invariant_kernels()
