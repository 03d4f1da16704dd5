"""A request of a replay: what is asked, and what the answers will turn out to be."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.domain import Request

__all__ = ["EOS", "FIRST_FREE_TOKEN", "ReplayRequest", "filler"]

EOS = 0
"""The token that ends an answer of a replay; nothing else has this id."""

FIRST_FREE_TOKEN = 4096
"""The ids from here on are for prompts and known outputs; those below are fillers."""


def filler(choice: int) -> int:
    """The token of an answer whose tokens nobody knows. Answers to one prompt differ, so that none shares another's."""
    return 1 + choice


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request whose answers are known in advance, though not to the scheduler.

    Attributes:
        request: What the scheduler is given; its `arrival` counts from the replay's start.
        output_lengths: Tokens of each of the sequences (`sampling.width` of them), the last one included. A length
            below max_tokens ends with EOS.
        output_token_ids: The tokens of a single answer, as far as they are known; elsewhere it has fillers.
        label: The class under which its latencies are counted.
    """

    request: Request
    output_lengths: tuple[int, ...]
    output_token_ids: tuple[int, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        assert len(self.output_lengths) == sampling.width, "a length for each sequence"
        assert all(1 <= length <= (sampling.max_tokens or 0) for length in self.output_lengths), "1 to max_tokens"
