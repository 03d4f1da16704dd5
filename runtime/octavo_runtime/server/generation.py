"""One HTTP call's answers in the making: events of the engine to deltas of text, counted, measured and logged."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from octavo_runtime.domain import FinishReason, Request
from octavo_runtime.ipc.client import EngineClient
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.text.output import Delta, OutputText
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Answer", "Generation"]

_log = logging.getLogger("octavo.requests")


@dataclass(slots=True)
class Answer:
    """One choice.

    Attributes:
        request: What was asked.
        index: The choice's number.
        num_tokens: Output tokens so far.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        first_at: When the first token came, on the monotonic clock.
        last_at: When the newest came.
        finish_reason: Set when the answer is whole.
    """

    request: Request
    index: int
    output: OutputText
    num_tokens: int = 0
    num_cached_tokens: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    finish_reason: FinishReason | None = None


class Generation:
    """The answers to one call, one for each prompt.

    Args:
        requests: One for each choice, in order.
        client: The engine.
        tokenizer: The model's.
        metrics: Where every token and end is counted.
    """

    def __init__(
        self, requests: Sequence[Request], *, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics
    ) -> None:
        self._client = client
        self._metrics = metrics
        self.answers = [
            Answer(request, index, OutputText(tokenizer, request.sampling)) for index, request in enumerate(requests)
        ]

    async def deltas(self) -> AsyncGenerator[tuple[Answer, Delta]]:
        """Yields what each event adds, until every answer has its finish reason. Closing it early aborts the rest."""
        by_id = {answer.request.request_id: answer for answer in self.answers}
        unfinished = len(self.answers)
        try:
            async with aclosing(self._client.stream([answer.request for answer in self.answers])) as arrivals:
                async for arrival in arrivals:
                    event = arrival.event
                    answer = by_id[event.request_id]
                    if answer.finish_reason is not None:
                        continue  # on their way when a stop string had ended the answer
                    answer.num_cached_tokens = max(answer.num_cached_tokens, event.num_cached_tokens)
                    delta = answer.output.push(event)
                    self._measure(answer, delta, arrival.at)
                    if delta.finish_reason is not None:
                        self._client.abort(event.request_id)  # does nothing where the engine ended it
                        self._finish(answer, delta.finish_reason)
                        unfinished -= 1
                    yield answer, delta
                    if unfinished == 0:
                        break
        finally:
            for answer in self.answers:
                if answer.finish_reason is None:
                    self._finish(answer, FinishReason.ABORT)

    def usage(self) -> dict[str, object]:
        """Token counts over all answers, in OpenAI's shape."""
        prompt = sum(len(answer.request.prompt_token_ids) for answer in self.answers)
        completion = sum(answer.num_tokens for answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(answer.num_cached_tokens for answer in self.answers)},
        }

    def _measure(self, answer: Answer, delta: Delta, at: float) -> None:
        if not delta.token_ids:
            return
        if answer.first_at is None:
            answer.first_at = at
            self._metrics.first_token(at - answer.request.arrival, len(answer.request.prompt_token_ids))
        else:
            self._metrics.next_token(at - answer.last_at)
        answer.last_at = at
        answer.num_tokens += len(delta.token_ids)
        self._metrics.tokens(len(delta.token_ids))

    def _finish(self, answer: Answer, reason: FinishReason) -> None:
        answer.finish_reason = reason
        request = answer.request
        seconds = time.monotonic() - request.arrival
        self._metrics.finished(reason, seconds)
        _log.info(
            "request ended",
            extra={
                "request_id": request.request_id,
                "finish_reason": reason.value,
                "prompt_tokens": len(request.prompt_token_ids),
                "cached_tokens": answer.num_cached_tokens,
                "output_tokens": answer.num_tokens,
                "ttft_s": None if answer.first_at is None else round(answer.first_at - request.arrival, 4),
                "e2e_s": round(seconds, 4),
            },
        )
