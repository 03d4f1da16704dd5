"""What the scheduler itself costs: time per step, memory per waiting request. `make bench-core`

    python -m bench.core --nano-vllm DIR     also times nano-vllm's scheduler, from a checkout of it (needs xxhash)

A step is schedule() and apply(), with what an executor would return made beforehand. Decoding is timed with 256, 1,024
and 4,096 sequences, with Python's collector of cycles as the engine sets it and without; then the whole trace `nano`, prompts, chunks
and ends included. Time is the thread's own, so that a busy machine disturbs it little.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.replays import Target, judge, limits, our_scheduler
from bench.report import report, say
from bench.workloads import workload
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import Request, SamplingParams, SchedulerConfig, StepPlan, StepResult
from octavo_runtime.engine.process import GC_THRESHOLDS
from octavo_runtime.replay import FIRST_FREE_TOKEN, ReplayRequest

_SIZES = (256, 1024, 4096)
_STEPS = 48  # three blocks for each sequence
_ROUNDS = 8
_MAX_MODEL_LEN = 2048
_WAITING = 2000

_TARGETS: dict[str, Target] = {
    "step_us_256": ("at most", 1000),
    "step_growth_256_to_4096": ("at most", 1.0),
    "waiting_request_kib": ("at most", 4),
}


def _decode_us(count: int, *, plan_ahead: bool) -> float:
    """Microseconds of a step in which `count` sequences decode: the best mean of a few rounds."""
    core = _core(count, plan_ahead=plan_ahead)
    for number in range(count):
        prompt = (FIRST_FREE_TOKEN + number, *range(1, 64))
        core.add(Request(f"request-{number}", prompt, _sampling(_MAX_MODEL_LEN - 64)))
    plan = core.schedule(0.0)
    while sum(sequence.num_samples for sequence in plan.sequences) < count:
        core.apply(plan, _result(plan))
        plan = core.schedule(0.0)
    best = float("inf")
    for _ in range(_ROUNDS):
        spent = 0.0
        for _ in range(_STEPS):
            result = _result(plan)
            began = time.thread_time()
            if plan_ahead:
                following = core.schedule(0.0)
                core.apply(plan, result)
            else:
                core.apply(plan, result)
                following = core.schedule(0.0)
            spent += time.thread_time() - began
            plan = following
        best = min(best, spent / _STEPS)
    assert len(plan.sequences) == count, "not all decode"
    return 1e6 * best


def _trace_seconds(requests: list[ReplayRequest]) -> tuple[float, int]:
    """Seconds in schedule() and apply() over the whole trace, and the steps."""
    core = _core(len(requests), plan_ahead=False)
    for replay in requests:
        core.add(replay.request)
    spent, steps = 0.0, 0
    while core.has_work:
        began = time.thread_time()
        plan = core.schedule(0.0)
        spent += time.thread_time() - began
        result = _result(plan)
        began = time.thread_time()
        core.apply(plan, result)
        spent += time.thread_time() - began
        steps += 1
    return spent, steps


def _core(slots: int, *, plan_ahead: bool) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=slots, max_num_batched_tokens=max(16_384, slots), async_scheduling=plan_ahead)
    return our_scheduler(config, max_model_len=_MAX_MODEL_LEN, num_blocks=slots * _MAX_MODEL_LEN // 16)


def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(seed=0, max_tokens=max_tokens, ignore_eos=True)


def _result(plan: StepPlan) -> StepResult:
    return StepResult([FIRST_FREE_TOKEN] * sum(sequence.num_samples for sequence in plan.sequences))


def _waiting_kib() -> float:
    """Memory of a waiting request, beside four bytes for each token of its prompt."""
    lengths = workload("sharegpt-like").prompts[:_WAITING].tolist()
    core = _core(1, plan_ahead=True)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, length in enumerate(lengths):
        # As decoded from a message: every number is an object of its own.
        prompt = tuple(FIRST_FREE_TOKEN + position for position in range(min(length, _MAX_MODEL_LEN - 1)))
        core.add(Request(f"{number:032x}", prompt, SamplingParams(seed=number, max_tokens=1)))
        del prompt
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(after - before - 4 * sum(lengths)) / len(lengths) / 1024


class NanoVllm:
    """nano-vllm's scheduler, block manager and sequence out of a checkout, without the rest of the package.

    Args:
        folder: The checkout.
        block_size: Tokens per block; its own is 256.
    """

    def __init__(self, folder: Path, block_size: int) -> None:
        sys.path.insert(0, str(folder))
        package = types.ModuleType("nanovllm")
        package.__path__ = [str(folder / "nanovllm")]
        # Its own config imports transformers, and its package torch; the scheduler needs neither.
        config = types.ModuleType("nanovllm.config")
        config.Config = types.SimpleNamespace  # type: ignore[attr-defined]
        sys.modules |= {"nanovllm": package, "nanovllm.config": config}
        self._scheduler: Any = import_module("nanovllm.engine.scheduler")
        self._sequence: Any = import_module("nanovllm.engine.sequence").Sequence
        self._sampling: Any = import_module("nanovllm.sampling_params").SamplingParams
        self._block_size = block_size
        self._sequence.block_size = block_size

    def _new(self, slots: int, lengths: Iterator[tuple[list[int], int]]) -> Any:
        scheduler = self._scheduler.Scheduler(
            types.SimpleNamespace(
                max_num_seqs=slots,
                max_num_batched_tokens=max(16_384, slots),
                eos=-1,
                kvcache_block_size=self._block_size,
                num_kvcache_blocks=slots * _MAX_MODEL_LEN // self._block_size,
            )
        )
        for prompt, output in lengths:
            scheduler.add(self._sequence(prompt, self._sampling(max_tokens=output, ignore_eos=True)))
        return scheduler

    def decode_us(self, count: int) -> float:
        """As `_decode_us`."""
        prompts = (([FIRST_FREE_TOKEN + number, *range(1, 64)], _MAX_MODEL_LEN - 64) for number in range(count))
        scheduler = self._new(count, prompts)
        while scheduler.waiting:
            sequences, is_prefill = scheduler.schedule()
            scheduler.postprocess(sequences, [FIRST_FREE_TOKEN] * len(sequences), is_prefill)
        best = float("inf")
        for _ in range(_ROUNDS):
            spent = 0.0
            for _ in range(_STEPS):
                spent += self._step(scheduler)
            best = min(best, spent / _STEPS)
        return 1e6 * best

    def trace_seconds(self, requests: list[ReplayRequest]) -> tuple[float, int]:
        """As `_trace_seconds`."""
        lengths = ((list(replay.request.prompt_token_ids), replay.output_lengths[0]) for replay in requests)
        scheduler = self._new(len(requests), lengths)
        spent, steps = 0.0, 0
        while not scheduler.is_finished():
            spent += self._step(scheduler)
            steps += 1
        return spent, steps

    @staticmethod
    def _step(scheduler: Any) -> float:
        began = time.thread_time()
        sequences, is_prefill = scheduler.schedule()
        spent = time.thread_time() - began
        tokens = [FIRST_FREE_TOKEN] * len(sequences)
        began = time.thread_time()
        scheduler.postprocess(sequences, tokens, is_prefill)
        return spent + time.thread_time() - began


def _compare(folder: Path, requests: list[ReplayRequest], figures: dict[str, float]) -> dict[str, float]:
    """nano-vllm's figures, with its own block size and with ours."""
    compared: dict[str, float] = {}
    for block_size in (256, 16):
        nano = NanoVllm(folder, block_size)
        seconds, steps = _best(lambda nano=nano: nano.trace_seconds(requests))  # type: ignore[misc]  # bound here
        compared |= {
            f"nano_vllm_step_us_256_block{block_size}": nano.decode_us(256),
            f"nano_vllm_trace_step_us_block{block_size}": 1e6 * seconds / steps,
            f"nano_vllm_trace_seconds_block{block_size}": seconds,
        }
    compared["step_us_256_vs_nano_vllm"] = figures["step_us_256"] / compared["nano_vllm_step_us_256_block16"]
    compared["trace_seconds_vs_nano_vllm"] = figures["trace_seconds"] / compared["nano_vllm_trace_seconds_block16"]
    return compared


