"""Executes step plans on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from octavo_runtime.domain import EngineConfig, EngineInfo, SamplingParams, ScheduledSequence, StepPlan, StepResult
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.kv_cache import allocate_kv_cache
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.engine.sampler import sample_tokens
from octavo_runtime.engine.threads import set_threads
from octavo_runtime.errors import DeviceLost, DeviceUnavailable, NotEnoughMemoryForKV, NotEnoughMemoryForWeights
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.plan import (
    DEFAULT_CPU_KV_MEMORY,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
    size_kv,
    weight_bytes,
)
from octavo_runtime.loading.spec import read_spec
from octavo_runtime.loading.token_ids import read_token_ids
from octavo_runtime.loading.weight_map import weight_map
from octavo_runtime.loading.weights import load_weights
from octavo_runtime.models.decoder import Decoder

__all__ = ["Executor", "Progress", "TorchExecutor", "load_executor"]

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, bytes done and bytes in all."""


class Executor(Protocol):
    """Computes what the scheduler plans."""

    @property
    def info(self) -> EngineInfo:
        """Its limits, fixed once it is loaded."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step: a token or a failure for each sequence that samples."""
        ...


class TorchExecutor:
    """A decoder and its KV cache on one device. Made by `load_executor`.

    Args:
        decoder: The model.
        info: Its limits.
    """

    def __init__(self, decoder: Decoder, info: EngineInfo) -> None:
        self._decoder = decoder
        self._device = torch.device(info.device)
        self._info = info

    @property
    def info(self) -> EngineInfo:
        """Its limits."""
        return self._info

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step.

        Raises:
            DeviceLost: The device failed; the process cannot go on.
        """
        if not plan.sequences:
            return StepResult({}, {})
        try:
            batch = build_batch(plan, self._info.block_size, self._device)
            logits = self._decoder.forward(
                batch.token_ids, batch.positions, batch.slots, batch.paged, batch.sampling_rows
            )
            return sample_tokens(logits, batch.sampling)
        except torch.AcceleratorError as error:
            raise DeviceLost(f"the GPU failed in a step of {plan.num_tokens} tokens: {error}") from error


def load_executor(config: EngineConfig, progress: Progress | None = None) -> TorchExecutor:
    """Loads a model directory: checks everything that files tell, then reads the weights, then takes the KV cache.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: The directory is at fault; the message names the file.
        BadFlags: A setting contradicts the model.
        DeviceUnavailable: `cuda` without a usable GPU.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: With needed and available bytes.
    """
    directory = Path(config.model)
    spec = read_spec(directory)
    checkpoint = open_checkpoint(directory)
    weights = weight_map(spec, checkpoint)
    tokens = read_token_ids(directory, spec)

    device = _device(config)
    dtype_name = resolve_dtype(
        config.dtype, device.type, spec, {checkpoint[slot.source].dtype for slot in weights.slots}
    )
    kv_dtype_name = resolve_kv_dtype(config, dtype_name)
    if device.type == "cpu":
        # Before the weights are read, so that what cannot fit fails at once.
        size_kv(spec, config, kv_dtype_name, config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY)
    needed, available = weight_bytes(weights, dtype_name), _free_memory(device)
    if needed > available:
        raise NotEnoughMemoryForWeights(
            f"the weights take {needed} bytes in {dtype_name}, and {available} are available on {device}",
            hint="Give the container more memory"
            + (", or use --dtype bfloat16, which halves them." if dtype_name == "float32" else "."),
            needed=needed,
            available=available,
        )
    if device.type == "cpu":
        set_threads()

    report = progress or (lambda _stage, _done, _total: None)
    parameters = load_weights(
        checkpoint,
        weights,
        device=device,
        dtype=getattr(torch, dtype_name),
        progress=lambda done, total: report("weights", done, total),
    )
    memory = _kv_memory(config, device)
    size = size_kv(spec, config, kv_dtype_name, memory)
    kv_cache = allocate_kv_cache(
        spec,
        num_blocks=size.num_blocks,
        block_size=config.block_size,
        dtype=getattr(torch, kv_dtype_name),
        device=device,
    )
    report("kv cache", size.num_blocks * size.block_bytes, size.num_blocks * size.block_bytes)
    info = EngineInfo(
        max_model_len=size.max_model_len,
        vocab_size=tokens.vocab_size,
        eos_token_ids=tokens.eos,
        num_blocks=size.num_blocks,
        block_size=config.block_size,
        device=device.type,
        dtype=dtype_name,
        kv_cache_dtype=kv_dtype_name,
    )
    decoder = Decoder(
        spec, parameters, kv_cache=kv_cache, vocab_size=tokens.vocab_size, max_model_len=size.max_model_len
    )
    executor = TorchExecutor(decoder, info)
    _warm_up(executor)
    kv_tokens = size.num_blocks * config.block_size
    logger.info(
        "%s on %s: weights %.2f GiB in %s, KV cache %.2f GiB in %s = %d tokens = %.1f requests of %d",
        spec.architecture, device.type, needed / 2**30, dtype_name, size.num_blocks * size.block_bytes / 2**30,
        kv_dtype_name, kv_tokens, kv_tokens / size.max_model_len, size.max_model_len,
    )  # fmt: skip
    return executor


def _device(config: EngineConfig) -> torch.device:
    usable = torch.cuda.is_available()
    name = resolve_device(config.device, cuda_available=usable)
    if name == "cuda" and not usable:
        raise DeviceUnavailable(
            "--device cuda, but torch finds no usable GPU",
            hint="Check the GPU limit of the container and the driver (nvidia-smi), or use --device cpu.",
        )
    return torch.device(name)


def _free_memory(device: torch.device) -> int:
    """Bytes that can still be taken."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def _kv_memory(config: EngineConfig, device: torch.device) -> int:
    """Bytes for the KV cache, with the weights loaded.

    Raises:
        NotEnoughMemoryForKV: Fewer are left than were asked for.
    """
    available = _free_memory(device)
    if device.type == "cuda" and config.kv_cache_memory is None:
        total = torch.cuda.mem_get_info(device)[1]
        return max(0, int(total * config.gpu_memory_utilization) - (total - available))
    memory = config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY
    if memory > available:
        raise NotEnoughMemoryForKV(
            f"the KV cache is to take {memory} bytes, but with the weights loaded {available} are available",
            hint=f"Give the container more memory, or --kv-cache-memory {available * 9 // 10} or less.",
            needed=memory,
            available=available,
        )
    return memory


def _warm_up(executor: TorchExecutor) -> None:
    """Runs a prefill and a decode, so that what cannot run fails now and the first request does not wait.

    They write to block 0, which nobody reads before writing it anew.
    """
    size = executor.info.block_size
    greedy = SamplingParams(temperature=0, seed=0)
    drawn = SamplingParams(temperature=1, top_k=8, top_p=0.9, seed=0)
    for length, computed, sampling in ((size - 1, 0, greedy), (1, size - 1, drawn)):
        executor.execute(StepPlan((ScheduledSequence("warm-up", (0,) * length, computed, (0,), True, 0, sampling),)))
