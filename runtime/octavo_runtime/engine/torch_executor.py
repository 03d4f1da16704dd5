"""Executes step plans with torch: on a GPU, and on a CPU for what has no native kernels."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from octavo_kernels.dispatch import form
from octavo_kernels.native.arrays import to_tensor
from octavo_runtime.domain import INT8_WEIGHTS, EngineConfig, EngineInfo, SamplingParams, StepPlan, StepResult
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.decode_graphs import CudaDevice, DecodeGraphs, GraphDevice
from octavo_runtime.engine.decode_table import Layout
from octavo_runtime.engine.device_errors import device_errors
from octavo_runtime.engine.gpu import require_invariant_kernels, require_kernels
from octavo_runtime.engine.gpu_kv_cache import GpuKVPool
from octavo_runtime.engine.kv_cache import KVPool
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.engine.measure import one_sequence
from octavo_runtime.engine.memory import (
    keep_freed_memory,
    require_room_for_kv,
    require_room_for_weights,
    require_room_on_gpu,
    return_freed_memory,
)
from octavo_runtime.engine.model_files import ModelFiles, Progress
from octavo_runtime.engine.sampler import sample_tokens, sampled_tokens, step_result
from octavo_runtime.engine.threads import compute_threads
from octavo_runtime.engine.torch_sampling import TorchSampling
from octavo_runtime.engine.warm_up import MAX_SEQUENCES, copy_a_block, warm_up
from octavo_runtime.errors import DeviceUnavailable
from octavo_runtime.loading.plan import DEFAULT_CPU_KV_MEMORY, KVSize, gpu_kv_memory, kv_block_bytes, size_kv
from octavo_runtime.loading.weight_bytes import check_packing, held_bytes, most_bytes
from octavo_runtime.models.decoder import Decoder
from octavo_runtime.models.quantised import pack_groups, quantise

if TYPE_CHECKING:
    from octavo_runtime.engine.executor import Executor

__all__ = ["TorchExecutor", "load_torch"]


class TorchExecutor:
    """A decoder and its KV cache on one device.

    Args:
        decoder: The model.
        pool: Its KV cache.
        info: Its limits.
        graphs: The decoder's steps that can be replayed, where the device can do that.

    Attributes:
        pool: The KV cache.
        info: Its limits.
    """

    def __init__(
        self, decoder: Decoder, pool: KVPool | GpuKVPool, info: EngineInfo, graphs: DecodeGraphs | None = None
    ) -> None:
        self._decoder = decoder
        self.pool = pool
        self._device = torch.device(info.device)
        self.info = info
        self._sampling = TorchSampling()
        self._graphs = graphs
        self._sampled: Mapping[int, int] = {}  # by the last step: sequence number -> token
        self._thread: int | None = None

    def without_graphs(self) -> TorchExecutor:
        """The same model on the same KV cache, each step kernel by kernel. One of the two runs at a time."""
        return TorchExecutor(self._decoder, self.pool, self.info)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step.

        Raises:
            DeviceLost: The device failed; the process cannot go on.
            DeviceUnavailable: A kernel does not compile for this GPU or was not started, which the first step tells,
                while loading.
            NotEnoughMemoryForKV: The GPU has no memory left for the step.
        """
        began = time.perf_counter()
        if self._thread != threading.get_ident() and self._device.type == "cpu":
            set_threads()  # OpenMP keeps the number for each thread that computes
            self._thread = threading.get_ident()
        with device_errors(f"in a step of {plan.num_tokens} tokens"):
            self.pool.copy(plan.copies)
            if plan.num_blocks is not None:
                assert isinstance(self.pool, KVPool), "the pool of a GPU keeps its size"
                self.pool.resize(plan.num_blocks)
            result = self._compute(plan) if plan.sequences else StepResult()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        self._sampled = sampled_tokens(plan, result)
        return replace(result, seconds=time.perf_counter() - began)

    def _compute(self, plan: StepPlan) -> StepResult:
        if self._graphs is not None and self._graphs.takes(plan):
            tokens = self._graphs.step(plan.sequences, self._sampled)
            return step_result(tokens, range(len(tokens)))
        return sample_tokens(self.logits(plan), plan.sequences, self._sampling)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Computes a step of at least one sequence, but draws nothing.

        Returns:
            [sequences that sample, vocabulary].
        """
        batch = build_batch(plan, self._sampled, self.info.block_size)
        token_ids, positions, slots = to_tensor(batch.tokens).to(self._device)
        rows = to_tensor(batch.sampling_rows).to(self._device)
        return self._decoder.forward(token_ids, positions, slots, batch.paged, rows)


def set_threads() -> None:
    """Sets how many threads torch computes with."""
    torch.set_num_threads(compute_threads())


@device_errors("while the model was loaded")
def load_torch(
    model: ModelFiles, progress: Progress, graph_device: Callable[[torch.device], GraphDevice] | None = None
) -> TorchExecutor:
    """Reads the weights of a checked model, then takes the KV cache.

    Args:
        model: What its files say.
        progress: See Progress.
        graph_device: See `load_executor`.

    Raises:
        BadFlags: --kv-cache-memory or --swap-space are at fault.
        UnsupportedModel: A weight in groups has a width that no kernel takes.
        BadWeights: A file could not be read.
        DeviceUnavailable: `cuda` without a usable GPU, or the GPU is too old for the kernels.
        DeviceLost: The GPU failed.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: With needed and available bytes.
    """
    config, spec = model.config, model.spec
    device = torch.device(config.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceUnavailable(
                "--device cuda, but torch finds no usable GPU",
                hint="Check the GPU limit of the container and the driver (nvidia-smi), or use --device cpu.",
            )
        require_kernels(spec, torch.cuda.get_device_capability(device), model.dtype, model.kv_dtype)
        if config.batch_invariant:
            require_invariant_kernels()
    else:
        set_threads()
        size_kv(spec, config, model.kv_dtype, config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY)  # fails at once
    quantization = config.quantization
    check_packing(model.weights, quantization, packed=True)
    require_room_for_weights(
        most_bytes(model.weights, model.dtype, quantization, packed=True),
        free_memory(device),
        model.dtype if quantization == "none" else quantization,
        device.type,
    )
    return_freed_memory()
    parameters = _parameters(model, device, progress)
    held = held_bytes(model.weights, model.dtype, quantization, packed=True)
    kernels = _form_name(device) if quantization == "none" else f"{_form_name(device)} ({quantization})"
    compiles = _form_name(device) == "triton"  # on a CPU, too, where Triton interprets
    capturing = graph_device or (CudaDevice if device.type == "cuda" else None)

    def assemble(size: KVSize, *, with_graphs: bool = True) -> TorchExecutor:
        pool: KVPool | GpuKVPool
        if device.type == "cpu" and not compiles:
            pool = model.cpu_pool(size)
            kv_cache = to_tensor(pool.device)
        else:
            pool = GpuKVPool(
                spec,
                num_blocks=size.num_blocks,
                num_host_blocks=size.num_host_blocks,
                block_size=config.block_size,
                dtype=torch.float8_e4m3fn if model.kv_dtype == "fp8" else getattr(torch, model.kv_dtype),
                device=device,
            )
            kv_cache = pool.device
        decoder = Decoder(
            spec,
            parameters,
            kv_cache=kv_cache,
            vocab_size=model.tokens.vocab_size,
            max_model_len=size.max_model_len,
            batch_invariant=config.batch_invariant,
            int8_rows=quantization == "w8a8",
        )
        graphs = _graphs(decoder, config, size.max_model_len, capturing) if with_graphs else None
        return TorchExecutor(decoder, pool, model.info(size, held, kernels), graphs)

    longest = model.longest_prefill
    block_bytes = kv_block_bytes(spec, config, model.kv_dtype)
    blocks = -(-longest // config.block_size)
    if compiles:
        # Before graphs are captured and memory is measured: both find everything compiled.
        room = max(blocks, MAX_SEQUENCES)
        warm_up(
            assemble(KVSize(room, block_bytes, longest, room, 0), with_graphs=False),
            max_tokens=longest,
            max_sequences=config.scheduler.max_num_seqs,
            report=lambda done, total: progress("kernels", done, total),
        )
    gpu: tuple[int, int] | None = None
    if device.type == "cpu":
        memory = config.kv_cache_memory or DEFAULT_CPU_KV_MEMORY
        require_room_for_kv(memory, config.swap_space, free_memory(device))
    else:
        trial = KVSize(blocks, block_bytes, longest, blocks, 0)
        free = free_memory(device)
        executor = assemble(trial)
        captured = free - free_memory(device) - blocks * trial.block_bytes
        scheduler = config.scheduler
        step = largest_step(executor.info, longest, scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        activations = captured + peak_memory(executor, step)
        del executor
        gc.collect()  # graphs that go while others are captured, or replayed, would take what these use
        gpu = torch.cuda.mem_get_info(device)[1], free_memory(device) - activations
        memory = gpu_kv_memory(config, *gpu)
        if config.kv_cache_memory is not None:
            require_room_on_gpu(memory, gpu[1], block_bytes)
    executor = assemble(size_kv(spec, config, model.kv_dtype, memory, gpu))
    if compiles:
        copy_a_block(executor)
    keep_freed_memory()
    return executor


def _parameters(model: ModelFiles, device: torch.device, progress: Progress) -> dict[str, torch.Tensor]:
    """Name to tensor on the device, as `loading.weight_map` names them; quantised ones as `models.quantised` does."""
    parameters: dict[str, torch.Tensor] = {}
    quantization = model.config.quantization
    with model.open_weights(model.dtype, progress) as weights:
        for name in weights.names:
            tensor = to_tensor(weights.read(name)).to(device)
            parameters |= quantise(name, tensor) if quantization in INT8_WEIGHTS else {name: tensor}
        if weights.tied:
            parameters |= {
                name.replace("embedding", "head"): tensor
                for name, tensor in parameters.items()
                if name.startswith("embedding")
            }
    pack_groups(parameters, vocab_size=model.tokens.vocab_size, dtype=getattr(torch, model.dtype))
    return parameters


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for itself is free
        return torch.cuda.mem_get_info(device)[0]
    return available_memory()


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
    with device_errors("while decode steps were captured"):
        return DecodeGraphs(
            decoder, capturing(device), words, layout=layout, max_rows=rows, block_size=config.block_size
        )


def largest_step(info: EngineInfo, longest: int, tokens: int, sequences: int) -> StepPlan:
    """The step that takes most memory: as many tokens as there can be, of as many sequences that sample.

    Args:
        info: The executor's, with blocks for one sequence of `longest` tokens: all write to the same ones.
        longest: Tokens that one sequence can have.
        tokens: Of all together, if so many sequences can have them.
        sequences: At most.
    """
    count = min(sequences, tokens)
    left = tokens - count
    scheduled = []
    for number in range(count):
        more = min(left, longest - 1)
        left -= more
        (sequence,) = one_sequence(info, 1 + more, 0, SamplingParams(temperature=0, seed=0)).sequences
        scheduled.append(sequence._replace(number=-1 - number))
    return StepPlan(tuple(scheduled))


def peak_memory(executor: Executor, step: StepPlan) -> int:
    """Bytes that a step on a GPU takes beside weights and KV cache, with what torch's allocator cannot use of them.

    It runs in a thread of its own. cuBLAS has a handle for each thread, with memory beside torch's; torch keeps that of
    a thread that has ended for the next one, which is the one that steps are executed in.
    """
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(executor.execute, step).result()
    return torch.cuda.max_memory_reserved() - before
