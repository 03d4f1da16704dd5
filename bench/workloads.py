"""The pinned workloads, so that figures compare from run to run.

Lengths are in tokens; `lognormal(mean, sigma)` has that arithmetic mean, is rounded to whole tokens and clipped to
[1, 2,048] unless said otherwise. All randomness is numpy's `default_rng(seed)`, drawn in this order: prompts (where
there is a class or a prefix to choose, that choice first), outputs, arrivals.

    name              prompts                                       outputs                               seed
    sharegpt-like     lognormal(161.3, 1.0)                         lognormal(338.0, 1.0)                 1
    alpaca-like       lognormal(19.3, 0.6)                          lognormal(58.5, 0.8)                  2
    bimodal           90 %: 16-128; 10 %: 2,000-6,000 (no clip)     90 %: 16-128; 10 %: 128-512           3
    shared-prefix-1   one of 20 prefixes of 80 + lognormal(40, 0.6) lognormal(60, 0.8)                    4
    shared-prefix-5   one of 20 prefixes of 341, likewise           lognormal(60, 0.8)                    4
    memory-pressure   sharegpt-like                                 sharegpt-like                         5
    nano              100-1,024                                     100-1,024, never ends by itself       0

Ranges are uniform and closed. A bimodal request is short or long in both. 2,000 requests each, nano 256. The means of
the first two and the prefix lengths are those of Kwon et al. (SOSP 2023); the shapes are ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_runtime.domain import Request, SamplingParams
from octavo_runtime.replay import FIRST_FREE_TOKEN, ReplayRequest

__all__ = ["WORKLOADS", "Workload", "workload"]

_COUNT = 2000
_MAX_LENGTH = 2048
_NUM_PREFIXES = 20
_VOCABULARY = 32_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths and arrivals of requests.

    Attributes:
        name: As above.
        prompts: Tokens of each prompt.
        outputs: Tokens of each answer.
        arrivals: Seconds, at a mean rate of one per second.
        labels: Class of each request; "" where there is one class.
        prefixes: Which shared prefix each prompt begins with; -1: none.
        prefix_length: Tokens of the shared prefixes.
        ignore_eos: Whether answers end by their length only.
        seed: Of everything.
    """

    name: str
    prompts: Ints
    outputs: Ints
    arrivals: npt.NDArray[np.float64]
    labels: tuple[str, ...]
    prefixes: Ints
    prefix_length: int
    seed: int
    ignore_eos: bool = False

    def digest(self) -> str:
        """Of all numbers: what the tests pin."""
        arrays = (self.prompts, self.outputs, np.rint(self.arrivals * 1e6).astype(np.int64), self.prefixes)
        return hashlib.sha256(b"".join(array.astype("<i8").tobytes() for array in arrays)).hexdigest()[:16]

    def requests(
        self,
        *,
        max_model_len: int,
        rate: float | None = None,
        count: int | None = None,
        equal_lengths: bool = True,
        **sampling: int | bool,
    ) -> list[ReplayRequest]:
        """The requests, cut to what fits the model: a prompt leaves room for a token, an output takes what is left.

        Args:
            max_model_len: Longest prompt plus output; max_tokens is what it leaves beside the prompt, as a client
                gives it that does not know how long the answer will be.
            rate: Requests per second; None: all come at once.
            count: Only the first so many; None: all.
            equal_lengths: Whether all answers to a prompt have its pinned length; else each but the first has the
                length of a request drawn at random.
            sampling: `n`, `best_of`, `use_beam_search`.
        """
        rng = np.random.default_rng([self.seed, 1])
        prefixes = rng.integers(FIRST_FREE_TOKEN, FIRST_FREE_TOKEN + _VOCABULARY, (_NUM_PREFIXES, self.prefix_length))
        width = max(1, int(sampling.get("n", 1)), int(sampling.get("best_of", 1)))
        others = rng.choice(self.outputs, (len(self.outputs), width - 1))
        requests = []
        for number in range(len(self.prompts) if count is None else count):
            prompt = min(int(self.prompts[number]), max_model_len - 1)
            room = max_model_len - prompt
            shared = prefixes[self.prefixes[number]].tolist() if self.prefixes[number] >= 0 else []
            # The first token of its own makes a prompt unlike all others; what follows may be equal.
            own = FIRST_FREE_TOKEN + _VOCABULARY + number
            tokens = (*shared, own, *[FIRST_FREE_TOKEN] * prompt)[:prompt]
            pinned = self.outputs[number]
            lengths = [pinned] * width if equal_lengths else [pinned, *others[number]]
            request = Request(
                request_id=f"{self.name}-{number}",
                prompt_token_ids=tokens,
                sampling=SamplingParams(
                    temperature=0.0 if sampling.get("use_beam_search") else 1.0,
                    seed=number,
                    max_tokens=min(room, int(pinned)) if self.ignore_eos else room,
                    ignore_eos=self.ignore_eos,
                    **sampling,  # type: ignore[arg-type]  # each name has its own type
                ),
                arrival=0.0 if rate is None else float(self.arrivals[number]) / rate,
            )
            outputs = tuple(min(int(length), room) for length in lengths)
            requests.append(ReplayRequest(request, outputs, label=self.labels[number]))
        return requests


