"""One HTTP call's answers in the making: events of the engine to deltas of text, counted, measured and logged."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from octavo_runtime.domain import Event, FinishReason, Request
from octavo_runtime.ipc.client import EngineClient
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.server.queue import Queue
from octavo_runtime.server.recording import Recording
from octavo_runtime.text.output import Delta, OutputText
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Answer", "Generation"]

_log = logging.getLogger("octavo.requests")


@dataclass(slots=True)
class Answer:
    """One choice.

    Attributes:
        request: What was asked.
        index: The choice's number in the call.
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
    """The answers to one call: n for each prompt, those of a prompt side by side.

    Args:
        requests: One for each prompt, in order.
        client: The engine.
        tokenizer: The model's.
        metrics: Where every token and end is counted.
        queue: Is told of each request's first token.
        recording: Is told of all.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        *,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        queue: Queue,
        recording: Recording,
    ) -> None:
        self._requests = requests
        self._client = client
        self._metrics = metrics
        self._queue = queue
        self._recording = recording
        self._started: set[str] = set()
        each = [request for request in requests for _ in range(request.sampling.n)]
        self.answers = [
            Answer(request, index, OutputText(tokenizer, request.sampling)) for index, request in enumerate(each)
        ]

    async def deltas(self) -> AsyncGenerator[list[tuple[Answer, Delta]]]:
        """Yields what the events add, all that have come at once, until every answer has its finish reason.

        Closing it early aborts the rest.
        """
        firsts = {answer.request.request_id: answer.index for answer in reversed(self.answers)}
        unfinished = len(self.answers)
        for request in self._requests:
            self._recording.begin(request)
        try:
            async with aclosing(self._client.stream(self._requests)) as batches:
                async for arrivals in batches:
                    news = []
                    for event, at in arrivals:
                        answer = self.answers[firsts[event.request_id] + event.choice]
                        if answer.finish_reason is not None:
                            continue  # on their way when a stop string had ended the answer
                        delta = self._take(answer, event, at)
                        unfinished -= delta.finish_reason is not None
                        news.append((answer, delta))
                    if news:
                        yield news
                    if unfinished == 0:
                        break
        finally:
            for request in self._requests:
                self._recording.end(request)
            for answer in self.answers:
                if answer.finish_reason is None:
                    self._finish(answer, FinishReason.ABORT)

    def usage(self) -> dict[str, object]:
        """Token counts over all answers, in OpenAI's shape; a prompt counts once, however many answers it has."""
        prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        completion = sum(answer.num_tokens for answer in self.answers)
        cached: dict[str, int] = {}
        for answer in self.answers:
            request_id = answer.request.request_id
            cached[request_id] = max(cached.get(request_id, 0), answer.num_cached_tokens)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        }

    def _take(self, answer: Answer, event: Event, at: float) -> Delta:
        """What an event adds to an answer, counted."""
        answer.num_cached_tokens = max(answer.num_cached_tokens, event.num_cached_tokens)
        delta = answer.output.push(event)
        self._measure(answer, delta, at)
        self._recording.event(event, delta.finish_reason, at)
        if delta.finish_reason is not None:
            if event.finish_reason is None:
                self._client.abort(event.request_id, event.choice)
            self._finish(answer, delta.finish_reason)
        return delta

    def _measure(self, answer: Answer, delta: Delta, at: float) -> None:
        if not delta.token_ids:
            return
        request = answer.request
        if answer.first_at is None:
            answer.first_at = at
            if request.request_id not in self._started:
                self._started.add(request.request_id)
                self._queue.started(request.request_id, at)
                self._metrics.first_token(at - request.arrival, len(request.prompt_token_ids))
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
            "answer ended",
            extra={
                "request_id": request.request_id,
                "choice": answer.index,
                "finish_reason": reason.value,
                "prompt_tokens": len(request.prompt_token_ids),
                "cached_tokens": answer.num_cached_tokens,
                "output_tokens": answer.num_tokens,
                "ttft_s": None if answer.first_at is None else round(answer.first_at - request.arrival, 4),
                "e2e_s": round(seconds, 4),
            },
        )
