"""For tests: what stands for a GPU that captures and replays graphs, and memory that shows when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo_kernels.native.arrays import cast
from octavo_kernels.paged_attention.rows import has_scales
from octavo_runtime.engine.native_executor import NativeExecutor
from octavo_runtime.engine.torch_executor import TorchExecutor

__all__ = ["LoadedExecutor", "RecordingDevice", "poison"]

LoadedExecutor = NativeExecutor | TorchExecutor
"""What `load_executor` gives."""


def poison(executor: LoadedExecutor) -> None:
    """Fills the whole KV cache with NaN: whatever reads a slot that was not written shows."""
    for tier in (executor.pool.device, executor.pool.host):
        if isinstance(tier, torch.Tensor):
            tier.fill_(torch.nan)
        elif has_scales(tier.dtype):
            tier.fill(-1)  # four bytes of -1 are a scale of NaN
        else:
            tier[...] = cast(np.array(np.nan), tier.dtype)


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