def workload(name: str) -> Workload:
    """Draws a workload."""
    return WORKLOADS[name]()


def _sharegpt(name: str, seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    return _plain(name, seed, _lognormal(rng, 161.3, 1.0), _lognormal(rng, 338.0, 1.0), rng)


def _alpaca() -> Workload:
    rng = np.random.default_rng(2)
    return _plain("alpaca-like", 2, _lognormal(rng, 19.3, 0.6), _lognormal(rng, 58.5, 0.8), rng)


def _bimodal() -> Workload:
    rng = np.random.default_rng(3)
    short = rng.random(_COUNT) < 0.9
    prompts = np.where(short, _uniform(rng, 16, 128), _uniform(rng, 2000, 6000))
    outputs = np.where(short, _uniform(rng, 16, 128), _uniform(rng, 128, 512))
    labels = tuple("short" if each else "long" for each in short)
    return _plain("bimodal", 3, prompts, outputs, rng, labels)


def _shared_prefix(name: str, length: int) -> Workload:
    rng = np.random.default_rng(4)
    prefixes = rng.integers(_NUM_PREFIXES, size=_COUNT)
    prompts = length + _lognormal(rng, 40.0, 0.6)
    outputs = _lognormal(rng, 60.0, 0.8)
    return Workload(name, prompts, outputs, _arrivals(rng, _COUNT), ("",) * _COUNT, prefixes, length, 4)


def _nano() -> Workload:
    rng = np.random.default_rng(0)
    prompts, outputs = _uniform(rng, 100, 1024, 256), _uniform(rng, 100, 1024, 256)
    return _plain("nano", 0, prompts, outputs, rng, ignore_eos=True)


def _plain(
    name: str,
    seed: int,
    prompts: Ints,
    outputs: Ints,
    rng: np.random.Generator,
    labels: tuple[str, ...] | None = None,
    *,
    ignore_eos: bool = False,
) -> Workload:
    count = len(prompts)
    return Workload(
        name=name,
        prompts=prompts,
        outputs=outputs,
        arrivals=_arrivals(rng, count),
        labels=labels or ("",) * count,
        prefixes=np.full(count, -1),
        prefix_length=0,
        seed=seed,
        ignore_eos=ignore_eos,
    )


def _lognormal(rng: np.random.Generator, mean: float, sigma: float) -> Ints:
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, _COUNT)
    return np.clip(np.rint(drawn), 1, _MAX_LENGTH).astype(np.int64)


def _uniform(rng: np.random.Generator, low: int, high: int, count: int = _COUNT) -> Ints:
    return rng.integers(low, high, count, endpoint=True)


def _arrivals(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    return np.cumsum(rng.exponential(1.0, count))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "sharegpt-like": lambda: _sharegpt("sharegpt-like", 1),
    "alpaca-like": _alpaca,
    "bimodal": _bimodal,
    "shared-prefix-1": lambda: _shared_prefix("shared-prefix-1", 80),
    "shared-prefix-5": lambda: _shared_prefix("shared-prefix-5", 341),
    "memory-pressure": lambda: _sharegpt("memory-pressure", 5),
    "nano": _nano,
}
"""By name."""
