"""Token ids to text, a piece at a time: never half a character, and the pieces together are the whole text.

A window of the last tokens is decoded at each step, and what goes beyond the text already shown is new. The window
starts with the tokens of the piece before, because some decoders treat the first token of a sequence specially
(SentencePiece strips its space). A character of up to four bytes may be spread over as many tokens; until its last
byte comes, the decoder shows U+FFFD for it. So what ends in U+FFFD is held back for three tokens; if the character is
not whole by then it never will be, and only the last three U+FFFD are held back further.

`tokenizers.decoders.DecodeStream` does the same in Rust, but raises ("Invalid prefix encountered") when bytes that
are not UTF-8 follow a byte token, and cannot be flushed at the end.
"""

from __future__ import annotations

from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_REPLACEMENT = "\ufffd"
_MAX_HELD = 3  # a character has four bytes at most: three may have come
_MAX_WINDOW = 64  # garbage that never ends in a whole character must not make the window grow
_SHORT_WINDOW = 8


class Detokenizer:
    """The text of one sequence.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that are out
        self._new = 0  # where in the window the tokens begin that brought no whole piece yet

    def push(self, token_id: int) -> str:
        """Takes the next token; returns the text that is now certain, often one word, sometimes nothing."""
        if not self._tokenizer.is_visible(token_id):
            return ""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        held = min(_MAX_HELD, len(text) - len(text.rstrip(_REPLACEMENT)))
        if held and len(self._window) - self._new <= _MAX_HELD:
            return ""
        piece = text[self._shown : len(text) - held]
        self._shown += len(piece)
        if piece and held == 0:
            self._shrink(self._new, held)
        elif len(self._window) > _MAX_WINDOW:
            self._shrink(len(self._window) - _SHORT_WINDOW, held)
        return piece

    def flush(self) -> str:
        """The rest, at the end of the sequence: a character that was never completed is shown as U+FFFD."""
        piece = self._tokenizer.decode(self._window)[self._shown :] if self._window else ""
        self._shown += len(piece)
        return piece

    def _shrink(self, start: int, held: int) -> None:
        self._window = self._window[start:]
        self._shown = len(self._tokenizer.decode(self._window)) - held
        self._new = len(self._window)
