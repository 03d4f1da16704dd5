"""Executes step plans on a device."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from octavo_kernels import sampling
from octavo_kernels.dispatch import KernelFailed, form
from octavo_kernels.native import Context, without_amx
from octavo_kernels.sampling.native import NativeSampling
from octavo_runtime.domain import EngineConfig, EngineInfo, SamplingParams, StepPlan, StepResult
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.decode_graphs import CudaDevice, DecodeGraphs, GraphDevice
from octavo_runtime.engine.decode_table import Layout
from octavo_runtime.engine.gpu import WITHOUT_KERNELS, require_invariant_kernels, require_kernels
from octavo_runtime.engine.kv_cache import KVPool
from octavo_runtime.engine.measure import one_sequence, prefill_seconds_per_token, swap_seconds_per_block
from octavo_runtime.engine.memory import (
    free_memory,
    keep_freed_memory,
    kv_memory,
    require_room_for_weights,
    return_freed_memory,
)
from octavo_runtime.engine.sampler import SamplingForm, sample_tokens, step_result
from octavo_runtime.engine.threads import set_threads
from octavo_runtime.engine.warm_up import MAX_SEQUENCES, copy_a_block, warm_up
from octavo_runtime.errors import DeviceLost, DeviceUnavailable
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.plan import (
    DEFAULT_CPU_KV_MEMORY,
    KVSize,
    check_batch_invariant,
    check_growth,
    check_packing,
    held_bytes,
    kv_block_bytes,
    most_bytes,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_quantization,
    size_kv,
    storage_dtype,
)
from octavo_runtime.loading.spec import read_spec
from octavo_runtime.loading.token_ids import read_token_ids
from octavo_runtime.loading.weight_map import weight_map
from octavo_runtime.loading.weights import load_weights
from octavo_runtime.models.decoder import Decoder
from octavo_runtime.models.native_decoder import NativeDecoder, open_native
from octavo_runtime.models.quantised import pack_weights, quantise

__all__ = ["Executor", "Progress", "TorchExecutor", "load_executor"]

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, what is done and what there is in all: bytes, of the kernels steps."""


class Executor(Protocol):
    """Computes what the scheduler plans."""

    @property
    def info(self) -> EngineInfo:
        """Its limits, fixed once it is loaded."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step: tokens or a failure for each sequence that samples."""
        ...


class TorchExecutor:
    """A decoder and its KV cache on one device. Made by `load_executor`.

    Args:
        decoder: The model.
        pool: Its KV cache.
        info: Its limits.
        sampling_form: What draws the tokens.
        graphs: The decoder's steps that can be replayed, where the device can do that.

    Attributes:
        info: Its limits.
    """

    def __init__(
        self,
        decoder: Decoder | NativeDecoder,
        pool: KVPool,
        info: EngineInfo,
        sampling_form: SamplingForm = sampling,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._device = torch.device(info.device)
        self.info = info
        self._sampling = sampling_form
        self._graphs = graphs
        self._sampled: dict[int, int] = {}  # by the last step: sequence number -> token
        self._thread: int | None = None

    def without_graphs(self) -> TorchExecutor:
        """The same model on the same KV cache, each step kernel by kernel. One of the two runs at a time."""
        return TorchExecutor(self._decoder, self._pool, self.info, self._sampling)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step.

        Raises:
            DeviceLost: The device failed; the process cannot go on.
            DeviceUnavailable: A kernel does not compile for this GPU, which the first step tells, while loading.
        """
        began = time.perf_counter()
        if self._thread != threading.get_ident() and self._device.type == "cpu":
            set_threads()  # OpenMP keeps the number for each thread that computes
            self._thread = threading.get_ident()
        try:
            self._pool.copy(plan.copies)
            if plan.num_blocks is not None:
                self._pool.resize(plan.num_blocks)
            result = self._compute(plan) if plan.sequences else StepResult()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except torch.AcceleratorError as error:
            raise DeviceLost(f"the GPU failed in a step of {plan.num_tokens} tokens: {error}") from error
        except KernelFailed as error:
            raise DeviceUnavailable(str(error), hint=WITHOUT_KERNELS) from error
        self._sampled = _sampled(plan, result)
        return replace(result, seconds=time.perf_counter() - began)

    def _compute(self, plan: StepPlan) -> StepResult:
        if self._graphs is not None and self._graphs.takes(plan):
            tokens = self._graphs.step(plan.sequences, self._sampled)
            return step_result(tokens, range(len(tokens)))
        batch = build_batch(plan, self._sampled, self.info.block_size, self._device)
        logits = self._decoder.forward(batch.token_ids, batch.positions, batch.slots, batch.paged, batch.sampling_rows)
        return sample_tokens(logits, plan.sequences, self._sampling)


def _sampled(plan: StepPlan, result: StepResult) -> dict[int, int]:
    """The token that each sequence goes on with, where it can be told without the scheduler."""
    tokens: dict[int, int] = {}
    place = 0
    for sequence in plan.sequences:
        if sequence.num_samples == 1:
            tokens[sequence.number] = result.tokens[place]
        place += sequence.num_samples
    return tokens


def load_executor(
    config: EngineConfig,
    progress: Progress | None = None,
    graph_device: Callable[[torch.device], GraphDevice] | None = None,
) -> TorchExecutor:
    """Loads a model directory: checks everything that files tell, then reads the weights, then takes the KV cache.

    Args:
        config: What to load, and how.
        progress: Told how far it is.
        graph_device: Makes what captures and replays decode steps, where the kernels are in Triton; None: `CudaDevice`
            on a GPU, nothing on a CPU.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: The directory is at fault; the message names the file.
        BadFlags: A setting contradicts the model.
        DeviceUnavailable: `cuda` without a usable GPU, or the GPU is too old for the kernels.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: With needed and available bytes.
    """
    directory = Path(config.model)
    spec = read_spec(directory)
    checkpoint = open_checkpoint(directory)
    weights = weight_map(spec, checkpoint)
    tokens = read_token_ids(directory, spec)

    device = _device(config)
    config = replace(config, device=device.type)
    check_growth(config)
    config = replace(config, quantization=resolve_quantization(config, spec))
    check_batch_invariant(config)
    stored = weights.stored_dtypes(checkpoint)
    dtype = resolve_dtype(config.dtype, device.type, spec, stored)
    kv_dtype = resolve_kv_dtype(config, dtype)
    if device.type == "cuda":
        require_kernels(spec, torch.cuda.get_device_capability(device), dtype, kv_dtype)
        if config.batch_invariant:
            require_invariant_kernels()
    if device.type == "cpu":
        # Before the weights are read, so that what cannot fit fails at once.
        size_kv(spec, config, kv_dtype, config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY)
    native = open_native(spec, set_threads(), _needs_native(config)) if device.type == "cpu" else None
    stored_dtype = storage_dtype(dtype, stored) if native else dtype
    packed = native is None
    check_packing(weights, packed=packed)
    read_as = config.quantization if config.quantization == "w4a16" or packed else "none"
    require_room_for_weights(
        most_bytes(weights, stored_dtype, config.quantization, packed=packed),
        stored_dtype if read_as == "none" else read_as,  # native w8a16 is made of what was read
        device,
    )
    weights_bytes = held_bytes(weights, stored_dtype, config.quantization, packed=packed)
    report = progress or (lambda _stage, _done, _total: None)
    return_freed_memory()
    parameters = load_weights(
        checkpoint,
        weights,
        device=device,
        dtype=getattr(torch, stored_dtype),
        progress=lambda done, total: report("weights", done, total),
        finish=quantise if packed and config.quantization == "w8a16" else None,
    )
    if packed:
        pack_weights(
            parameters,
            quantization=config.quantization,
            vocab_size=tokens.vocab_size,
            dtype=getattr(torch, dtype),
        )

    capturing = graph_device or (CudaDevice if device.type == "cuda" else None)

    def assemble(size: KVSize, *, with_graphs: bool = True) -> TorchExecutor:
        pool = KVPool(
            spec,
            num_blocks=size.num_blocks,
            max_num_blocks=size.max_num_blocks,
            num_host_blocks=size.num_host_blocks,
            block_size=config.block_size,
            dtype=torch.float8_e4m3fn if kv_dtype == "fp8" else getattr(torch, kv_dtype),
            device=device,
        )
        in_eight_bits = config.quantization == "w8a16"
        build = (
            functools.partial(NativeDecoder, native, quantise=in_eight_bits)
            if native
            else functools.partial(Decoder, batch_invariant=config.batch_invariant)
        )
        decoder = build(
            spec, parameters, kv_cache=pool.device, vocab_size=tokens.vocab_size, max_model_len=size.max_model_len
        )
        info = EngineInfo(
            max_model_len=size.max_model_len,
            vocab_size=tokens.vocab_size,
            eos_token_ids=tokens.eos,
            num_blocks=size.num_blocks,
            block_size=config.block_size,
            device=device.type,
            dtype=dtype,
            kv_cache_dtype=kv_dtype,
            max_num_blocks=size.max_num_blocks,
            num_host_blocks=size.num_host_blocks,
            block_bytes=size.block_bytes,
            weights_bytes=weights_bytes,
            kernels=_kernels(native, device, config.quantization),
        )
        graphs = None
        if with_graphs and isinstance(decoder, Decoder):
            graphs = _graphs(decoder, config, size.max_model_len, capturing)
        return TorchExecutor(decoder, pool, info, NativeSampling(native) if native else sampling, graphs)

    longest = min(config.scheduler.max_num_batched_tokens, spec.max_position)
    block_bytes = kv_block_bytes(spec, config, kv_dtype)
    blocks = -(-longest // config.block_size)
    compiles = native is None and _form_name(device) == "triton"
    if compiles:
        # Before graphs are captured and memory is measured: both find everything compiled.
        room = max(blocks, MAX_SEQUENCES)
        warm_up(
            assemble(KVSize(room, block_bytes, longest, room, 0), with_graphs=False),
            max_tokens=longest,
            max_sequences=config.scheduler.max_num_seqs,
            report=lambda done, total: report("kernels", done, total),
        )
    activations = 0
    if device.type == "cuda":
        trial = KVSize(blocks, block_bytes, longest, blocks, 0)
        free = free_memory(device)
        executor = assemble(trial)
        captured = free - free_memory(device) - blocks * trial.block_bytes
        activations = captured + _peak_memory(executor, longest)
        del executor
    size = size_kv(spec, config, kv_dtype, kv_memory(config, device, activations))
    executor = assemble(size)
    if compiles:
        copy_a_block(executor)
    keep_freed_memory()
    kv_bytes, kv_tokens = size.num_blocks * size.block_bytes, size.num_blocks * config.block_size
    report("kv cache", kv_bytes, kv_bytes)
    executor.info = info = replace(
        executor.info,
        prefill_seconds_per_token=prefill_seconds_per_token(executor, longest),
        swap_seconds_per_block=swap_seconds_per_block(executor),
    )
    logger.info(
        "%s on %s, kernels %s: weights %.2f GiB in %s, KV cache %.2f GiB in %s: %d tokens, %.1f requests of %d",
        spec.architecture,
        device.type,
        info.kernels,
        weights_bytes / 2**30,
        stored_dtype if config.quantization == "none" else config.quantization,
        kv_bytes / 2**30,
        kv_dtype,
        kv_tokens,
        kv_tokens / size.max_model_len,
        size.max_model_len,
    )
    return executor


def _needs_native(config: EngineConfig) -> str | None:
    """The flag that native kernels alone can do, with its value."""
    if config.quantization != "none":
        return f"--quantization {config.quantization}"
    if config.kv_cache_dtype == "int8":
        return "--kv-cache-dtype int8"
    return "--batch-invariant" if config.batch_invariant else None


def _kernels(native: Context | None, device: torch.device, quantization: str) -> str:
    """Which kernels run, such as `native (avx512, w8a16)` or `triton`."""
    isa = [f"{native.isa}, no AMX: {why}" if (why := without_amx()) else native.isa] if native else []
    details = [*isa, *([] if quantization == "none" else [quantization])]
    name = "native" if native else _form_name(device)
    return f"{name} ({', '.join(details)})" if details else name


def _form_name(device: torch.device) -> str:
    return form("paged_attention", device.type).__name__.split(".")[-1]


@torch.inference_mode()
def _graphs(
    decoder: Decoder,
    config: EngineConfig,
    max_model_len: int,
    capturing: Callable[[torch.device], GraphDevice] | None,
) -> DecodeGraphs | None:
    """The decoder's graphs, where its kernels never wait for the device."""
    device = torch.device(config.device)
    if capturing is None or _form_name(device) != "triton":
        return None
    # Multiples of 16: every column and block table begins as kernels are compiled for.
    rows, blocks = config.scheduler.max_num_seqs, -(-max_model_len // config.block_size)
    layout = Layout(-(-rows // 16) * 16, -(-blocks // 16) * 16)
    words = torch.zeros(layout.size, dtype=torch.int32, device=device)
    try:
        return DecodeGraphs(
            decoder, capturing(device), words, layout=layout, max_rows=rows, block_size=config.block_size
        )
    except KernelFailed as error:
        raise DeviceUnavailable(str(error), hint=WITHOUT_KERNELS) from error


def _device(config: EngineConfig) -> torch.device:
    usable = torch.cuda.is_available()
    name = resolve_device(config.device, cuda_available=usable)
    if name == "cuda" and not usable:
        raise DeviceUnavailable(
            "--device cuda, but torch finds no usable GPU",
            hint="Check the GPU limit of the container and the driver (nvidia-smi), or use --device cpu.",
        )
    return torch.device(name)


def _peak_memory(executor: TorchExecutor, num_tokens: int) -> int:
    """Bytes that a GPU step of this many tokens takes beside weights and KV cache."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    executor.execute(one_sequence(executor.info, num_tokens, 0, SamplingParams(temperature=0, seed=0)))
    return torch.cuda.max_memory_allocated() - before
