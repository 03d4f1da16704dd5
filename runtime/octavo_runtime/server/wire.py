"""Request bodies: which fields there are, what they may hold, and which are refused.

A field is either supported (a field of the structs below), accepted because it changes nothing (`_WITHOUT_EFFECT`),
known but unsupported (`_UNSUPPORTED`: only the values that ask for nothing are accepted), or unknown. Nothing is
ignored that would change the answer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from octavo_runtime.domain import SamplingParams
from octavo_runtime.errors import InvalidRequest

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "KvCacheMemoryRequest",
    "Message",
    "StreamOptions",
    "TokenizeRequest",
    "parse",
]

_MAX_STOPS = 4  # OpenAI's limit
_DEFAULT_MAX_TOKENS = 16  # OpenAI's, of /v1/completions

_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# Name -> values, besides null, that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "verbosity": (),
    "web_search_options": (),
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is sent."""

    include_usage: bool = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What completions and chats have in common; null always means the default."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    cache_salt: str | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def default_max_tokens(self) -> int | None:
        """Tokens to generate when the request does not say; None: as many as the context leaves."""
        return None

    def sequences(self) -> int | None:
        """Sequences to generate where they are more than the answers; a chat has no field for it."""
        return None

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """The sampling settings.

        Args:
            defaults: Fields of SamplingParams for a request that does not say; beams are not sampled.

        Raises:
            InvalidRequest: A value is out of range.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > _MAX_STOPS:
            raise InvalidRequest(f"stop holds {len(stop)} strings; at most {_MAX_STOPS} are allowed", param="stop")
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0) if self.top_k == -1 else self.top_k,  # vLLM's -1 keeps all tokens too
            "min_p": self.min_p,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "n": self.n,
            "best_of": self.sequences(),
            "use_beam_search": self.use_beam_search,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        }
        fields = {} if self.use_beam_search else dict(defaults)
        fields |= {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            max_tokens=self.max_tokens if self.max_tokens is not None else self.default_max_tokens(),
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            **fields,
        )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Checks what concerns several fields.

        Raises:
            InvalidRequest: Two fields contradict each other.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is allowed only with stream: true", param="stream_options")
        if self.stream and self.use_beam_search:
            raise InvalidRequest(
                "beam search knows no answer before its end, so it cannot be streamed; leave stream out",
                param="use_beam_search",
            )
        if self.cache_salt is not None and not self.cache_salt:
            raise InvalidRequest("cache_salt must not be an empty string; leave it out to share", param="cache_salt")


class CompletionRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None

    def sequences(self) -> int | None:
        """OpenAI's field."""
        return self.best_of

    def check(self) -> None:
        """Checks what concerns several fields."""
        super().check()
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise InvalidRequest(
                "with best_of above n no answer is known before all have ended, so it cannot be streamed; leave "
                "stream out",
                param="best_of",
            )

    def default_max_tokens(self) -> int | None:
        """OpenAI's default."""
        return _DEFAULT_MAX_TOKENS

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids: a list of ids is one prompt.

        Raises:
            InvalidRequest: The list is empty or mixed.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item] # all are int
        if kinds in ({str}, {list}):
            return self.prompt  # type: ignore[return-value] # all are str, or all lists of int
        if kinds:
            raise InvalidRequest("prompt mixes texts, token ids and lists of token ids", param="prompt")
        raise InvalidRequest("prompt is an empty list", param="prompt")


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it.

        Raises:
            InvalidRequest: A part is no text.
        """
        # OpenAI's newer name of the same role, which the templates of open models do not know.
        message = {"role": "system" if self.role == "developer" else self.role, "content": self._text()}
        if self.name is not None:
            message["name"] = self.name
        return message

    def _text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text":
                raise InvalidRequest(
                    f"messages holds a content part of type {part.type!r}; this model takes text parts only",
                    param="messages",
                )
            if part.text is None:
                raise InvalidRequest("messages holds a content part of type 'text' without text", param="messages")
        return "".join(part.text or "" for part in self.content)


class ChatRequest(GenerationRequest, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None

    def check(self) -> None:
        """Checks what concerns several fields."""
        super().check()
        if not self.messages:
            raise InvalidRequest("messages is an empty list", param="messages")
        if self.max_completion_tokens is not None:  # the newer name wins
            if self.max_completion_tokens < 1:
                raise InvalidRequest(
                    f"max_completion_tokens must be 1 or more, not {self.max_completion_tokens}",
                    param="max_completion_tokens",
                )
            self.max_tokens = self.max_completion_tokens


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None

    def check(self) -> None:
        """Checks that there is exactly one of the two.

        Raises:
            InvalidRequest: There is none, or both.
        """
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None

    def check(self) -> None:
        """Nothing concerns several fields."""


class KvCacheMemoryRequest(msgspec.Struct, kw_only=True):
    """Body of POST /kv_cache_memory."""

    bytes: int

    def check(self) -> None:
        """Checks that it is an amount.

        Raises:
            InvalidRequest: It is none.
        """
        if not 1 <= self.bytes < 2**63:
            raise InvalidRequest(f"bytes must be a 64-bit number, 1 or more, not {self.bytes}", param="bytes")


_Body = TypeVar("_Body", ChatRequest, CompletionRequest, DetokenizeRequest, KvCacheMemoryRequest, TokenizeRequest)


def parse(body: bytes, kind: type[_Body]) -> _Body:
    """Reads and checks a body.

    Raises:
        InvalidRequest: It is not JSON, or a field is unknown, unsupported, missing or of the wrong type.
    """
    fields = _decode(body)
    known = kind.__struct_fields__
    for name, value in list(fields.items()):
        if name in known:
            continue
        if name in _UNSUPPORTED:
            if value is not None and not any(_same(value, neutral) for neutral in _UNSUPPORTED[name]):
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)
        elif name not in _WITHOUT_EFFECT:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"unknown field {name}{hint}", param=name, code="unknown_parameter")
        del fields[name]
    try:
        value = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body does not fit: {error}", param=_param(str(error))) from error
    value.check()
    return value


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        surrogates = re.search(rb"\\u[dD][89a-fA-F]", body) is not None
        cause = "it holds half a surrogate pair, which is not a character" if surrogates else str(error)
        raise InvalidRequest(f"the body is not valid JSON in UTF-8: {cause}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return value


def _same(value: Any, neutral: Any) -> bool:
    # False is no 0 here: logprobs 0 asks for something.
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _param(message: str) -> str | None:
    """The field that a message of msgspec is about."""
    found = re.search(r"at `\$\.(\w+)", message) or re.search(r"required field `(\w+)`", message)
    return found.group(1) if found else None
