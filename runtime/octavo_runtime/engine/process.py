"""The engine as a process: its socket to the server, its beginning and its end.

It begins with one line on standard input (`Launch`) and ends when standard input does: then the server is gone.
Signals are the server's business, which drains before it lets the engine go.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Never

import msgspec
import zmq

from octavo_runtime.domain import EngineConfig, Event, FinishReason
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.errors import InternalError, InvalidRequest, StartError
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
from octavo_runtime.logs import set_up_logging

if TYPE_CHECKING:  # the executor brings torch; the loop runs any executor
    from octavo_runtime.engine.executor import Executor, Progress

__all__ = ["GC_THRESHOLDS", "run"]

GC_THRESHOLDS = (100_000, 50, 100)
"""A step makes hundreds of tuples and no cycles: with Python's own threshold of 700 objects the collector would look at
all requests again and again."""

_log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(FromServer)
_encoder = msgspec.msgpack.Encoder()


def run(load: Callable[[EngineConfig, Progress], Executor]) -> int:
    """Loads an executor and serves it until the server goes or something breaks; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    set_up_logging(launch.log_level)
    threading.Thread(target=_end_with_server, daemon=True).start()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)
        socket.linger = 1000  # ms: the last message should arrive
        socket.connect(launch.address)
        try:
            core = EngineCore(load(launch.config, lambda *progress: _send(socket, Loading(*progress))), launch.config)
            gc.collect()
            gc.freeze()  # what loading made stays: later collections need not look at it
            gc.set_threshold(*GC_THRESHOLDS)
            _send(socket, Ready(core.info))
            _serve(core, socket)
        except StartError as error:
            _send(socket, Fatal.of(error))
            code = error.exit_code
        except Exception as error:  # noqa: BLE001 - whatever it is, the server must hear of it
            _log.exception("the engine failed")
            _send(socket, Fatal.of(InternalError(f"{type(error).__name__} in the engine: {error}")))
            code = InternalError.exit_code
    return code


def _serve(core: EngineCore, socket: zmq.Socket[bytes]) -> Never:
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    if core.step_ended is not None:
        poller.register(core.step_ended, zmq.POLLIN)
    while True:
        if not core.has_work:
            socket.poll()
        changed = _take_all(core, socket)
        if not core.has_work:
            if changed:
                _send(socket, core.idle())
            continue
        core.begin()
        # What arrives while the step runs can still be part of the next one.
        while (seconds := core.seconds_to_plan()) > 0:
            ready = dict(poller.poll(None if math.isinf(seconds) else int(1000 * seconds)))
            _take_all(core, socket)
            if ready.keys() != {socket}:  # the step has ended, or is about to
                break
        _send(socket, core.step())


def _take_all(core: EngineCore, socket: zmq.Socket[bytes]) -> bool:
    """Takes in what has arrived; returns whether it was anything."""
    anything = False
    while socket.poll(0):
        anything = True
        _take(core, socket)
    return anything


def _take(core: EngineCore, socket: zmq.Socket[bytes]) -> None:
    match _decoder.decode(socket.recv()):
        case Add(request):
            try:
                core.add(request)
            except InvalidRequest as error:
                events = [
                    Event(request.request_id, finish_reason=FinishReason.ERROR, error=error.message, choice=choice)
                    for choice in range(request.sampling.n)
                ]
                _send(socket, Step(events, 0, core.idle().stats))
        case Abort(request_id, choice):
            core.abort(request_id, choice)
        case Resize(kv_cache_memory):
            try:
                _send(socket, Resized(core.resize(kv_cache_memory // core.info.block_bytes)))
            except ValueError as error:
                _send(socket, Resized(None, str(error)))


def _send(socket: zmq.Socket[bytes], message: FromEngine) -> None:
    socket.send(_encoder.encode(message))


def _end_with_server() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # also out of the middle of a step
