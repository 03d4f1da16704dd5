"""The model's tokenizer: the Rust `tokenizers` library over tokenizer.json, with what tokenizer_config.json adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from octavo_runtime.errors import InvalidRequest, ModelNotFound, UnsupportedModel, readable
from octavo_runtime.text.chat import ChatTemplate

__all__ = ["Tokenizer", "read_json"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads.

    Args:
        model: Directory with tokenizer.json; tokenizer_config.json and chat_template.jinja where the model has them.

    Attributes:
        chat_template: The model's, or None.

    Raises:
        ModelNotFound: There is no tokenizer.json, or a file cannot be read.
        UnsupportedModel: A file is damaged.
    """

    @readable(ModelNotFound)
    def __init__(self, model: Path) -> None:
        path = model / "tokenizer.json"
        if not path.is_file():
            what = "tokenizer.json in" if model.is_dir() else "directory"
            raise ModelNotFound(
                f"there is no {what} {model}",
                hint="Give the directory that holds config.json, the safetensors files and tokenizer.json; "
                "`octavo convert` makes one from a GGUF file.",
            )
        content = path.read_bytes()
        try:
            self._rust = RustTokenizer.from_buffer(content)
        except Exception as error:  # the library raises bare Exception for every fault in the file
            raise UnsupportedModel(f"{path} cannot be read: {error}", hint="Download the model again.") from error
        # A checkpoint may carry the truncation and padding of its training.
        self._rust.no_truncation()
        self._rust.no_padding()
        config = read_json(model / "tokenizer_config.json")
        added = self._rust.get_added_tokens_decoder()
        self._hidden = frozenset(number for number, token in added.items() if token.special)
        self.chat_template = ChatTemplate.of(model, config, _special_tokens(config))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the model's begin-of-sequence where it has one.

        Raises:
            InvalidRequest: The text is not valid Unicode.
        """
        try:
            return self._rust.encode(text, add_special_tokens=add_special_tokens).ids
        except UnicodeEncodeError as error:  # a lone surrogate
            raise InvalidRequest(f"the text is not valid Unicode: {error}", param="prompt") from error

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids; special and unknown ones have none, bytes that are not UTF-8 become U+FFFD."""
        return self._rust.decode(token_ids, skip_special_tokens=True)

    def is_visible(self, token_id: int) -> bool:
        """Whether a token is part of the text: known and not special."""
        return token_id not in self._hidden and self._rust.id_to_token(token_id) is not None


def read_json(path: Path) -> dict[str, Any]:
    """A file of a model's directory; empty when there is none.

    Raises:
        UnsupportedModel: It is damaged.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModel(f"{path} cannot be read: {error}", hint="Download the model again.") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{path} does not hold a JSON object", hint="Download the model again.")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Names that chat templates use, such as bos_token; an entry is a string or an object with `content`."""
    tokens = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens
