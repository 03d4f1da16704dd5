"""The device under test: how long work takes there, and what the device itself allows."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["Machine", "events"]

_REPLAYS = 7
_GIB = 1 << 30


def events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Two, whose distance in time can be measured."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Machine:
    """The first GPU; in a dry run the CPU, where times mean nothing.

    Args:
        dry: Whether it is a dry run.

    Attributes:
        dry: The same.
        device: Where tensors lie.
    """

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.device = torch.device("cpu" if dry else "cuda")

    def facts(self) -> dict[str, object]:
        """Name, memory and software of the device."""
        if self.dry:
            return {"name": "none: a dry run on the CPU"}
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / _GIB, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }

    def synchronise(self) -> None:
        """Waits for the device."""
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def seconds(self, works: Sequence[Callable[[], object]]) -> float:
        """How long one of these takes, without the host: all of them are one CUDA graph, which is replayed.

        Args:
            works: The same work each, on memory of its own where it would else be found in the cache.
        """
        began = time.perf_counter()
        for work in works:
            work()  # compiles
        self.synchronise()
        if self.dry:
            return (time.perf_counter() - began) / len(works)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work()
        graph.replay()
        taken: list[float] = []
        for _ in range(_REPLAYS):
            begin, end = events()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1000)
        return statistics.median(taken) / len(works)

    @functools.cached_property
    def bandwidth(self) -> float:
        """Bytes per second of a large copy, read and written."""
        source = torch.empty((1 << 16) if self.dry else 4 * _GIB, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds([lambda: target.copy_(source)])

    @functools.cached_property
    def peak(self) -> float:
        """Operations per second of a large product in bfloat16."""
        size = 64 if self.dry else 8192
        left, right = (torch.randn(size, size, device=self.device).bfloat16() for _ in range(2))
        return 2 * size**3 / self.seconds([lambda: left @ right])

    @functools.cached_property
    def link(self) -> float:
        """Bytes per second from the device to pinned memory of the host."""
        source = torch.empty((1 << 16) if self.dry else _GIB, dtype=torch.uint8, device=self.device)
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=not self.dry)
        return source.nbytes / self.seconds([lambda: target.copy_(source, non_blocking=True)])

    def limits(self) -> dict[str, float]:
        """What was measured of the device itself, as limits of a report."""
        return {"copy_gb_s": self.bandwidth / 1e9, "matmul_bf16_tflop_s": self.peak / 1e12}
