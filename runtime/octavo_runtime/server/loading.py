"""What a user sees while the model loads: a progress bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from octavo_runtime.ipc.messages import Loading

__all__ = ["LoadingDisplay"]

_log = logging.getLogger(__name__)
_LOG_EVERY = 25  # percent


class LoadingDisplay:
    """Shows each report of progress; a context manager, since a terminal is to be left clean."""

    def __init__(self) -> None:
        self._stage = ""
        self._percent = -_LOG_EVERY
        self._task: TaskID | None = None
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, report: Loading) -> None:
        """Shows one report."""
        new_stage = report.stage != self._stage
        self._stage = report.stage
        if self._bar is not None:
            if new_stage or self._task is None:
                self._task = self._bar.add_task(f"loading: {report.stage}", total=report.total or None)
            self._bar.update(self._task, completed=report.done)
            return
        percent = 100 * report.done // report.total if report.total else 0
        if new_stage or percent >= self._percent + _LOG_EVERY:
            self._percent = percent
            _log.info("loading: %s %d %%", report.stage, percent)
