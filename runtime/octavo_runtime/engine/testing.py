"""For tests: what stands for a GPU that captures and replays graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

__all__ = ["RecordingDevice"]


class RecordingDevice:
    """A GraphDevice on the CPU: a replay does the work again. As in a graph, that is the same work each time.

    Attributes:
        num_captured: Works so far.
        replayed: Which of them were replayed, by the order of their capture.
        sent: Size of what was sent, copy by copy.
    """

    def __init__(self) -> None:
        self.num_captured = 0
        self.replayed: list[int] = []
        self.sent: list[int] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See octavo_runtime.engine.decode_graphs.GraphDevice."""
        work()  # on a GPU, too, it is done before
        number = self.num_captured
        self.num_captured += 1

        def replay() -> None:
            self.replayed.append(number)
            work()

        return replay

    def send(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        """See octavo_runtime.engine.decode_graphs.GraphDevice."""
        self.sent.append(numbers.size)
        return torch.from_numpy(numbers.copy())
