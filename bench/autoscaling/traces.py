"""The pinned traces: how the load of an hour goes, in replicas' worth, and which scrapes are lost.

    step            1, from 600 s on 6, from 2,400 s on 1
    ramp            0.5 to 8 in 1,800 s and back
    diurnal         a sine from 1 to 6 with a period of an hour, lowest at the start; each minute off by 20 % (normal)
    flash crowd     1, with 5 for 120 s at 600, 1,350, 2,100 and 2,850 s
    bimodal         3, with lengths of the workload bimodal
    loss 10, 50     diurnal, with that share of all scrapes lost
    loss 100        diurnal, with all scrapes lost for 300 s around the peak
    long-short      2; from 1,200 s on the answers' lengths are drawn with three times the mean: 5.1
    azure-conv      an hour of conversations in Azure (Recorded), each of them twelve times

A replica's worth is the rate that one replica answers while enough requests wait, with the trace's lengths. All randomness is numpy's `default_rng(seed)`, drawn in this order: prompts,
outputs, noise, arrivals. Lengths are those of bench/workloads.py, cut to what fits the model (2,048 tokens; bimodal
8,192): so three times the mean is only a little more than twice the tokens.
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.autoscaling.replica import Demand, Machine, capacity

__all__ = ["HOUR", "TRACES", "Loss", "Recorded", "Trace", "replicas_worth"]

HOUR = 3600.0
_SECOND = np.arange(0.0, HOUR)
_CAPACITY_COUNT = 20_000
_COPIES = 12

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Lengths = Callable[[np.random.Generator, int], tuple[Ints, Ints]]


@dataclass(frozen=True, slots=True)
class Loss:
    """A share of the scrapes of every pod that does not come through for some time."""

    share: float
    start: float = 0.0
    end: float = HOUR


@dataclass(frozen=True, slots=True)
class Trace:
    """A load.

    Attributes:
        name: As above.
        shape: Replicas' worth at each of the hour's 3,600 seconds, with the lengths before a change.
        lengths: Draws prompts and outputs.
        noise: Standard deviation of each minute's load, as a share of it.
        late_outputs: From when on outputs are drawn by `late_lengths`.
        late_lengths: Draws prompts and outputs of the requests from then on.
        loss: Of scrapes.
    """

    name: str
    shape: Floats
    lengths: Lengths
    noise: float = 0.0
    late_outputs: float = HOUR
    late_lengths: Lengths | None = None
    loss: Loss | None = None

    @property
    def initial(self) -> int:
        """Replicas that are ready at the start: those that the load is worth."""
        return max(1, math.ceil(float(self.shape[0])))

    def demand(self, seed: int) -> tuple[Demand, Floats]:
        """The requests, and the replicas' worth of each second with the noise."""
        worth = replicas_worth(self.lengths)
        rng = np.random.default_rng(seed)
        count = int(1.2 * self.shape.sum() * worth + 1000)
        prompts, outputs = self.lengths(rng, count)
        _, late = self.late_lengths(rng, count) if self.late_lengths else (prompts, outputs)
        shape = self.shape
        if self.noise:
            shape = shape * np.repeat(np.maximum(0.0, rng.normal(1.0, self.noise, len(shape) // 60)), 60)
        # A Poisson process whose rate changes: unit arrivals, on the clock of the load done so far.
        done = np.concatenate(([0.0], np.cumsum(shape * worth)))
        arrivals = np.interp(np.cumsum(rng.exponential(1.0, count)), done, np.arange(len(done)), right=np.inf)
        arrivals = arrivals[arrivals < HOUR]
        assert len(arrivals) < count, "more requests than were drawn"
        outputs = np.where(arrivals < self.late_outputs, outputs[: len(arrivals)], late[: len(arrivals)])
        if self.late_lengths:
            shape = np.where(
                np.arange(HOUR) < self.late_outputs, shape, shape * worth / replicas_worth(self.late_lengths)
            )
        return Demand(arrivals.tolist(), prompts[: len(arrivals)].tolist(), outputs.tolist()), shape


class Recorded:
    """The hour of azure_conv_2023.csv.gz: each request comes `_COPIES` times, each within half a minute of its own time.

    The file holds the conversations of the Azure LLM inference trace 2023 (github.com/Azure/AzurePublicDataset,
    AzureLLMInferenceTrace_conv.csv, CC-BY 4.0): Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase
    Splitting, ISCA 2024. Its 19,366 requests are unchanged but for the times, in tenths of a second since the first.
    They would keep half a replica busy; the copies make it up to six.
    """

    name = "azure-conv"
    loss: Loss | None = None

    @property
    def initial(self) -> int:
        """Replicas that are ready at the start."""
        return math.ceil(float(self._shape(_recording()[0]).item(0)))

    def demand(self, seed: int) -> tuple[Demand, Floats]:
        """The requests, and the replicas' worth of each second: that of its minute."""
        times, prompts, outputs = (np.repeat(column, _COPIES) for column in _recording())
        rng = np.random.default_rng(seed)
        times = np.clip(times / 10 + rng.uniform(-30.0, 30.0, len(times)), 0.0, HOUR - 0.001)
        order = np.argsort(times, kind="stable")
        demand = Demand(times[order].tolist(), prompts[order].tolist(), outputs[order].tolist())
        return demand, self._shape(_recording()[0])

    def _shape(self, tenths: Ints) -> Floats:
        minutes = np.bincount(tenths // 600, minlength=60)[:60]
        return np.repeat(_COPIES * minutes / 60 / replicas_worth(recorded), 60)


@functools.cache
def replicas_worth(lengths: Lengths) -> float:
    """Requests per second that one replica answers."""
    prompts, outputs = lengths(np.random.default_rng(0), _CAPACITY_COUNT)
    return capacity(prompts.tolist(), outputs.tolist(), Machine())


def chat(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Lengths of the workload sharegpt-like."""
    return _cut(_lognormal(rng, 161.3, count), _lognormal(rng, 338.0, count), 2048)


def long_chat(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """The same with answers of three times the mean."""
    return _cut(_lognormal(rng, 161.3, count), _lognormal(rng, 3 * 338.0, count), 2048)


def bimodal(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Lengths of the workload bimodal."""
    short = rng.random(count) < 0.9
    prompts = np.where(
        short, rng.integers(16, 128, count, endpoint=True), rng.integers(2000, 6000, count, endpoint=True)
    )
    outputs = np.where(short, rng.integers(16, 128, count, endpoint=True), rng.integers(128, 512, count, endpoint=True))
    return _cut(prompts, outputs, 8192)


def recorded(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Lengths of the recorded requests."""
    _, prompts, outputs = _recording()
    chosen = rng.integers(len(prompts), size=count)
    return prompts[chosen], outputs[chosen]


@functools.cache
def _recording() -> tuple[Ints, Ints, Ints]:
    """Tenths of a second, prompts and outputs."""
    with gzip.open(Path(__file__).with_name("azure_conv_2023.csv.gz")) as file:
        tenths, prompts, outputs = np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1, unpack=True)
    return tenths, *_cut(prompts, outputs, 8192)


def _lognormal(rng: np.random.Generator, mean: float, count: int) -> Ints:
    return np.clip(np.rint(rng.lognormal(math.log(mean) - 0.5, 1.0, count)), 1, 2048).astype(np.int64)


def _cut(prompts: Ints, outputs: Ints, max_model_len: int) -> tuple[Ints, Ints]:
    prompts = np.minimum(prompts, max_model_len - 1)
    return prompts, np.minimum(outputs, max_model_len - prompts)


def _diurnal() -> Floats:
    return 3.5 - 2.5 * np.cos(2 * math.pi * _SECOND / HOUR)


def _flash_crowd() -> Floats:
    starts = (600.0, 1350.0, 2100.0, 2850.0)
    return np.where(np.any([np.abs(_SECOND - start - 59.5) < 60 for start in starts], axis=0), 5.0, 1.0)


TRACES: dict[str, Trace | Recorded] = {
    trace.name: trace
    for trace in (
        Trace("step", np.where((_SECOND >= 600) & (_SECOND < 2400), 6.0, 1.0), chat),
        Trace("ramp", np.interp(_SECOND, (0.0, 1800.0, HOUR), (0.5, 8.0, 0.5)), chat),
        Trace("diurnal", _diurnal(), chat, noise=0.2),
        Trace("flash-crowd", _flash_crowd(), chat),
        Trace("bimodal", np.full(len(_SECOND), 3.0), bimodal),
        Trace("loss-10", _diurnal(), chat, noise=0.2, loss=Loss(0.1)),
        Trace("loss-50", _diurnal(), chat, noise=0.2, loss=Loss(0.5)),
        Trace("loss-100", _diurnal(), chat, noise=0.2, loss=Loss(1.0, 1650.0, 1950.0)),
        Trace("long-short", np.full(len(_SECOND), 2.0), chat, late_outputs=1200.0, late_lengths=long_chat),
        Recorded(),
    )
}
"""By name."""
