"""The server's end: starts the engine process, hands it requests, and turns its messages into streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from octavo_runtime.domain import EngineConfig, EngineInfo, Event, FinishReason, Request
from octavo_runtime.errors import CannotListen, EngineDied, InternalError, InvalidRequest, StartError
from octavo_runtime.ipc.messages import (
    Abort,
    Add,
    Fatal,
    FromEngine,
    FromServer,
    Launch,
    Loading,
    Ready,
    Resize,
    Resized,
    Step,
)

__all__ = ["ENGINE_COMMAND", "Arrival", "EngineClient"]

ENGINE_COMMAND = (sys.executable, "-m", "octavo_runtime.engine")

_log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """An event, and when it came, in seconds on the monotonic clock."""

    event: Event
    at: float


class _Mailbox:
    """What has come for one reader and was not taken yet. A reader that is slow takes more at once."""

    def __init__(self) -> None:
        self._news: list[Arrival] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, arrival: Arrival) -> None:
        self._news.append(arrival)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[Arrival]:
        """Waits for news; all of it, in order."""
        if not self._news:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
            self._waiting = None
        news, self._news = self._news, []
        return news


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that the engine has: who hears of it, and its answers that have not ended."""

    events: _Mailbox
    answers: set[int]


@dataclass(slots=True)
class EngineClient:
    """One engine process.

    Args:
        config: What the engine is started with.
        command: The engine's program; tests give their own.
        on_loading: Called for each report of progress while the engine loads.
        on_step: Called for each step.

    Attributes:
        info: The engine's limits, once `ready` has returned; a resize changes them.
        failure: Why the engine ended, or None while it lives.
    """

    config: EngineConfig
    command: Sequence[str] = ENGINE_COMMAND
    on_loading: Callable[[Loading], None] = lambda _: None
    on_step: Callable[[Step], None] = lambda _: None
    info: EngineInfo | None = None
    failure: StartError | None = None
    _open: dict[str, _Open] = field(default_factory=dict)
    _resizes: deque[asyncio.Future[EngineInfo]] = field(default_factory=deque)
    _last_heard: float = field(default_factory=time.monotonic)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _encoder: msgspec.msgpack.Encoder = field(default_factory=msgspec.msgpack.Encoder)
    _cleanup: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _decoder: msgspec.msgpack.Decoder[FromEngine] = field(default_factory=lambda: msgspec.msgpack.Decoder(FromEngine))
    _socket: zmq.Socket[bytes] = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _process: Process = field(init=False)

    async def start(self) -> None:
        """Starts the process; returns at once, while it loads.

        Raises:
            CannotListen: There is no place for the socket to it.
        """
        try:
            address = self._listen()
        except (OSError, zmq.ZMQError) as error:
            raise CannotListen(
                f"there is no place for the socket between server and engine: {str(error).partition('. ')[0]}",
                hint="Set TMPDIR to a directory with a short name that can be written.",
            ) from error
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._read)
        self._cleanup.callback(self._loop.remove_reader, self._socket.FD)
        # A session of its own: Ctrl-C at a terminal is for the server, which drains first.
        self._process = await asyncio.create_subprocess_exec(*self.command, stdin=PIPE, start_new_session=True)
        assert self._process.stdin is not None
        self._process.stdin.write(
            msgspec.json.encode(Launch(address, self.config, logging.getLevelName(_log.getEffectiveLevel()))) + b"\n"
        )
        self._last_heard = time.monotonic()
        self._tasks = [asyncio.create_task(self._watch())]

    def _listen(self) -> str:
        """Makes the socket; returns its address."""
        # A directory of our own: nobody else can connect.
        folder = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="octavo-"))
        address = f"ipc://{Path(folder) / 'engine'}"
        context = zmq.Context()
        self._cleanup.callback(context.term)
        self._socket = context.socket(zmq.PAIR)
        self._cleanup.callback(self._socket.close, linger=0)
        self._socket.set_hwm(0)  # the queue of requests is bounded at the door
        self._socket.bind(address)
        return address

    async def ready(self) -> EngineInfo:
        """Waits until the engine is loaded.

        Raises:
            StartError: It could not load.
        """
        await self._ready.wait()
        if self.failure is not None:
            raise self.failure
        assert self.info is not None
        return self.info

    async def ended(self) -> StartError:
        """Waits until the engine has ended by itself; returns why."""
        await self._ended.wait()
        assert self.failure is not None
        return self.failure

    async def stop(self) -> None:
        """Ends the engine process and frees what belongs to it. Open streams get an error."""
        self._fail(EngineDied("the server is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._cleanup.aclose()

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    @property
    def num_open(self) -> int:
        """Requests that the engine has and has not ended."""
        return len(self._open)

    def silent_for(self, now: float) -> float:
        """Seconds since the engine last showed progress of loading, or a step while it had work; 0 without work.

        Args:
            now: Seconds on the monotonic clock.
        """
        return max(0.0, now - self._last_heard) if self._open or self.info is None else 0.0

    async def stream(self, requests: Sequence[Request]) -> AsyncGenerator[list[Arrival]]:
        """Hands over requests and yields their events, mixed, without end: the caller leaves when it has enough.

        What has come since the caller last asked is yielded at once, mostly the tokens of one step.

        A request has as many last events as answers. Closing the generator aborts those of the requests that have not
        ended. When the engine ends, each answer gets a last event with an error.
        """
        mailbox = _Mailbox()
        if not self._open:
            self._last_heard = time.monotonic()  # silence counts from here
        try:
            for request in requests:
                self._open[request.request_id] = _Open(mailbox, set(range(request.sampling.n)))
                self._send(Add(request))
            if self.failure is not None:
                self._end_all(self.failure)
            while True:
                yield await mailbox.take()
        finally:
            for request in requests:
                self.abort(request.request_id)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ends a request early, or one of its answers: no event of it comes any more. What has ended is ignored."""
        request = self._open.get(request_id)
        if request is None:
            return
        if choice is not None:
            if choice not in request.answers:
                return
            request.answers.remove(choice)
            if request.answers:
                self._send(Abort(request_id, choice))
                return
        del self._open[request_id]
        self._send(Abort(request_id))

    async def resize(self, size: int) -> EngineInfo:
        """Changes the size of the KV cache to so many bytes; returns the engine's new `info`.

        Raises:
            InvalidRequest: The engine refuses; the message says why.
            StartError: The engine has ended.
        """
        if self.failure is not None:
            raise self.failure
        answer: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._resizes.append(answer)
        self._send(Resize(size))
        return await answer

    def _send(self, message: FromServer) -> None:
        if self.failure is None:
            # Without a high-water mark the frame is queued at once, unless the other end is gone: then the engine has
            # ended, and `_watch` is about to tell everybody.
            with contextlib.suppress(zmq.Again):
                self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
            # To send may take the news from the socket's descriptor that there is something to read.
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Takes all that has come: the socket's descriptor tells only once that it is no longer empty."""
        try:
            while not self._socket.closed:
                try:
                    frame = self._socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    return
                self._take(self._decoder.decode(frame))
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            _log.exception("the server cannot go on with its engine")
            self._fail(InternalError(f"{type(error).__name__} on a message of the engine: {error}"))

    def _take(self, message: FromEngine) -> None:
        self._last_heard = time.monotonic()
        match message:
            case Step():
                for event in message.events:
                    self._deliver(event)
                self.on_step(message)
            case Loading():
                self.on_loading(message)
            case Ready():
                self.info = message.info
                self._ready.set()
            case Resized():
                self._resized(message)
            case Fatal():
                self._fail(message.error())

    async def _watch(self) -> None:
        code = await self._process.wait()
        if code >= 0:
            # It may have said why; that message is already on its way.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), timeout=1)
        self._fail(_died(code))

    def _deliver(self, event: Event) -> None:
        request = self._open.get(event.request_id)
        if request is None or event.choice not in request.answers:  # aborted while the step ran
            return
        if event.finish_reason is not None:
            request.answers.remove(event.choice)
            if not request.answers:
                del self._open[event.request_id]
        request.events.put(Arrival(event, self._last_heard))

    def _resized(self, message: Resized) -> None:
        answer = self._resizes.popleft()
        if message.info is not None:
            self.info = message.info
        if answer.cancelled():
            return
        if message.info is not None:
            answer.set_result(message.info)
        else:
            answer.set_exception(InvalidRequest(message.error, param="bytes"))

    def _fail(self, error: StartError) -> None:
        if self.failure is None:
            self.failure = error
            self._end_all(error)
            while self._resizes:
                answer = self._resizes.popleft()
                if not answer.cancelled():
                    answer.set_exception(error)
            self._ready.set()
            self._ended.set()

    def _end_all(self, error: StartError) -> None:
        for request_id, request in list(self._open.items()):
            for choice in sorted(request.answers):
                self._deliver(Event(request_id, finish_reason=FinishReason.ERROR, error=error.message, choice=choice))


def _died(code: int) -> EngineDied:
    if code == -signal.SIGKILL:
        return EngineDied(
            "the engine process was killed (SIGKILL)",
            hint="Most often the kernel did it because the memory limit was reached: raise the container's memory, or "
            "lower --kv-cache-memory or --max-num-batched-tokens.",
        )
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return EngineDied(f"the engine process {how}", hint="Its last words are on standard error, above.")
