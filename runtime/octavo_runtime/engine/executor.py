"""What executes step plans, and how it is loaded."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from octavo_runtime.domain import EngineConfig, EngineInfo, StepPlan, StepResult
from octavo_runtime.engine.devices import device_type
from octavo_runtime.engine.measure import prefill_seconds_per_token, swap_seconds_per_block
from octavo_runtime.engine.model_files import ModelFiles, Progress, read_model_files
from octavo_runtime.engine.native_executor import NativeExecutor, load_native
from octavo_runtime.engine.threads import compute_threads
from octavo_runtime.errors import DeviceUnavailable
from octavo_runtime.loading.plan import storage_dtype
from octavo_runtime.models.native_decoder import open_native

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from octavo_runtime.engine.decode_graphs import GraphDevice
    from octavo_runtime.engine.torch_executor import TorchExecutor

__all__ = ["Executor", "Progress", "load_executor"]

logger = logging.getLogger(__name__)


class Executor(Protocol):
    """Computes what the scheduler plans."""

    @property
    def info(self) -> EngineInfo:
        """Its limits, fixed once it is loaded."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Computes a step: tokens or a failure for each sequence that samples."""
        ...


def load_executor(
    config: EngineConfig,
    progress: Progress | None = None,
    graph_device: Callable[[torch.device], GraphDevice] | None = None,
) -> NativeExecutor | TorchExecutor:
    """Loads a model directory: checks everything that files tell, then reads the weights, then takes the KV cache.

    Args:
        config: What to load, and how.
        progress: Told how far it is.
        graph_device: Makes what captures and replays decode steps, where the kernels are in Triton; None: `CudaDevice`
            on a GPU, and nothing on a CPU.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: The directory is at fault; the message names the file.
        BadFlags: A setting contradicts the model.
        DeviceUnavailable: `cuda` without a usable GPU, the GPU is too old for the kernels, or torch is needed and missing.
        NotEnoughMemoryForWeights, NotEnoughMemoryForKV: With needed and available bytes.
    """
    report = progress or (lambda _stage, _done, _total: None)
    model = read_model_files(config, device_type(config))
    executor = _load(model, report, graph_device)
    info = executor.info
    kv_bytes, kv_tokens = info.num_blocks * info.block_bytes, info.num_blocks * info.block_size
    report("kv cache", kv_bytes, kv_bytes)
    executor.info = replace(
        info,
        prefill_seconds_per_token=prefill_seconds_per_token(executor, model.longest_prefill),
        swap_seconds_per_block=swap_seconds_per_block(executor),
    )
    native = isinstance(executor, NativeExecutor)
    stored = storage_dtype(model.dtype, model.stored) if native else model.dtype
    logger.info(
        "%s on %s, kernels %s: weights %.2f GiB in %s, KV cache %.2f GiB in %s: %d tokens, %.1f requests of %d",
        model.spec.architecture,
        info.device,
        info.kernels,
        info.weights_bytes / 2**30,
        stored if model.config.quantization == "none" else model.config.quantization,
        kv_bytes / 2**30,
        info.kv_cache_dtype,
        kv_tokens,
        kv_tokens / info.max_model_len,
        info.max_model_len,
    )
    return executor


def _load(
    model: ModelFiles, progress: Progress, graph_device: Callable[[torch.device], GraphDevice] | None
) -> NativeExecutor | TorchExecutor:
    config = model.config
    if config.device == "cpu":
        context = open_native(model.spec, config, compute_threads())
        if context is not None:
            return load_native(model, context, progress)
    load_torch: Any
    try:
        from octavo_runtime.engine.torch_executor import load_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceUnavailable(
            f"torch is not installed, and without it nothing runs here on {config.device}",
            hint="Install octavo[torch]" + ("." if config.device == "cpu" else ", or use --device cpu."),
        ) from error
    executor: TorchExecutor = load_torch(model, progress, graph_device)
    return executor
