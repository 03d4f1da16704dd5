"""`--record-trace`: what the server sees of requests, written for `octavo replay`."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from octavo_runtime.domain import EngineConfig, EngineInfo, Event, FinishReason, Request
from octavo_runtime.errors import BadFlags

if TYPE_CHECKING:  # the replay that comes with it is not needed to serve
    from octavo_runtime.replay.trace import TraceWriter

__all__ = ["Recording"]

_log = logging.getLogger(__name__)


class Recording:
    """A trace in the making. A disk that is full ends the recording, not the server.

    Args:
        path: Replaced if it exists; None records nothing.

    Raises:
        BadFlags: The file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._writer: TraceWriter | None = None
        if path is not None:
            try:
                self._file = path.open("w", encoding="utf-8")
            except OSError as error:
                raise BadFlags(
                    f"--record-trace: {path} cannot be written: {error.strerror}", hint="Name another file."
                ) from error

    def loaded(self, info: EngineInfo, config: EngineConfig) -> None:
        """Begins, once the engine is known."""
        if self._file is None:
            return
        from octavo_runtime.replay.trace import VERSION, TraceHeader, TraceWriter

        header = TraceHeader(
            octavo_trace=VERSION,
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_model_len=info.max_model_len,
            scheduler=config.scheduler,
            num_host_blocks=info.num_host_blocks,
        )
        try:
            self._writer = TraceWriter(self._file, header, time.monotonic())
        except OSError as error:
            self._give_up(error)

    def begin(self, request: Request) -> None:
        """A request was let in."""
        if self._writer is not None:
            self._writer.begin(request)

    def event(self, event: Event, finish_reason: FinishReason | None, at: float) -> None:
        """The engine's news of a request, and how the answer ended, which a stop string may have done."""
        if self._writer is not None:
            try:
                self._writer.event(event._replace(finish_reason=finish_reason), at)
            except OSError as error:
                self._give_up(error)

    def end(self, request: Request) -> None:
        """Nobody waits for a request any longer."""
        if self._writer is not None:
            try:
                self._writer.abort(request.request_id, time.monotonic())
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Ends the recording."""
        self._writer = None
        if self._file is not None:
            with contextlib.suppress(OSError):  # the disk is full: said when it was found
                self._file.close()

    def _give_up(self, error: OSError) -> None:
        _log.warning("no more is recorded in %s: %s", self._path, error.strerror)
        self._writer = None
