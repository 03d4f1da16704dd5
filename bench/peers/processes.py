"""Programs that can be held and ended, with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_END_SECONDS = 15


class Failed(Exception):
    """A side did not do what it was asked; the text says what, with the end of its log."""


class Program:
    """A program that writes to a log, and its children.

    Args:
        command: Program and arguments.
        environ: Variables besides our own.
        log: File for what it says, written anew.
        pipes: Its stdin and stdout are pipes of ours; else stdout goes to the log too.

    Raises:
        Failed: There is no such program.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, *, pipes: bool) -> None:
        self.log = log
        self._ended = False
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as file:
                self.process = subprocess.Popen(
                    command,
                    env={**os.environ, **environ},
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else file,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C reaches us alone, and we end it
                )
        except OSError as error:
            raise Failed(f"it cannot be started: {error}") from error

    def hold(self) -> None:
        """Lets nothing of it run until `resume`; returns when it stands still."""
        tree = self._tree()
        self._signal(tree, signal.SIGSTOP)
        _wait(tree, {"T", "Z", ""}, 5)

    def resume(self) -> None:
        """Lets it run on, children first: nobody then waits for one that is held."""
        self._signal(reversed(self._tree()), signal.SIGCONT)

    def peak_memory(self) -> int:
        """Bytes resident at their peak, summed over its processes; pages that two of them share count twice."""
        peak = 0
        for pid in self._tree():
            with suppress(FileNotFoundError, ProcessLookupError):
                for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
                    if line.startswith("VmHWM"):
                        peak += int(line.split()[1]) * 1024
        return peak

    def end(self) -> None:
        """Ends it and its children, asked first, killed when that does not help; does nothing the second time."""
        if self._ended:
            return
        self._ended = True
        tree = self._tree()
        self.resume()
        self._signal(tree[:1], signal.SIGTERM)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _wait(tree, {"Z", ""}, 2)  # children that see their parent's end
        self._signal(tree[1:], signal.SIGKILL)
        _wait(tree, {"Z", ""}, 5)
        with suppress(ProcessLookupError):  # and children of one that was gone before we looked
            os.killpg(self.process.pid, signal.SIGKILL)

    def failed(self, what: str) -> Failed:
        """The error that says `what` and how the log ends."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        code = self.process.poll()
        ended = "" if code is None else f", it ended with {code}"
        return Failed(f"{what}{ended}; {self.log} ends: {' / '.join(lines[-3:]) or '(empty)'}")

    def _tree(self) -> list[int]:
        """Its process ids, parents before children."""
        return [] if self.process.poll() is not None else [self.process.pid, *_descendants(self.process.pid)]

    @staticmethod
    def _signal(pids: Iterator[int] | Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)


def _wait(pids: Sequence[int], states: set[str], seconds: float) -> None:
    """Until each of them is in one of these states, or the time is over."""
    until = time.monotonic() + seconds
    while any(_state(pid) not in states for pid in pids) and time.monotonic() < until:
        time.sleep(0.001)


def _state(pid: int) -> str:
    """T: stopped, Z: ended and not yet waited for, empty: gone; else something else."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    return ""
