"""Progress for the person who waits: one line per stage with its duration, on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints `stage … 1.2 s`; a note inside a stage gets a line of its own."""

    def __init__(self) -> None:
        self._open_line = False

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Time a stage. On failure the line ends without a duration and the error goes on its way."""
        self._end_line()
        self._write(f"cluster: {title} …")
        self._open_line = True
        started = time.monotonic()
        try:
            yield
        except BaseException:
            self._end_line()
            raise
        took = f"{time.monotonic() - started:.1f} s"
        self._write(f" {took}\n" if self._open_line else f"cluster: {title}: done in {took}\n")
        self._open_line = False

    def note(self, text: str) -> None:
        """Say something that is worth a line of its own."""
        self._end_line()
        self._write(f"cluster: {text}\n")

    def _end_line(self) -> None:
        if self._open_line:
            self._write("\n")
            self._open_line = False

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
