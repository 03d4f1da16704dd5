"""What is asked of the engine, and the news that it sends back."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from octavo_runtime.errors import InvalidRequest

__all__ = ["Event", "FinishReason", "Request", "SamplingParams"]


class FinishReason(enum.Enum):
    """Why an answer ended; every answer ends with exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, how many answers there are, and when they end.

    Attributes:
        temperature: 0 is greedy: top_k, top_p, min_p and seed then have no effect.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability is at least p, in (0, 1].
        min_p: Drop tokens less likely than min_p times the most likely one, in [0, 1].
        seed: Same seed, same prompt, same tokens; None draws a seed for each request.
        max_tokens: Most tokens to generate, at least 1; None: as many as the context leaves.
        stop: Strings that end the text; they are not part of it.
        stop_token_ids: Tokens that end an answer, besides the model's end of sequence.
        ignore_eos: Go on past the model's end of sequence.
        n: Answers to one prompt. Their sequences share the blocks of what they have in common.
        best_of: Sequences to generate, of which the n with the highest log-probability per token are the answers;
            None: n. With beam search, the number of beams.
        use_beam_search: Search for likely sequences instead of sampling; temperature, top_k, top_p and min_p must
            then be left alone.
        length_penalty: Beam search divides a sequence's log-probability by its length to this power.
        early_stopping: When beam search ends: True, as soon as there are as many finished sequences as beams; False,
            when it is unlikely to find better ones; "never", when it cannot.

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
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

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
        if self.n < 1:
            refuse("n", "1 or more", self.n)
        if self.best_of is not None and self.best_of < self.n:
            refuse("best_of", f"n ({self.n}) or more", self.best_of)
        if not math.isfinite(self.length_penalty):
            refuse("length_penalty", "a finite number", self.length_penalty)
        if self.use_beam_search:
            self._check_beam_search()
        elif self.length_penalty != 1 or self.early_stopping is not False:
            param = "length_penalty" if self.length_penalty != 1 else "early_stopping"
            raise InvalidRequest(f"{param} is for beam search; set use_beam_search too", param=param)
        elif self.width > self.n and self.stop:
            raise InvalidRequest("best_of above n takes no stop strings; use stop_token_ids", param="stop")

    def _check_beam_search(self) -> None:
        if self.width < 2:
            raise InvalidRequest("beam search needs best_of (or n) of 2 or more: the number of beams", param="best_of")
        neutral = {"temperature": (0, 1), "top_k": (0,), "top_p": (1,), "min_p": (0,)}
        for param, values in neutral.items():
            if getattr(self, param) not in values:
                raise InvalidRequest(f"{param} has no meaning in beam search; leave it out", param=param)
        if self.stop:
            raise InvalidRequest("beam search takes no stop strings; use stop_token_ids", param="stop")

    @property
    def width(self) -> int:
        """Sequences that the request runs at once at most."""
        return self.best_of if self.best_of is not None else self.n

    @property
    def needs_logprobs(self) -> bool:
        """Whether the scheduler must know how likely the sampled tokens are."""
        return self.use_beam_search or self.width > self.n

    @property
    def ranks(self) -> bool:
        """Whether the answers are chosen among more sequences, so that none is known before all have ended."""
        return self.needs_logprobs


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue, checked at the door: it fits the model's length and vocabulary.

    Attributes:
        request_id: Ours, unique; a client's own id never reaches the engine.
        prompt_token_ids: At least one.
        sampling: `max_tokens` and `seed` are set, never None.
        arrival: Seconds on the monotonic clock.
        cache_salt: Requests share cached blocks only under the same salt.
        priority: Lower runs earlier, under the policy `priority`.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: float = 0.0
    cache_salt: str = ""
    priority: int = 0


class Event(NamedTuple):
    """News of one answer: new tokens, its end, or both. A tuple, since there are hundreds in each step.

    Attributes:
        request_id: Whose.
        token_ids: New output tokens, in order; an end-of-sequence token is among them.
        finish_reason: Set on the answer's last event.
        stop_token_id: The token that ended it, where one of the stop tokens did.
        num_cached_tokens: Prompt tokens found in the prefix cache when first scheduled.
        error: A sentence, when the reason is ERROR. An error ends the whole request, with one event for each answer
            that had not ended.
        choice: Which of the request's n answers. Where they are ranked (best_of above n, beam search) each comes whole
            in one event, the best first.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    choice: int = 0
