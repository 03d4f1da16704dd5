"""The clients of bench/serving.py: many streams in one process, with as little work for each token as Python allows.

What a read brings is stamped with the time and counted; bodies are looked at when the stream is over. A client of
aiohttp that parses each event takes as much processor as the server that it measures, on the same two cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from bench.report import percentiles

__all__ = ["OUTPUT", "PROMPT", "Load", "closed", "opened", "prompt", "request"]

PROMPT, OUTPUT = 128, 64  # tokens of a request
_TOKEN = b'"finish_reason":null'  # in each event that brings text, and in no other


@dataclass
class Load:
    """What the clients of one load saw, in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    streams: list[list[float]] = field(default_factory=list)  # of each, when its texts came
    tokens: int = 0
    seconds: float = 0.0

    def figures(self, name: str) -> dict[str, float]:
        """Rates and percentiles."""
        return {
            f"{name}_tok_s": self.tokens / self.seconds,
            f"{name}_req_s": len(self.e2e) / self.seconds,
            **percentiles(f"{name}_ttft_s", self.ttft),
            **percentiles(f"{name}_itl_s", self.itl),
            **percentiles(f"{name}_e2e_s", self.e2e),
        }

    def steady_itl(self) -> list[float]:
        """Times between texts while all streams decode: after the last first text, before the first last one."""
        start, end = max(times[0] for times in self.streams), min(times[-1] for times in self.streams)
        return [
            after - before
            for times in self.streams
            for before, after in itertools.pairwise(times)
            if before >= start and after <= end
        ]


class _Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._pieces: list[bytes] = []
        self._cut = b""  # the end of the last read, which may be the beginning of what is counted
        self.times: list[float] = []
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._pieces.append(data)
        seen = self._cut + data
        self.times += [now] * seen.count(_TOKEN)
        self._cut = seen[1 - len(_TOKEN) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if exc is not None:
                self.done.set_exception(exc)
            else:
                self.done.set_result(b"".join(self._pieces))


def prompt(rng: random.Random) -> list[int]:
    """Random token ids: no two prompts share a prefix."""
    return [rng.randrange(3, 48_000) for _ in range(PROMPT)]


async def request(port: int, token_ids: list[int], load: Load, output: int = OUTPUT) -> None:
    """Sends one request and reads its stream. Anything but a whole answer ends the benchmark."""
    body = {
        "prompt": token_ids,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    began = time.perf_counter()
    _, stream = await asyncio.get_running_loop().create_connection(
        lambda: _Stream(head.encode() + payload), "127.0.0.1", port
    )
    answer = await stream.done
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"a request failed: {answer[:500].decode(errors='replace')}")
    usage = b'"completion_tokens":%d' % output
    if b"data: [DONE]" not in answer or usage not in answer or not stream.times:
        raise SystemExit(f"a stream was cut: {answer[-500:].decode(errors='replace')}")
    times = stream.times
    load.ttft.append(times[0] - began)
    load.itl += [after - before for before, after in itertools.pairwise(times)]
    load.streams.append(times)
    load.e2e.append(time.perf_counter() - began)
    load.tokens += output


async def closed(port: int, clients: int, requests: int, seed: int = 0) -> Load:
    """So many clients, each of which sends its next request when the last is answered."""
    load = Load()

    async def client(number: int) -> None:
        rng = random.Random(seed + 1000 * clients + number)
        for _ in range(requests):
            await request(port, prompt(rng), load)

    return await _run(load, [client(number) for number in range(clients)])


async def opened(port: int, rate: float, seconds: float) -> Load:
    """Requests at random times, so many in a second."""
    load = Load()
    rng = random.Random(7)
    arrivals = []
    at = rng.expovariate(rate)
    while at < seconds:
        arrivals.append(at)
        at += rng.expovariate(rate)

    async def client(number: int, at: float) -> None:
        await asyncio.sleep(at)
        await request(port, prompt(random.Random(100_000 + number)), load)

    return await _run(load, [client(number, at) for number, at in enumerate(arrivals or [0.0])])


async def _run(load: Load, clients: list[Coroutine[Any, Any, None]]) -> Load:
    began = time.perf_counter()
    await asyncio.gather(*clients)
    load.seconds = time.perf_counter() - began
    return load
