"""Executes step plans on a CPU with the native kernels. Nothing here imports torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from octavo_kernels.native import Context, without_amx
from octavo_kernels.native.arrays import Array
from octavo_kernels.sampling.native import NativeSampling
from octavo_runtime.domain import EngineInfo, StepPlan, StepResult
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.kv_cache import KVPool
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.engine.memory import (
    keep_freed_memory,
    require_room_for_kv,
    require_room_for_weights,
    return_freed_memory,
)
from octavo_runtime.engine.model_files import ModelFiles, Progress
from octavo_runtime.engine.sampler import sample_tokens, sampled_tokens
from octavo_runtime.loading.plan import DEFAULT_CPU_KV_MEMORY, size_kv, storage_dtype
from octavo_runtime.loading.weight_bytes import held_bytes, most_bytes
from octavo_runtime.models.native_decoder import NativeDecoder

__all__ = ["NativeExecutor", "load_native"]


class NativeExecutor:
    """A decoder and its KV cache on a CPU.

    Args:
        context: The library and its threads.
        decoder: The model.
        pool: Its KV cache.
        info: Its limits.

    Attributes:
        pool: The KV cache.
        info: Its limits.
    """

    def __init__(self, context: Context, decoder: NativeDecoder, pool: KVPool, info: EngineInfo) -> None:
        self._sampling = NativeSampling(context)
        self._decoder = decoder
        self.pool = pool
        self.info = info
        self._sampled: Mapping[int, int] = {}  # by the last step: sequence number -> token

    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step."""
        began = time.perf_counter()
        self.pool.copy(plan.copies)
        if plan.num_blocks is not None:
            self.pool.resize(plan.num_blocks)
        result = sample_tokens(self.logits(plan), plan.sequences, self._sampling) if plan.sequences else StepResult()
        self._sampled = sampled_tokens(plan, result)
        return replace(result, seconds=time.perf_counter() - began)

    def logits(self, plan: StepPlan) -> Array:
        """Computes a step of at least one sequence, but draws nothing.

        Returns:
            [sequences that sample, vocabulary], float32.
        """
        batch = build_batch(plan, self._sampled, self.info.block_size)
        token_ids, positions, slots = batch.tokens
        return self._decoder.forward(token_ids, positions, slots, batch.paged, batch.sampling_rows)


def load_native(model: ModelFiles, context: Context, progress: Progress) -> NativeExecutor:
    """Reads the weights of a checked model, then takes the KV cache.

    Args:
        model: What its files say.
        context: The library and its threads.
        progress: See Progress.

    Raises:
        BadFlags: --kv-cache-memory or --swap-space are at fault.
        BadWeights: A file could not be read.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: With needed and available bytes.
    """
    config, spec = model.config, model.spec
    memory = config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY
    size = size_kv(spec, config, model.kv_dtype, memory)  # before the weights are read: what cannot fit fails at once
    dtype = storage_dtype(model.dtype, model.stored)
    require_room_for_weights(
        most_bytes(model.weights, dtype, config.quantization, packed=False),
        available_memory(),
        dtype if config.quantization == "none" else config.quantization,
        "cpu",
    )
    pool = model.cpu_pool(size)
    return_freed_memory()
    with model.open_weights(dtype, progress) as weights:
        decoder = NativeDecoder(
            context,
            spec,
            weights,
            kv_cache=pool.device,
            vocab_size=model.tokens.vocab_size,
            max_model_len=size.max_model_len,
            quantization=config.quantization,
        )
    require_room_for_kv(memory, config.swap_space, available_memory())
    pool.map(context.threads)
    keep_freed_memory()
    held = held_bytes(model.weights, dtype, config.quantization, packed=False)
    return NativeExecutor(context, decoder, pool, model.info(size, held, _kernels(context, config.quantization)))


def _kernels(context: Context, quantization: str) -> str:
    """Which kernels run, such as `native (avx512, w8a16)`."""
    why = without_amx()
    details = [f"{context.isa}, no AMX: {why}" if why else context.isa]
    if quantization != "none":
        details.append(quantization)
    return f"native ({', '.join(details)})"
