"""Events of the engine to the text that a user sees; the same for the HTTP server and the offline form."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.domain import Event, FinishReason, SamplingParams
from octavo_runtime.text.detokenizer import Detokenizer
from octavo_runtime.text.stop import StopMatcher
from octavo_runtime.text.tokenizer import Tokenizer

__all__ = ["Delta", "OutputText"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event adds to an answer.

    Attributes:
        text: New text, possibly empty.
        token_ids: Tokens that count as the answer's, those of a stop string and an end of sequence among them.
        finish_reason: Set on the last delta.
        stop_reason: The stop string or stop token of the request that ended it; None for an end of sequence.
        error: A sentence, when the reason is ERROR.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


class OutputText:
    """One answer in the making.

    Args:
        tokenizer: The model's.
        sampling: The request's, for its stop strings and tokens.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stop = StopMatcher(sampling.stop)
        self._stop_token_ids = sampling.stop_token_ids

    def push(self, event: Event) -> Delta:
        """Takes the next event. When the delta is the last and the event was not, the engine is still to be told.

        A stop string found within the event ends the answer there, whatever the engine said.
        """
        text = []
        for count, token_id in enumerate(event.token_ids, start=1):
            if token_id == event.stop_token_id and count == len(event.token_ids):
                break  # a token that ends the answer is no part of its text
            text.append(self._stop.push(self._detokenizer.push(token_id)))
            if self._stop.matched is not None:
                return self._matched("".join(text), event.token_ids[:count])
        if event.finish_reason is not None:
            text.append(self._stop.push(self._detokenizer.flush()))
            if self._stop.matched is not None:
                return self._matched("".join(text), event.token_ids)
            text.append(self._stop.flush())
        stop_token = event.stop_token_id if event.stop_token_id in self._stop_token_ids else None
        return Delta("".join(text), event.token_ids, event.finish_reason, stop_token, event.error)

    def _matched(self, text: str, token_ids: tuple[int, ...]) -> Delta:
        return Delta(text, token_ids, FinishReason.STOP, self._stop.matched)
