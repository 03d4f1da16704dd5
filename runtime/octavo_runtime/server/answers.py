"""Response bodies: OpenAI's objects for completions and chats, whole and as the events of a stream."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from octavo_runtime.text.output import Delta

__all__ = ["ChatAnswers", "CompletionAnswers", "Events", "event"]

_TEXT = "\ue000"


@dataclass(frozen=True, slots=True)
class CompletionAnswers:
    """Bodies of /v1/completions.

    Attributes:
        model: The served name.
        include_usage: Whether a stream ends with the usage; every other chunk then says null.
    """

    prefix: ClassVar[str] = "cmpl-"
    model: str
    include_usage: bool
    id: str = field(default_factory=lambda: CompletionAnswers.prefix + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, texts: list[str], ends: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        """The body of an answer that is not streamed; one text and one last delta for each choice."""
        choices = [_completion_choice(index, texts[index], end) for index, end in enumerate(ends)]
        return {**self._head(), "choices": choices, "usage": usage}

    def chunks(self, index: int, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        """What a stream says of a delta: its text, then in a chunk of its own the end."""
        del first  # a completion has no role to tell
        choices = [_completion_choice(index, delta.text, Delta(delta.text, ()))] if delta.text else []
        if delta.finish_reason is not None:
            choices.append(_completion_choice(index, "", delta))
        usage = {"usage": None} if self.include_usage else {}
        return [{**self._head(), "choices": [choice], **usage} for choice in choices]

    def last(self, usage: dict[str, object]) -> dict[str, Any]:
        """The chunk with the usage."""
        return {**self._head(), "choices": [], "usage": usage}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class ChatAnswers:
    """Bodies of /v1/chat/completions; the attributes are those of CompletionAnswers."""

    prefix: ClassVar[str] = "chatcmpl-"
    model: str
    include_usage: bool
    id: str = field(default_factory=lambda: ChatAnswers.prefix + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, texts: list[str], ends: list[Delta], usage: dict[str, object]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": texts[index], "refusal": None},
                "logprobs": None,
                **_end(end),
            }
            for index, end in enumerate(ends)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    def chunks(self, index: int, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        """What a stream says of a delta: at first who speaks, then its text, then in a chunk of its own the end."""
        steps: list[tuple[dict[str, str], Delta]] = []
        going = Delta("", ())
        if first:
            steps.append(({"role": "assistant", "content": ""}, going))
        if delta.text:
            steps.append(({"content": delta.text}, going))
        if delta.finish_reason is not None:
            steps.append(({}, delta))
        usage = {"usage": None} if self.include_usage else {}
        head = self._head("chat.completion.chunk")
        return [
            {**head, "choices": [{"index": index, "delta": step, "logprobs": None, **_end(end)}], **usage}
            for step, end in steps
        ]

    def last(self, usage: dict[str, object]) -> dict[str, Any]:
        """The chunk with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Events:
    """The events of one stream, as bytes. What is the same in each of a choice is encoded once.

    Args:
        answers: The bodies.
    """

    def __init__(self, answers: CompletionAnswers | ChatAnswers) -> None:
        self._answers = answers
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice: what comes before a chunk's text, and after it

    def of(self, index: int, delta: Delta) -> bytes:
        """What a stream says of a delta; nothing where it adds no text and is no end."""
        frame = self._frames.get(index)
        if frame is not None and delta.finish_reason is None:
            before, after = frame
            return before + msgspec.json.encode(delta.text) + after if delta.text else b""
        chunks = self._answers.chunks(index, delta, first=frame is None)
        if frame is None:
            (chunk,) = self._answers.chunks(index, Delta(_TEXT, ()), first=False)
            # The text is the last thing in a chunk that a user could have named.
            before, _, after = event(chunk).rpartition(msgspec.json.encode(_TEXT))
            self._frames[index] = before, after
        return b"".join([event(chunk) for chunk in chunks])


def event(value: object) -> bytes:
    """A server-sent event with a JSON object."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _completion_choice(index: int, text: str, delta: Delta) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, **_end(delta)}


def _end(delta: Delta) -> dict[str, Any]:
    """The finish reason in OpenAI's words, and vLLM's stop_reason beside it: the stop string or token."""
    if delta.finish_reason is None:
        return {"finish_reason": None}
    return {"finish_reason": delta.finish_reason.value, "stop_reason": delta.stop_reason}
