"""The values that every layer of the runtime speaks in. Frozen, without behaviour, importing nothing heavy."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from octavo_runtime.errors import InvalidRequest

__all__ = [
    "EngineConfig",
    "EngineInfo",
    "Event",
    "FinishReason",
    "Request",
    "SamplingParams",
    "ScheduledSequence",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
]


class FinishReason(enum.Enum):
    """Why a request ended; every request ends with exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to stop.

    Attributes:
        temperature: 0 is greedy: top_k, top_p, min_p and seed then have no effect.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability is at least p, in (0, 1].
        min_p: Drop tokens less likely than min_p times the most likely one, in [0, 1].
        seed: Same seed, same prompt, same tokens; None draws a seed for each request.
        max_tokens: Most tokens to generate, at least 1; None: as many as the context leaves.
        stop: Strings that end the text; they are not part of it.
        stop_token_ids: Tokens that end the request, besides the model's end of sequence.
        ignore_eos: Go on past the model's end of sequence.

    Raises:
        InvalidRequest: A value outside its range; `param` names it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        def refuse(param: str, rule: str, value: object) -> None:
            raise InvalidRequest(f"{param} must be {rule}, not {value!r}", param=param)

        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 2):
            refuse("temperature", "between 0 and 2", self.temperature)
        if self.top_k < 0:
            refuse("top_k", "0 (all tokens) or more", self.top_k)
        if not 0 < self.top_p <= 1:
            refuse("top_p", "greater than 0 and at most 1", self.top_p)
        if not 0 <= self.min_p <= 1:
            refuse("min_p", "between 0 and 1", self.min_p)
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            refuse("seed", "a 64-bit integer", self.seed)
        if self.max_tokens is not None and self.max_tokens < 1:
            refuse("max_tokens", "1 or more", self.max_tokens)
        if any(not text for text in self.stop):
            refuse("stop", "free of empty strings", list(self.stop))


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate, checked at the door: it fits the model's length and vocabulary.

    Attributes:
        request_id: Ours, unique; a client's own id never reaches the engine.
        prompt_token_ids: At least one.
        sampling: `max_tokens` and `seed` are set, never None.
        arrival: Seconds on the monotonic clock.
        cache_salt: Requests share cached blocks only under the same salt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: float = 0.0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """What one sequence does in one step.

        prompt + output:  [ num_computed tokens in KV ][ token_ids, computed now ][ not yet scheduled ]
        block_table:      covers the first two parts, block i holding positions i*block_size …

    Attributes:
        request_id: Whose sequence.
        token_ids: Tokens computed in this step, at positions num_computed … ; at least one.
        num_computed: Tokens whose KV is already there, computed or found in the prefix cache.
        block_table: Block numbers, in order of position.
        samples: Whether the last token's logits are sampled: the sequence has nothing left to prefill.
        num_generated: Output tokens before this step; with the seed it fixes the draw.
        sampling: The request's.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_computed: int
    block_table: tuple[int, ...]
    samples: bool
    num_generated: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that an executor needs for one step. Empty when there is nothing to do."""

    sequences: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought: for each sequence that samples, a token or a failure.

    Attributes:
        sampled: Request id to token id.
        failed: Request id to a sentence, such as for non-finite logits; ends that request alone.
    """

    sampled: dict[str, int]
    failed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """News of one request: new tokens, its end, or both.

    Attributes:
        request_id: Whose.
        token_ids: New output tokens, in order; an end-of-sequence token is among them.
        finish_reason: Set on the request's last event.
        stop_token_id: The token that ended it, where one of the stop tokens did.
        num_cached_tokens: Prompt tokens found in the prefix cache when first scheduled.
        error: A sentence, when the reason is ERROR.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's state now, and its counts since the start.

    Attributes:
        num_running: Requests with blocks.
        num_waiting: Requests without.
        kv_cache_usage: Share of blocks in use by requests, 0-1; cached blocks nobody uses are free.
        num_preemptions: Requests whose blocks were taken, so far.
        prefix_queries: Prompt tokens looked up in the prefix cache, so far.
        prefix_hits: Of them found, so far.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is started with; `octavo serve --help` describes each field.

    Attributes:
        model: Directory of the model.
        device: auto, cpu or cuda.
        dtype: auto, float32, float16 or bfloat16: of weights and activations.
        kv_cache_dtype: auto (the dtype), float32, float16 or bfloat16.
        max_model_len: Longest prompt plus output, in tokens; None: what fits.
        max_num_seqs: Most sequences in a step.
        max_num_batched_tokens: Most tokens in a step.
        block_size: Tokens per KV block: 8, 16 or 32.
        gpu_memory_utilization: Share of the GPU's memory that the engine may take, 0-1.
        kv_cache_memory: Bytes for KV instead of that share; None: 1 GiB on a CPU.
        enable_prefix_caching: Keep the blocks of finished requests for the next with the same prefix.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory: int | None = None
    enable_prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine turned out to be once loaded.

    Attributes:
        max_model_len: Longest prompt plus output, in tokens.
        vocab_size: Token ids the tokenizer and the model share; a prompt may hold ids below it.
        eos_token_ids: Tokens that end a sequence: union of generation_config, config and tokenizer.
        num_blocks: Blocks in the KV pool.
        block_size: Tokens per block.
        device: Where it runs.
        dtype: Of weights and activations.
        kv_cache_dtype: Of the KV pool.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    device: str
    dtype: str
    kv_cache_dtype: str
