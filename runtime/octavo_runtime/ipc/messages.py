"""Messages between the server and the engine: msgspec structs in MessagePack, one per ZeroMQ frame.

    server                      engine
      ── Add, Abort, Resize ───────────────────►
      ◄── Loading, Ready, Step, Resized, Fatal ──

The engine reads its configuration as one line of JSON (`Launch`) from standard input, which then stays open: its end
means that the server is gone.
"""

from __future__ import annotations

import msgspec

from octavo_runtime import errors
from octavo_runtime.domain import EngineConfig, EngineInfo, Event, Request, SchedulerStats
from octavo_runtime.errors import InternalError, StartError

__all__ = [
    "Abort",
    "Add",
    "Fatal",
    "FromEngine",
    "FromServer",
    "Launch",
    "Loading",
    "Ready",
    "Resize",
    "Resized",
    "Step",
]


class Launch(msgspec.Struct, frozen=True):
    """How an engine process begins: where to report, and what to load."""

    address: str
    config: EngineConfig
    log_level: str


class Add(msgspec.Struct, frozen=True, tag=True):
    """A new request."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for a request any longer, or for one of its answers: the one that `choice` says."""

    request_id: str
    choice: int | None = None


class Resize(msgspec.Struct, frozen=True, tag=True):
    """The KV cache is to take so many bytes. `Resized` answers, in order."""

    kv_cache_memory: int


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far a stage of loading has come, in units of the stage's own; total 0 when unknown."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is loaded."""

    info: EngineInfo


class Step(msgspec.Struct, frozen=True, tag=True):
    """One step: its news, the tokens it computed, and the state after it. Without tokens: only the state changed."""

    events: list[Event]
    num_tokens: int
    stats: SchedulerStats


class Resized(msgspec.Struct, frozen=True, tag=True):
    """What the engine is after a resize; None where it was refused, for the reason in `error`."""

    info: EngineInfo | None
    error: str = ""


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """Why the engine ends: the fields of a StartError."""

    code: str
    message: str
    hint: str
    needed: int | None
    available: int | None

    @classmethod
    def of(cls, error: StartError) -> Fatal:
        """The message for an error."""
        return cls(error.code, error.message, error.hint, error.needed, error.available)

    def error(self) -> StartError:
        """The error again, of its own class."""
        kind = getattr(errors, self.code, InternalError)
        return kind(self.message, hint=self.hint, needed=self.needed, available=self.available)


FromServer = Add | Abort | Resize
FromEngine = Loading | Ready | Step | Resized | Fatal
