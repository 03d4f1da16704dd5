"""What does a busy neighbour cost an engine, and what do two engines on one machine cost each other?

    make bench-neighbours

Eight streams decode for some seconds with native kernels and weights in eight bits: alone, beside a process that keeps
one core busy, and beside a second engine that does the same. A scheduler that is fair gives an engine of T threads
beside N others T / (T + N) of what the cores can do; a barrier that waits for the slowest thread gives far less.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from bench.report import report, say
from bench.serving import find_model

_SECONDS = 8.0
_STREAMS, _PROMPT, _OUTPUT = 8, 16, 32
_SPIN = "while True: pass"


def main() -> None:
    """Runs the three and reports."""
    model = find_model()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    engines = [_Engine(model), _Engine(model)]
    (alone,) = _together(engines[:1])
    spinning = subprocess.Popen([sys.executable, "-c", _SPIN])
    (beside,) = _together(engines[:1])
    spinning.kill()
    spinning.wait()
    both = _together(engines)
    (again,) = _together(engines[:1])
    for engine in engines:
        engine.end()
    alone = (alone + again) / 2
    figures = {
        "alone_tok_s": alone,
        "busy_neighbour_share": beside / alone,
        "two_engines_sum_share": sum(both) / alone,
        "two_engines_least_share": min(both) / alone,
    }
    limits = {
        "busy_neighbour_share": cores / (cores + 1),
        "two_engines_sum_share": 1.0,
        "two_engines_least_share": 0.5,
    }
    for name, figure in figures.items():
        say(f"  {name}: {figure:.2f}" + (f", fair would be {limits[name]:.2f}" if name in limits else ""))
    report("neighbours", figures, limits, model=model.name, load_average_before=round(load, 2))


class _Engine:
    """A process with an engine, which decodes when it is told to."""

    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-m", "bench.neighbours", str(model)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rate()  # loaded and warm

    def go(self) -> None:
        """Begins to decode for some seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def rate(self) -> float:
        """Waits until it has; tokens in a second."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended with {self._process.wait()}")
        return float(line)

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _together(engines: list[_Engine]) -> list[float]:
    for engine in engines:
        engine.go()
    return [engine.rate() for engine in engines]


def _work(model: str) -> None:
    from octavo_runtime import LLM, SamplingParams

    llm = LLM(model, kv_cache_memory=64 << 20, quantization="w8a16")
    rng = random.Random(0)
    sampling = SamplingParams(temperature=0, max_tokens=_OUTPUT, ignore_eos=True)

    def rate(seconds: float) -> float:
        began, tokens = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < seconds:
            llm.generate([[rng.randrange(3, 48_000) for _ in range(_PROMPT)] for _ in range(_STREAMS)], sampling)
            tokens += _STREAMS * _OUTPUT
        return tokens / spent

    print(rate(0.01), flush=True)
    for _ in sys.stdin:
        print(rate(_SECONDS), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _work(sys.argv[1])
    else:
        main()