def _best(measure: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    return min(measure() for _ in range(3))


def main() -> None:
    """Runs everything and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nano-vllm", type=Path, metavar="DIR", help="a checkout of nano-vllm to compare with")
    flags = parser.parse_args()
    began = time.process_time()
    requests = workload("nano").requests(max_model_len=_MAX_MODEL_LEN)
    figures: dict[str, float] = {}
    gc.freeze()  # what was imported is no part of what is timed
    gc.set_threshold(*GC_THRESHOLDS)  # as in the process that serves
    for size in _SIZES:
        figures[f"step_us_{size}"] = _decode_us(size, plan_ahead=True)
        gc.disable()
        figures[f"step_us_{size}_without_gc"] = _decode_us(size, plan_ahead=True)
        gc.enable()
        say(
            f"  {size} sequences: {figures[f'step_us_{size}']:.0f} us, {figures[f'step_us_{size}_without_gc']:.0f} without gc"
        )
    figures["step_us_256_without_planning_ahead"] = _decode_us(256, plan_ahead=False)
    for suffix in ("", "_without_gc"):
        growth = figures[f"step_us_4096{suffix}"] / figures[f"step_us_256{suffix}"]
        figures[f"step_growth_256_to_4096{suffix}"] = growth / (4096 / 256)
    seconds, steps = _best(lambda: _trace_seconds(requests))
    figures |= {"trace_step_us": 1e6 * seconds / steps, "trace_seconds": seconds}
    figures["waiting_request_kib"] = _waiting_kib()
    if flags.nano_vllm is None:
        say("  no --nano-vllm DIR: the comparison with its scheduler is left out")
    else:
        figures |= _compare(flags.nano_vllm, requests, figures)
    judge(figures, _TARGETS)
    report("core", figures, limits(_TARGETS), cpu_seconds=round(time.process_time() - began, 1))


if __name__ == "__main__":
    main()
