"""The thread that an executor works in, so that the next step can be planned while one runs."""

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

_Inbox = SimpleQueue[StepPlan | None]
_Outbox = SimpleQueue[StepResult | BaseException]

_PATIENCE = 10.0  # seconds that the end of the program waits for the end of a step


class ExecutorThread:
    """Executes steps one at a time, in one thread that lives as long as this object.

    Args:
        executor: Loaded.

    Attributes:
        ended: A file descriptor that is readable while there is a result to take.
    """

    def __init__(self, executor: Executor) -> None:
        self._inbox: _Inbox = SimpleQueue()
        self._outbox: _Outbox = SimpleQueue()
        self.ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Daemonic, and without a reference to this object: nobody has to close it.
        thread = threading.Thread(
            target=_work, args=(executor, self._inbox, self._outbox, self.ended), name="executor", daemon=True
        )
        thread.start()
        weakref.finalize(self, _stop, self._inbox, thread)

    def start(self, plan: StepPlan) -> None:
        """Begins a step; the result of the one before has been taken."""
        self._inbox.put(plan)

    def result(self) -> StepResult | BaseException:
        """Waits for the step's end; returns what the executor returned or raised."""
        outcome = self._outbox.get()
        os.eventfd_read(self.ended)
        return outcome


def _work(executor: Executor, inbox: _Inbox, outbox: _Outbox, ended: int) -> None:
    while (plan := inbox.get()) is not None:
        outcome: StepResult | BaseException
        try:
            outcome = executor.execute(plan)
        except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
            outcome = error
        os.eventfd_write(ended, 1)  # before the outcome: who takes that reads this
        outbox.put(outcome)
        del plan, outcome
    os.close(ended)


def _stop(inbox: _Inbox, thread: threading.Thread) -> None:
    inbox.put(None)
    if thread is not threading.current_thread():  # where the garbage collector may run as well
        thread.join(_PATIENCE)
