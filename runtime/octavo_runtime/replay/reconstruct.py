"""From the lines of a trace to requests that share prefixes as the recorded ones did.

The tokens of a full block follow from its hash alone, so blocks that were equal are equal again, and only those. The
tokens after the last full block are the request's own.
"""

from __future__ import annotations

from octavo_runtime.domain import Request, SamplingParams
from octavo_runtime.replay.requests import FIRST_FREE_TOKEN, ReplayRequest, filler
from octavo_runtime.replay.trace import Trace, TraceLine

__all__ = ["replay_requests"]

_BITS = 24  # of a hash or a number in one token id, which has 31


def replay_requests(trace: Trace, *, longest: int, rate_scale: float = 1.0) -> list[ReplayRequest]:
    """The requests of a trace, in order of arrival.

    Args:
        trace: Which was read.
        longest: Tokens of the longest request there can be in the replay. A max_tokens that goes beyond is cut, as a
            server does that resolves it, but not below what the request was answered.
        rate_scale: How many times as fast the requests come.
    """
    block_size = trace.header.block_size
    return [_request(number, line, block_size, longest, rate_scale) for number, line in enumerate(trace.lines)]


def _request(number: int, line: TraceLine, block_size: int, longest: int, rate_scale: float) -> ReplayRequest:
    answers = len(line.outputs)
    width = max(line.best_of, answers)
    tokens = [token for digest in line.hashes for token in _tokens(int(digest, 16), block_size)]
    own = line.prompt + max(line.outputs) - len(tokens)
    tokens += _tokens(number, own)
    sampling = SamplingParams(
        temperature=0.0 if line.beam_search else 1.0,
        seed=0,
        max_tokens=min(line.max_tokens, max(longest - line.prompt, *line.outputs, 1)),
        n=answers,
        best_of=width,
        use_beam_search=line.beam_search,
    )
    request = Request(
        request_id=f"request-{number}",
        prompt_token_ids=tuple(tokens[: line.prompt]),
        sampling=sampling,
        arrival=line.arrival / rate_scale,
        priority=line.priority,
    )
    return ReplayRequest(
        request,
        # Of sequences that were not chosen nothing is recorded: they are taken to be like those that were. An answer
        # aborted before its first token gets one.
        output_lengths=tuple(max(1, line.outputs[choice % answers]) for choice in range(width)),
        output_token_ids=tuple(tokens[line.prompt :]) if width == 1 else (),
    )


def _tokens(value: int, count: int) -> list[int]:
    """Tokens that stand for a number of 64 bits: distinct in the first three, where there are so many."""
    digits = [FIRST_FREE_TOKEN + (value >> (_BITS * place)) % (1 << _BITS) for place in range(3)]
    return (digits + [filler(0)] * max(0, count - len(digits)))[:count]
