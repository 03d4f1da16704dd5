"""The door: a prompt and its sampling settings become a Request that the engine can run, or are refused."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from octavo_runtime.domain import EngineInfo, Request, SamplingParams
from octavo_runtime.errors import InvalidRequest

__all__ = ["admit"]


def admit(
    request_id: str,
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    info: EngineInfo,
    *,
    arrival: float,
    param: str = "prompt",
) -> Request:
    """Checks a prompt against the engine and fills in what the user left open.

    Args:
        request_id: Ours, unique.
        prompt_token_ids: The prompt.
        sampling: As asked for; `max_tokens` None means as many as the context leaves.
        info: The engine's limits.
        arrival: Seconds on the monotonic clock.
        param: Name of the field that held the prompt, for messages.

    Raises:
        InvalidRequest: The prompt is empty or too long, or an id is out of range.
    """
    if not prompt_token_ids:
        raise InvalidRequest(
            f"{param} is empty, and the model has no begin-of-sequence token to start from", param=param
        )
    _check_ids(prompt_token_ids, info.vocab_size, param)
    _check_ids(sampling.stop_token_ids, info.vocab_size, "stop_token_ids")
    length = len(prompt_token_ids)
    limit = min(info.max_model_len, info.num_blocks * info.block_size)
    if length >= limit:
        raise InvalidRequest(
            f"the prompt has {length} tokens; this model takes fewer than {limit}, prompt and answer together. "
            "Shorten the prompt.",
            param=param,
            code="context_length_exceeded",
        )
    max_tokens = sampling.max_tokens if sampling.max_tokens is not None else limit - length
    if length + max_tokens > limit:
        raise InvalidRequest(
            f"the prompt has {length} tokens and max_tokens is {max_tokens}, together more than the {limit} of this "
            f"model. Shorten the prompt, or ask for at most {limit - length} tokens.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
        arrival=arrival,
    )


def _check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(f"{param} holds token id {wrong}; this model's ids are 0 to {vocab_size - 1}", param=param)
