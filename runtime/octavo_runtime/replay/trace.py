"""The trace of a server: who asked when, and how long it was. No text and no token ids.

A file of JSON lines. The first is the header, `TraceHeader`:

    {"octavo_trace": 1, "block_size": 16, "num_blocks": 3750, "max_model_len": 2048, "scheduler": {"policy": "fcfs", …}}

Each other line is a request, `TraceLine`, written when it has ended. Fields that have their default are left out:

    {"arrival": 0.52, "prompt": 161, "outputs": [338], "max_tokens": 512, "first_token": 0.61, "finished": 3.2,
     "finish": ["stop"], "hashes": ["9f2c41d07a3be655", …]}

The hashes are a chain: equal ones stand for equal prefixes, so that a replay finds the same prefixes shared. Each chain
begins with a secret that is drawn for the trace and kept nowhere: nobody can try out texts against it.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, TextIO

import msgspec

from octavo_runtime.domain import Event, Request, SchedulerConfig
from octavo_runtime.replay.step_time import StepTimeModel

__all__ = ["VERSION", "Trace", "TraceError", "TraceHeader", "TraceLine", "TraceWriter", "read_trace"]

VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceError(ValueError):
    """A file that is no trace; the message names the line."""


class TraceHeader(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The engine that was recorded.

    Attributes:
        octavo_trace: Version of the format.
        block_size: Tokens per block, and per hash.
        num_blocks: Blocks of the device's pool.
        max_model_len: Longest prompt plus output.
        scheduler: Its settings.
        num_host_blocks: Blocks of the host tier.
        step_time: How long its steps take, where that is known.
    """

    octavo_trace: int
    block_size: Positive
    num_blocks: Positive
    max_model_len: Positive
    scheduler: SchedulerConfig
    num_host_blocks: Count = 0
    step_time: StepTimeModel | None = None


class TraceLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request. Times are seconds since the header was written.

    Attributes:
        arrival: When it came.
        prompt: Tokens of the prompt.
        outputs: Tokens of each answer; 0 for one that was aborted before its first.
        max_tokens: Most tokens that an answer could have had.
        first_token: When its first token came; None: never.
        finished: When its last answer ended.
        cached: Prompt tokens found in the prefix cache.
        finish: Why each answer ended.
        best_of: Sequences from which the answers were chosen; 0: as many as there are answers.
        beam_search: Whether they are beams.
        priority: Lower runs earlier.
        hashes: Of the full blocks of prompt and, where there is one answer, output.
    """

    arrival: Seconds
    prompt: Positive
    outputs: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    max_tokens: Positive
    finished: Seconds
    first_token: Seconds | None = None
    cached: Count = 0
    finish: tuple[str, ...] = ()
    best_of: Count = 0
    beam_search: bool = False
    priority: int = 0
    hashes: tuple[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")], ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read; its requests in order of arrival."""

    header: TraceHeader
    lines: tuple[TraceLine, ...]


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    request: Request
    first_token: float | None = None
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    outputs: dict[int, int] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)


