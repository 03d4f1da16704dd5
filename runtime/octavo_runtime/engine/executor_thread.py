"""The thread that an executor works in, so that the next step can be planned, and be at hand, while one runs."""

from __future__ import annotations

import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

from octavo_runtime.domain import StepPlan, StepResult

if TYPE_CHECKING:
    from octavo_runtime.engine.executor import Executor

__all__ = ["ExecutorThread"]

_Inbox = SimpleQueue[tuple[int, StepPlan] | None]
_Outbox = SimpleQueue[StepResult | BaseException]

_PATIENCE = 10.0  # seconds that the end of the program waits for the end of a step


class ExecutorThread:
    """Executes steps one after the other, in one thread that lives as long as this object.

    A step that is handed over while another runs begins when that ends, without anybody's doing: to wake a thread, and
    to get the interpreter's lock for it, may take longer than a step.

    Args:
        executor: Loaded.

    Attributes:
        ended: A file descriptor that is readable while there is a result to take.
    """

    def __init__(self, executor: Executor) -> None:
        self._inbox: _Inbox = SimpleQueue()
        self._outbox: _Outbox = SimpleQueue()
        self._attempt = 0
        self.ended = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Daemonic, and without a reference to this object: nobody has to close it.
        thread = threading.Thread(
            target=_work, args=(executor, self._inbox, self._outbox, self.ended), name="executor", daemon=True
        )
        thread.start()
        weakref.finalize(self, _stop, self._inbox, thread)

    def start(self, plan: StepPlan) -> None:
        """Begins a step as soon as those before it have ended."""
        self._inbox.put((self._attempt, plan))

    def result(self) -> StepResult | BaseException:
        """Waits for the end of the first step whose result was not taken yet; what the executor returned or raised.

        Where it raised, the steps that were handed over after that one are forgotten.
        """
        outcome = self._outbox.get()
        os.eventfd_read(self.ended)
        if isinstance(outcome, BaseException):
            self._attempt += 1
        return outcome


def _work(executor: Executor, inbox: _Inbox, outbox: _Outbox, ended: int) -> None:
    failed = -1
    while (item := inbox.get()) is not None:
        attempt, plan = item
        if attempt == failed:
            continue
        outcome: StepResult | BaseException
        try:
            outcome = executor.execute(plan)
        except BaseException as error:  # noqa: BLE001 - whoever takes the result gets it
            outcome, failed = error, attempt
        os.eventfd_write(ended, 1)  # before the outcome: who takes that reads this
        outbox.put(outcome)
        del item, plan, outcome
    os.close(ended)


def _stop(inbox: _Inbox, thread: threading.Thread) -> None:
    inbox.put(None)
    if thread is not threading.current_thread():  # where the garbage collector may run as well
        thread.join(_PATIENCE)
