"""`octavo plan` and the engine: what is planned from headers is what is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_kernels.native.arrays import Array, from_tensor
from octavo_runtime.domain import EngineConfig
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.native_executor import NativeExecutor
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.loading.plan import plan_model
from octavo_runtime.loading.spec import DecoderSpec
from octavo_runtime.models.native_decoder import NativeDecoder, open_native

BLOCK = 2048


def arrays(thing: object) -> Iterator[Array]:
    """All weights of a decoder's layers, but not the KV cache."""
    if isinstance(thing, torch.Tensor):
        yield from_tensor(thing)
    elif isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, list):
        for each in thing:
            yield from arrays(each)
    elif is_dataclass(thing):
        for field in fields(thing):
            if field.name not in {"k_cache", "v_cache"}:
                yield from arrays(getattr(thing, field.name))


def weights_allocated(executor: NativeExecutor | TorchExecutor) -> int:
    """Bytes of the memory behind all weights, each counted once."""
    decoder = executor._decoder
    roots: list[object]
    if isinstance(decoder, NativeDecoder):
        roots = list(decoder._step._kept[:4])  # layers, norm, head, embedding
    else:
        roots = [decoder._embedding, decoder._norm, decoder._head, *decoder._layers]
    found = [array for root in roots for array in arrays(root)]
    return sum({array.ctypes.data: array.nbytes for array in sorted(found, key=lambda each: each.nbytes)}.values())


def runs_native(spec: DecoderSpec, config: EngineConfig) -> bool:
    return open_native(spec, config, threads=1) is not None


def check_agrees(config: EngineConfig, padding: float = 0.01) -> None:
    """Compares both.

    Args:
        config: Of both.
        padding: The share that they may take beside, since panels are filled up to 32 rows: much in a model of 30 words.
    """
    plan = plan_model(Path(config.model), config, runs_native=runs_native)
    executor = load_executor(config)
    native = isinstance(executor._decoder, NativeDecoder)
    assert executor.info.weights_bytes == plan.weights_bytes
    assert weights_allocated(executor) == pytest.approx(executor.info.weights_bytes, rel=padding if native else 0.01)
    pool = executor.pool
    assert plan.kv_cache_bytes is not None
    assert pool.device.nbytes == pytest.approx(plan.kv_cache_bytes, rel=0.01)
    assert pool.host.nbytes == plan.num_host_blocks * executor.info.block_bytes
    info = executor.info
    assert (info.num_blocks, info.max_model_len, info.num_host_blocks) == (
        plan.num_blocks,
        plan.max_model_len,
        plan.num_host_blocks,
    )
    assert info.block_bytes == plan.kv_bytes_per_token * config.block_size
    assert (info.dtype, info.kv_cache_dtype) == (plan.dtype, plan.kv_cache_dtype)


@pytest.mark.parametrize("kernels", ["native", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_plan_agrees(
    kernels: str,
    dtype: str,
    tied: bool,
    write_model: Callable[..., Path],
    tensors: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
    if tied:
        del tensors["lm_head.weight"]
    model = write_model(tie_word_embeddings=tied)
    check_agrees(
        EngineConfig(str(model), device="cpu", dtype=dtype, kv_cache_memory=9 * BLOCK + 3, swap_space=5 * BLOCK + 1),
        padding=0.5,
    )


def test_plan_agrees_int8_kv_cache(write_model: Callable[..., Path]) -> None:
    config = EngineConfig(
        str(write_model()), device="cpu", kv_cache_dtype="int8", kv_cache_memory=9 * BLOCK, swap_space=5 * BLOCK
    )
    check_agrees(config, padding=0.5)


@pytest.mark.model
def test_plan_agrees_for_a_real_model(smollm2: Path) -> None:
    check_agrees(EngineConfig(str(smollm2), device="cpu", kv_cache_memory=200 << 20, swap_space=30 << 20))


@pytest.mark.parametrize(("quantization", "tied"), [("w8a16", False), ("w8a16", True), ("w8a8", True)])
def test_plan_agrees_quantised(
    quantization: str,
    tied: bool,
    write_model: Callable[..., Path],
    tensors: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "native")
    if tied:
        del tensors["lm_head.weight"]
    model = write_model(tie_word_embeddings=tied)
    config = EngineConfig(str(model), device="cpu", quantization=quantization, kv_cache_memory=9 * BLOCK)
    check_agrees(config, padding=0.5)


@pytest.mark.model
def test_plan_agrees_quantised_for_a_real_model(smollm2: Path) -> None:
    config = EngineConfig(str(smollm2), device="cpu", quantization="w8a16", kv_cache_memory=200 << 20)
    check_agrees(config)
