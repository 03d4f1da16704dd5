"""Chat templates: the model's own Jinja text, run in a sandbox with the names that Hugging Face templates use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo_runtime.errors import InvalidRequest, UnsupportedModel

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """One compiled template.

    Args:
        source: Jinja text.
        special_tokens: Names such as bos_token, which the template may use.
        origin: The file it came from, for messages.

    Raises:
        UnsupportedModel: The template does not parse.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], *, origin: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedModel(
                f"the chat template in {origin} does not parse: line {error.lineno}: {error.message}",
                hint="Mend the template, or remove it and use /v1/completions.",
            ) from error
        self._special_tokens = special_tokens

    @classmethod
    def of(cls, model: Path, config: dict[str, Any], special_tokens: dict[str, str]) -> ChatTemplate | None:
        """The template of a model directory: chat_template.jinja, else the key in tokenizer_config.json, else None."""
        path = model / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text(encoding="utf-8"), special_tokens, origin=str(path))
        source = config.get("chat_template")
        if isinstance(source, list):  # several under names; "default" is the one for a plain chat
            source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
        if source is None:
            return None
        return cls(source, special_tokens, origin=str(model / "tokenizer_config.json"))

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt of a conversation, ending where the assistant's answer begins.

        Args:
            messages: Each with `role` and `content`, a string.

        Raises:
            InvalidRequest: The template refuses the conversation.
        """
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; for serving it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares a mutable set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None, *, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
