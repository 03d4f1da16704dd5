"""What an engine is started with, and what it turned out to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["INT8_WEIGHTS", "EngineConfig", "EngineInfo", "SchedulerConfig"]

INT8_WEIGHTS = frozenset({"w8a16", "w8a8"})
"""The quantisations in which weights are rounded to int8 while they are loaded."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The scheduler's settings; `octavo serve --help` describes each field.

    Attributes:
        max_num_seqs: Most sequences that run at once.
        max_num_batched_tokens: Most tokens in a step.
        enable_prefix_caching: Keep the blocks of finished requests for the next with the same prefix.
        policy: Who goes first: fcfs, shortest-first, priority or slo.
        admission: When a request may start: `expected`, when the blocks that all are expected to need are there;
            `never-evict`, when all could grow to their max_tokens; `max-utilization`, when there is room now.
        async_scheduling: Plan a step while the one before it runs.
        time_slice_tokens: Under shortest-first, output tokens after which a sequence gives way to shorter requests
            that wait; 0: never.
        target_ttft_ms: Under slo, the time to the first token that requests should have.
        target_itl_ms: Under slo, the time between two tokens that running requests should keep.
        check_invariants: Check the scheduler's state after each step; slow.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    policy: Literal["fcfs", "shortest-first", "priority", "slo"] = "fcfs"
    admission: Literal["expected", "never-evict", "max-utilization"] = "expected"
    async_scheduling: bool = True
    time_slice_tokens: int = 0
    target_ttft_ms: float = 500.0
    target_itl_ms: float = 50.0
    check_invariants: bool = False


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is started with; `octavo serve --help` describes each field.

    Attributes:
        model: Directory of the model.
        device: auto, cpu or cuda.
        dtype: auto, float32, float16 or bfloat16: of weights and activations.
        quantization: none (as stored), w8a16: weights in eight bits, w8a8: activations too, or w4a16: weights in groups
            of four bits, as stored.
        kv_cache_dtype: auto (the dtype; on a CPU with weights rounded to eight bits bfloat16), float32, float16,
            bfloat16, or with a scale for each token and kv head int8, on a GPU also fp8 (e4m3).
        max_model_len: Longest prompt plus output, in tokens; None: what fits.
        block_size: Tokens per KV block: 8, 16 or 32.
        gpu_memory_utilization: Share of the GPU's memory that the engine may take, 0-1.
        kv_cache_memory: Bytes for KV instead of that share; None: 1 GiB on a CPU.
        kv_cache_memory_max: Bytes up to which the KV pool may be resized while running; None: no more than at first.
        swap_space: Bytes of host memory for blocks that were swapped out.
        batch_invariant: Run only where a request's logits are the same to the last bit whatever else runs: on a CPU
            with native kernels, on a GPU with slower ones.
        scheduler: Who runs when.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory: int | None = None
    kv_cache_memory_max: int | None = None
    swap_space: int = 0
    batch_invariant: bool = False
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine turned out to be once loaded.

    Attributes:
        max_model_len: Longest prompt plus output, in tokens.
        vocab_size: Token ids the tokenizer and the model share; a prompt may hold ids below it.
        eos_token_ids: Tokens that end a sequence: union of generation_config, config and tokenizer.
        num_blocks: Blocks in the KV pool at first.
        block_size: Tokens per block.
        device: Where it runs.
        dtype: Of weights and activations.
        kv_cache_dtype: Of the KV pool.
        max_num_blocks: Blocks up to which the pool may grow; at least num_blocks.
        num_host_blocks: Blocks in the host tier.
        block_bytes: Bytes of a block, all layers, keys and values.
        swap_seconds_per_block: How long the copy of a block between the tiers takes, measured; 0 without a host tier.
        prefill_seconds_per_token: How long a token of a long prefill takes, measured; 0: not measured.
        weights_bytes: Bytes of the weights, as they are held.
        kernels: Which form of the kernels runs.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    device: str
    dtype: str
    kv_cache_dtype: str
    max_num_blocks: int = 0
    num_host_blocks: int = 0
    block_bytes: int = 0
    swap_seconds_per_block: float = 0.0
    prefill_seconds_per_token: float = 0.0
    weights_bytes: int = 0
    kernels: str = ""
