"""What a model's files and the settings say together, before a weight is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from octavo_kernels.native.arrays import dtype_of
from octavo_runtime.domain import EngineConfig, EngineInfo
from octavo_runtime.engine.kv_cache import KVPool
from octavo_runtime.loading.checkpoint import TensorEntry, open_checkpoint
from octavo_runtime.loading.plan import (
    KVSize,
    check_batch_invariant,
    check_growth,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_quantization,
)
from octavo_runtime.loading.spec import DecoderSpec, read_spec
from octavo_runtime.loading.token_ids import TokenIds, read_token_ids
from octavo_runtime.loading.weight_map import WeightMap, weight_map
from octavo_runtime.loading.weights import StoredWeights

__all__ = ["ModelFiles", "Progress", "read_model_files"]

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, what is done and what there is in all: bytes, of the kernels steps."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory, checked.

    Attributes:
        config: The settings, with device and quantisation resolved.
        spec: The model.
        tokens: What its tokenizer knows.
        checkpoint: Name to entry.
        weights: What goes where.
        stored: The floating types in the checkpoint, by safetensors' names.
        dtype: Of the computation.
        kv_dtype: Of the KV cache.
    """

    config: EngineConfig
    spec: DecoderSpec
    tokens: TokenIds
    checkpoint: dict[str, TensorEntry]
    weights: WeightMap
    stored: set[str]
    dtype: str
    kv_dtype: str

    def open_weights(self, dtype: str, progress: Progress) -> StoredWeights:
        """Its weights, cast to this type.

        Raises:
            BadWeights: A file could not be read.
        """
        return StoredWeights(
            self.checkpoint,
            self.weights,
            dtype_of(dtype),
            progress=lambda done, total: progress("weights", done, total),
        )

    def info(self, size: KVSize, weights_bytes: int, kernels: str) -> EngineInfo:
        """Of an engine that runs it."""
        return EngineInfo(
            max_model_len=size.max_model_len,
            vocab_size=self.tokens.vocab_size,
            eos_token_ids=self.tokens.eos,
            num_blocks=size.num_blocks,
            block_size=self.config.block_size,
            device=self.config.device,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_dtype,
            max_num_blocks=size.max_num_blocks,
            num_host_blocks=size.num_host_blocks,
            block_bytes=size.block_bytes,
            weights_bytes=weights_bytes,
            kernels=kernels,
        )

    def cpu_pool(self, size: KVSize) -> KVPool:
        """A KV cache of this size in the memory of a CPU.

        Raises:
            NotEnoughMemoryForKV: The kernel does not even give the addresses.
        """
        return KVPool(
            self.spec,
            num_blocks=size.num_blocks,
            max_num_blocks=size.max_num_blocks,
            num_host_blocks=size.num_host_blocks,
            block_size=self.config.block_size,
            dtype=dtype_of(self.kv_dtype),
        )

    @property
    def longest_prefill(self) -> int:
        """Tokens that one sequence can have in a step."""
        return min(self.config.scheduler.max_num_batched_tokens, self.spec.max_position)


def read_model_files(config: EngineConfig, device: str) -> ModelFiles:
    """Checks everything that files tell.

    Args:
        config: The settings.
        device: `cpu` or `cuda`.

    Raises:
        ModelNotFound, UnsupportedModel, BadWeights: The directory is at fault; the message names the file.
        BadFlags: A setting contradicts the model or the device.
    """
    directory = Path(config.model)
    spec = read_spec(directory)
    checkpoint = open_checkpoint(directory)
    weights = weight_map(spec, checkpoint)
    tokens = read_token_ids(directory, spec)
    config = replace(config, device=device)
    check_growth(config)
    config = replace(config, quantization=resolve_quantization(config, spec))
    check_batch_invariant(config)
    stored = weights.stored_dtypes(checkpoint)
    dtype = resolve_dtype(config.dtype, device, spec, stored)
    return ModelFiles(config, spec, tokens, checkpoint, weights, stored, dtype, resolve_kv_dtype(config, dtype))
