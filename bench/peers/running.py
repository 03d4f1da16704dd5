"""A side at work: its offline process, or its server with our clients."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp

from bench.peers.processes import Failed, Program
from bench.peers.sides import Side

__all__ = ["Run", "Running", "Server", "Worker"]

_START_SECONDS = 600
_RUN_SECONDS = 300


@dataclass(slots=True)
class Run:
    """What came of one piece of work.

    Attributes:
        tokens: Of all answers.
        seconds: From the first prompt sent to the last token.
        itl: Seconds between two tokens of a stream; of servers alone.
    """

    tokens: int
    seconds: float
    itl: list[float] = field(default_factory=list)


class Running(Protocol):
    """A process of a side: `start` and `run` raise Failed when it does not do them; the rest as for a Program."""

    def start(self, prompt: Sequence[int]) -> None:
        """Returns with the first token that follows the prompt."""

    def run(self, prompts: Sequence[Sequence[int]], output: int) -> Run:
        """Continues the prompts by so many tokens each, all at once."""

    def hold(self) -> None: ...
    def resume(self) -> None: ...
    def peak_memory(self) -> int: ...
    def end(self) -> None: ...


class Worker(Program):
    """A side's offline process.

    Args:
        side: Which.
        log: For what it says.
        weights: Gets the bytes of its weights, as it holds them, where it tells.
    """

    def __init__(self, side: Side, log: Path, weights: dict[str, int]) -> None:
        super().__init__(side.worker, side.environ, log, pipes=True)
        self._name = side.name
        self._weights = weights

    def start(self, prompt: Sequence[int]) -> None:
        self._ask([prompt], 1, _START_SECONDS)

    def run(self, prompts: Sequence[Sequence[int]], output: int) -> Run:
        return self._ask(prompts, output, _RUN_SECONDS)

    def _ask(self, prompts: Sequence[Sequence[int]], output: int, seconds: float) -> Run:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"prompts": prompts, "output": output}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self.failed("it takes no work") from error
        # One line answers one line, so nothing is left in the reader's buffer when we wait.
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise self.failed(f"no answer within {seconds} s")
        line = process.stdout.readline()
        if not line:
            process.wait(30)
            raise self.failed("it gave up")
        answer = json.loads(line)
        if "weights_bytes" in answer:
            self._weights[self._name] = answer["weights_bytes"]
        return Run(answer["tokens"], answer["seconds"])


class Server(Program):
    """A side's server, and the clients that use it.

    Args:
        side: Which.
        log: For what it says.
        text: Token ids to the text that they are the tokens of.
    """

    def __init__(self, side: Side, log: Path, text: Callable[[Sequence[int]], str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._prompt: Callable[[Sequence[int]], object] = text if side.reads_text else list
        # Past the end of a sequence, where that is offered.
        self._more = {} if side.reads_text else {"ignore_eos": True}
        super().__init__([*side.server, "--port", str(port)], side.environ, log, pipes=False)

    def start(self, prompt: Sequence[int]) -> None:
        asyncio.run(self._start(prompt))

    def run(self, prompts: Sequence[Sequence[int]], output: int) -> Run:
        return asyncio.run(self._run(prompts, output))

    async def _start(self, prompt: Sequence[int]) -> None:
        """Asks for a token until it comes."""
        until = time.monotonic() + _START_SECONDS
        async with _client() as http:
            while time.monotonic() < until:
                if self.process.poll() is not None:
                    raise self.failed("it did not start")
                try:
                    await self._stream(http, prompt, 1, Run(0, 0.0))
                except (aiohttp.ClientConnectorError, _NotReady):
                    await asyncio.sleep(0.05)
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise self.failed(f"the first request failed: {error!r}") from error
                else:
                    return
        raise self.failed(f"no token within {_START_SECONDS} s")

    async def _run(self, prompts: Sequence[Sequence[int]], output: int) -> Run:
        run = Run(0, 0.0)
        async with _client() as http:
            began = time.perf_counter()
            try:
                await asyncio.gather(*(self._stream(http, prompt, output, run) for prompt in prompts))
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self.failed(f"a request failed: {error!r}") from error
            run.seconds = time.perf_counter() - began
        return run

    async def _stream(self, http: aiohttp.ClientSession, prompt: Sequence[int], output: int, run: Run) -> None:
        body = {
            "model": "bench",
            "prompt": self._prompt(prompt),
            "max_tokens": output,
            "temperature": 0,
            "stream": True,
            **self._more,
        }
        last = None
        finish = None
        pieces = 0
        async with http.post(self._url, json=body) as answer:
            if answer.status == 503:
                raise _NotReady
            if answer.status != 200:
                raise Failed(f"a request got {answer.status}: {(await answer.text())[:300]}")
            async for line in answer.content:
                now = time.perf_counter()
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise Failed(f"a stream ended with {event['error']}")
                for choice in event["choices"]:
                    finish = choice["finish_reason"] or finish
                    if choice["text"]:
                        pieces += 1
                        if last is not None:
                            run.itl.append(now - last)
                        last = now
        if finish not in {"length", "stop"}:
            raise Failed(f"a stream was cut after {pieces} pieces")
        # A stream that went on to its limit has as many tokens; one that ended of itself about as many as pieces.
        run.tokens += output if finish == "length" else pieces


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=_RUN_SECONDS), connector=aiohttp.TCPConnector(limit=0)
    )


class _NotReady(Exception):
    """It listens, and loads."""