class TraceWriter:
    """Writes a trace from what a server sees. A request that has not ended when the server stops is left out.

    Args:
        file: Empty, open for text.
        header: The engine.
        now: Of the clock that `Request.arrival` and the times of the other methods are on.
    """

    def __init__(self, file: TextIO, header: TraceHeader, now: float) -> None:
        self._file = file
        self._began = now
        self._block_size = header.block_size
        self._secret = secrets.token_bytes(16)
        self._open: dict[str, _Open] = {}
        self._write(header)

    def begin(self, request: Request) -> None:
        """Hears of a request that was accepted."""
        self._open[request.request_id] = _Open(request)

    def event(self, event: Event, now: float) -> None:
        """Hears the engine's news of a request; what comes after an answer's end is ignored."""
        known = self._open.get(event.request_id)
        if known is None or event.choice in known.finish:
            return
        known.cached = max(known.cached, event.num_cached_tokens)
        if event.token_ids:
            known.first_token = now if known.first_token is None else known.first_token
            known.outputs[event.choice] = known.outputs.get(event.choice, 0) + len(event.token_ids)
            if known.request.sampling.n == 1:
                known.tokens += event.token_ids
        if event.finish_reason is not None:
            self._end(known, event.choice, event.finish_reason.value, now)

    def abort(self, request_id: str, now: float) -> None:
        """Hears that nobody waits for a request any longer; unknown ids are of requests that ended meanwhile."""
        known = self._open.get(request_id)
        if known is not None:
            for index in set(range(known.request.sampling.n)) - known.finish.keys():
                self._end(known, index, "abort", now)

    def _end(self, known: _Open, index: int, reason: str, now: float) -> None:
        known.finish[index] = reason
        request, sampling = known.request, known.request.sampling
        if len(known.finish) < sampling.n:
            return
        del self._open[request.request_id]
        assert sampling.max_tokens is not None, "the door resolves max_tokens"
        self._write(
            TraceLine(
                arrival=self._since(request.arrival),
                prompt=len(request.prompt_token_ids),
                outputs=tuple(known.outputs.get(answer, 0) for answer in range(sampling.n)),
                max_tokens=sampling.max_tokens,
                finished=self._since(now),
                first_token=None if known.first_token is None else self._since(known.first_token),
                cached=known.cached,
                finish=tuple(known.finish[answer] for answer in range(sampling.n)),
                best_of=sampling.width if sampling.width > sampling.n else 0,
                beam_search=sampling.use_beam_search,
                priority=request.priority,
                hashes=tuple(self._hashes(request, known.tokens)),
            )
        )

    def _since(self, now: float) -> float:
        # A request may have come just before the header was written.
        return max(0.0, round(now - self._began, 6))

    def _hashes(self, request: Request, output: list[int]) -> Iterator[str]:
        tokens = array("q", (*request.prompt_token_ids, *output))
        digest = blake2b(request.cache_salt.encode(), digest_size=8, key=self._secret).digest()
        for start in range(0, len(tokens) - self._block_size + 1, self._block_size):
            block = tokens[start : start + self._block_size].tobytes()
            digest = blake2b(digest + block, digest_size=8, key=self._secret).digest()
            yield digest.hex()

    def _write(self, line: TraceHeader | TraceLine) -> None:
        # One write and a flush: a server that dies leaves whole lines.
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()


def read_trace(path: Path) -> Trace:
    """Reads a trace. An unfinished last line is what a killed server leaves; it is ignored.

    Raises:
        TraceError: The file cannot be read, or a line is wrong; the message names it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    first, *others = data.split(b"\n")[:-1] or [b""]
    header = _read_header(path, first)
    lines = []
    for number, text in enumerate(others, start=2):
        try:
            line = msgspec.json.decode(text, type=TraceLine)
            _check(line, header)
        except (msgspec.DecodeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        lines.append(line)
    if not lines:
        raise TraceError(f"{path} has a header and no requests")
    return Trace(header, tuple(sorted(lines, key=lambda line: line.arrival)))


class _Version(msgspec.Struct):
    octavo_trace: int


def _read_header(path: Path, text: bytes) -> TraceHeader:
    try:
        version = msgspec.json.decode(text, type=_Version).octavo_trace
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}, line 1: no header of a trace ({error})") from error
    if version != VERSION:
        raise TraceError(f"{path} is a trace of version {version}; this Octavo reads version {VERSION}")
    try:
        return msgspec.json.decode(text, type=TraceHeader)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}, line 1: {error}") from error


def _check(line: TraceLine, header: TraceHeader) -> None:
    """Raises ValueError where the numbers of a line contradict each other."""
    longest = max(line.outputs)
    if longest > line.max_tokens:
        raise ValueError(f"an output of {longest} tokens, but max_tokens is {line.max_tokens}")
    if line.prompt + line.max_tokens > header.max_model_len:
        raise ValueError(
            f"a prompt of {line.prompt} tokens and max_tokens {line.max_tokens}, together more than the model's "
            f"{header.max_model_len}"
        )
    tokens = line.prompt + (longest if len(line.outputs) == 1 else 0)
    if len(line.hashes) > tokens // header.block_size:
        raise ValueError(f"{len(line.hashes)} hashes, but {tokens} tokens fill {tokens // header.block_size} blocks")
