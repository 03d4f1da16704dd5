"""Prompts to token ids, beside the event loop where they are long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from octavo_runtime.errors import InvalidRequest
from octavo_runtime.server.wire import Message
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Prompts"]

_T = TypeVar("_T")
_INLINE_CHARS = 4096  # tokenising this much takes about a millisecond: less than a trip to a thread is worth


class Prompts:
    """The model's tokenizer and chat template, as the routes use them.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # One thread: text is processed beside the event loop, but never on more than one core.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text")

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """Token ids of prompts; those that are token ids already stay as they are."""

        def work() -> list[list[int]]:
            return [self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

        return await self._run(sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), work)

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, by the model's template.

        Raises:
            InvalidRequest: The model has no template, or it refuses the messages.
        """
        template = self.tokenizer.chat_template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions, or add chat_template.jinja to its directory",
                param="messages",
            )
        plain = [message.plain() for message in messages]

        def work() -> list[int]:
            # The template writes the special tokens itself.
            return self.tokenizer.encode(template.render(plain), add_special_tokens=False)

        return await self._run(sum(len(message["content"]) for message in plain), work)

    async def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        return await self._run(len(token_ids), lambda: self.tokenizer.decode(token_ids))

    async def _run(self, num_chars: int, work: Callable[[], _T]) -> _T:
        if num_chars <= _INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
