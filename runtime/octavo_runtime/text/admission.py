"""The door: a prompt and its sampling settings become a Request that the engine can run, or are refused."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from octavo_runtime.core.limits import most_output_tokens, worst_case_blocks
from octavo_runtime.domain import EngineInfo, Request, SamplingParams, SchedulerConfig
from octavo_runtime.errors import InvalidRequest

__all__ = ["admit"]

_MAX_BEAM_STOPS = 64  # each is one candidate more for every beam in every step


def admit(
    request_id: str,
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    info: EngineInfo,
    config: SchedulerConfig,
    *,
    arrival: float,
    param: str = "prompt",
    cache_salt: str = "",
    priority: int = 0,
) -> Request:
    """Checks a prompt against the engine and fills in what the user left open.

    Args:
        request_id: Ours, unique.
        prompt_token_ids: The prompt.
        sampling: As asked for; `max_tokens` None means as many as the context leaves.
        info: The engine's limits.
        config: The scheduler's settings.
        arrival: Seconds on the monotonic clock.
        param: Name of the field that held the prompt, for messages.
        cache_salt: Requests share cached blocks only under the same salt.
        priority: Lower runs earlier; anything but 0 is for the policy `priority`.

    Raises:
        InvalidRequest: The prompt is empty or too long, an id is out of range, or what is asked for cannot be run.
    """
    if not prompt_token_ids:
        raise InvalidRequest(
            f"{param} is empty, and the model has no begin-of-sequence token to start from", param=param
        )
    _check_ids(prompt_token_ids, info.vocab_size, param)
    _check_ids(sampling.stop_token_ids, info.vocab_size, "stop_token_ids")
    _check_width(sampling, info, config)
    _check_priority(priority, config)
    length = len(prompt_token_ids)
    limit = min(info.max_model_len, info.num_blocks * info.block_size)
    if length >= limit:
        raise InvalidRequest(
            f"the prompt has {length} tokens; this model takes fewer than {limit}, prompt and answer together. "
            "Shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
    room = most_output_tokens(length, sampling.width, info.num_blocks, info.block_size)
    if room < 1:
        raise _too_wide(length, 1, sampling.width, info)
    max_tokens = sampling.max_tokens if sampling.max_tokens is not None else min(limit - length, room)
    if length + max_tokens > limit:
        raise InvalidRequest(
            f"the prompt has {length} tokens and max_tokens is {max_tokens}, together more than the {limit} of this "
            f"model. Shorten the prompt, or ask for at most {limit - length} tokens.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if max_tokens > room:
        raise _too_wide(length, max_tokens, sampling.width, info)
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
    top_k = min(sampling.top_k, info.vocab_size)  # as many as there are, and no number too large to send
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=replace(sampling, max_tokens=max_tokens, seed=seed, top_k=top_k),
        arrival=arrival,
        cache_salt=cache_salt,
        priority=priority,
    )


def _check_width(sampling: SamplingParams, info: EngineInfo, config: SchedulerConfig) -> None:
    width = sampling.width
    if width > config.max_num_seqs:
        param = "n" if sampling.best_of is None else "best_of"
        raise InvalidRequest(
            f"{param} asks for {width} sequences; this server runs {config.max_num_seqs} at once", param=param
        )
    if not sampling.use_beam_search:
        return
    stops = len(sampling.stop_token_ids)
    if stops > _MAX_BEAM_STOPS:
        raise InvalidRequest(
            f"stop_token_ids holds {stops} ids; beam search takes at most {_MAX_BEAM_STOPS}", param="stop_token_ids"
        )
    candidates = width + stops + len(info.eos_token_ids)
    if candidates > info.vocab_size:
        raise InvalidRequest(
            f"{width} beams need {candidates} candidates a step; this model has {info.vocab_size} tokens",
            param="best_of",
        )


def _check_priority(priority: int, config: SchedulerConfig) -> None:
    if not -(2**63) <= priority < 2**63:
        raise InvalidRequest(f"priority must be a 64-bit integer, not {priority}", param="priority")
    if priority != 0 and config.policy != "priority":
        raise InvalidRequest(
            f"priority has no meaning here: this server schedules by {config.policy}. Leave it out, or start the "
            "server with --scheduling-policy priority.",
            param="priority",
        )


def _too_wide(length: int, max_tokens: int, width: int, info: EngineInfo) -> InvalidRequest:
    needed = worst_case_blocks(length, max_tokens, width, info.block_size)
    room = most_output_tokens(length, width, info.num_blocks, info.block_size)
    advice = f", or for at most {room} tokens" if room >= 1 else ""
    return InvalidRequest(
        f"{width} sequences with a prompt of {length} tokens and max_tokens {max_tokens} may come to need {needed} KV "
        f"blocks; this server has {info.num_blocks}. Ask for fewer sequences{advice}.",
        param="max_tokens",
        code="context_length_exceeded",
    )


def _check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(f"{param} holds token id {wrong}; this model's ids are 0 to {vocab_size - 1}", param=param)
