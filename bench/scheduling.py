"""What the scheduler's rules gain: replays of the pinned traces with the pinned step times. `make bench-scheduling`

The pinned machine: 64 sequences, 2,048 tokens a step, 60,000 tokens of KV in blocks of 16, and the step-time model of
bench/workloads.py's traces. All of it is virtual time: the same on every machine, but for the processor time it takes.
Some runs are of a workload's first requests only.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

from bench.baselines import LastRecompute, StaticBatching
from bench.replays import BLOCK_SIZE, KV_TOKENS, Target, judge, limits, our_scheduler, run
from bench.report import report, say
from bench.workloads import Workload, workload
from octavo_runtime.domain import SchedulerConfig
from octavo_runtime.replay import ClosedLoop, Measured, Objectives, ReplayRequest, latencies

_SLOTS, _BUDGET = 64, 2048
_SHORT_LEN, _LONG_LEN = 2048, 8192  # max_model_len; bimodal prompts are long
_PART = 1000
_FIXED_BUDGETS = (512, 1024, 2048, 4096, 8192)
_OBJECTIVES = Objectives(ttft=0.5, itl=0.05)
_HOST_BLOCKS = 8192  # 16 GiB of the pinned machine's KV

_TARGETS: dict[str, Target] = {
    "slot_utilisation": ("at least", 0.95),
    "p99_ttft_ms": ("at most", 500),
    "short_p99_ttft_gain": ("at least", 5),
    "long_p99_ttft_cost": ("at most", 1.5),
    "slo_goodput_vs_best_fixed": ("at least", 1.0),
    "recomputed_vs_last_recompute": ("at most", 0.5),
    "admitted_vs_worst_case": ("at least", 1.3),
    "extra_preemptions": ("at most", 0.01),
}


def _ours(requests: Sequence[ReplayRequest], max_model_len: int, *, clients: int = 0, **settings: Any) -> Measured:
    """Our scheduler; in a closed loop where there are clients."""
    pool = {name: settings.pop(name) for name in ("num_blocks", "num_host_blocks") if name in settings}
    core = our_scheduler(SchedulerConfig(**{"max_num_seqs": _SLOTS, **settings}), max_model_len=max_model_len, **pool)
    return run(core, requests, load=ClosedLoop(requests, clients) if clients else None)


def _capacity(trace: Workload, max_model_len: int) -> float:
    """Requests per second that a full queue is answered with, first come, first served."""
    requests = trace.requests(max_model_len=max_model_len)
    rate = _ours(requests, max_model_len, clients=2 * _SLOTS).steady_rate()
    say(f"{trace.name}: capacity {rate:.1f} requests/s")
    return rate


def _slots() -> dict[str, float]:
    """How full the batch is while requests wait."""
    figures = {}
    for name in ("sharegpt-like", "nano"):
        trace = workload(name)
        requests = trace.requests(max_model_len=_SHORT_LEN, count=min(_PART, len(trace.prompts)))
        suffix = "" if name == "sharegpt-like" else f"_{name}"
        figures[f"slot_utilisation{suffix}"] = _ours(requests, _SHORT_LEN).slot_utilisation(_SLOTS)
        static = run(StaticBatching(slots=_SLOTS, budget=_BUDGET), requests)
        figures[f"slot_utilisation_static{suffix}"] = static.slot_utilisation(_SLOTS)
    return figures


def _latency() -> dict[str, float]:
    """Latencies of a plain chat load at three shares of the capacity."""
    trace = workload("sharegpt-like")
    capacity = _capacity(trace, _SHORT_LEN)
    figures = {"capacity_req_s_sharegpt": capacity}
    for percent in (50, 80, 95):
        count = _PART if percent == 50 else None
        requests = trace.requests(max_model_len=_SHORT_LEN, rate=capacity * percent / 100, count=count)
        measured = _ours(requests, _SHORT_LEN).figures(_OBJECTIVES, _SLOTS)
        suffix = "" if percent == 80 else f"_at_{percent}"
        figures[f"p99_ttft_ms{suffix}"] = measured["ttft_p99_ms"]
        figures[f"p99_itl_ms{suffix}"] = measured["itl_p99_ms"]
    return figures


def _short_and_long() -> dict[str, float]:
    """Short requests behind long ones: the policies' latencies and goodput.

    A request is good with a first token within 500 ms and 99 % of its inter-token times within 50 ms. The fixed budgets
    run under fcfs; at 95 % of the capacity only the default one.
    """
    trace = workload("bimodal")
    capacity = _capacity(trace, _LONG_LEN)
    figures = {"capacity_req_s_bimodal": capacity}
    for percent in (80, 95):
        suffix = "" if percent == 80 else f"_at_{percent}"
        requests = trace.requests(max_model_len=_LONG_LEN, rate=capacity * percent / 100)
        fcfs, shortest = (_ours(requests, _LONG_LEN, policy=policy) for policy in ("fcfs", "shortest-first"))
        for label in ("short", "long"):
            for policy, measured in (("fcfs", fcfs), ("shortest_first", shortest)):
                p99 = latencies(measured.with_label(label))["ttft_p99_ms"]
                figures[f"{label}_p99_ttft_ms_{policy}{suffix}"] = p99
        gain, cost = (
            figures[f"{label}_p99_ttft_ms_fcfs{suffix}"] / figures[f"{label}_p99_ttft_ms_shortest_first{suffix}"]
            for label in ("short", "long")
        )
        figures |= {f"short_p99_ttft_gain{suffix}": gain, f"long_p99_ttft_cost{suffix}": 1 / cost}
        slo = _ours(
            requests,
            _LONG_LEN,
            policy="slo",
            max_num_batched_tokens=max(_FIXED_BUDGETS),
            target_ttft_ms=1000 * _OBJECTIVES.ttft,
            target_itl_ms=1000 * _OBJECTIVES.itl,
        )
        fixed = {_BUDGET: fcfs.goodput(_OBJECTIVES)}
        for budget in _FIXED_BUDGETS if percent == 80 else ():
            if budget not in fixed:
                fixed[budget] = _ours(requests, _LONG_LEN, max_num_batched_tokens=budget).goodput(_OBJECTIVES)
        best = max(fixed, key=lambda budget: fixed[budget])
        figures |= {
            f"goodput_slo{suffix}": slo.goodput(_OBJECTIVES),
            f"goodput_shortest_first{suffix}": shortest.goodput(_OBJECTIVES),
            f"goodput_best_fixed{suffix}": fixed[best],
            f"best_fixed_budget{suffix}": best,
            f"slo_goodput_vs_best_fixed{suffix}": slo.goodput(_OBJECTIVES) / fixed[best],
        }
    return figures


def _memory_pressure() -> dict[str, float]:
    """A pool of 40 % of the blocks that the running set wants."""
    trace = workload("memory-pressure")
    requests = trace.requests(max_model_len=_SHORT_LEN, count=_PART)
    ample = _SLOTS * _SHORT_LEN // BLOCK_SIZE
    use = _ours(requests, _SHORT_LEN, num_blocks=ample).use
    num_blocks = int(0.4 * ample * use.usage_seconds / use.seconds)
    theirs = run(LastRecompute(num_blocks=num_blocks, block_size=BLOCK_SIZE, slots=_SLOTS, budget=_BUDGET), requests)
    figures = {"memory_pressure_blocks": float(num_blocks), "recomputed_tokens_last": float(theirs.recomputed_tokens)}
    for name, host in (("", 0), ("_with_swap", _HOST_BLOCKS)):
        ours = _ours(requests, _SHORT_LEN, num_blocks=num_blocks, num_host_blocks=host)
        figures |= {
            f"recomputed_vs_last_recompute{name}": ours.recomputed_tokens / theirs.recomputed_tokens,
            f"preemptions_vs_last_recompute{name}": ours.num_preemptions / theirs.num_preemptions,
            f"throughput_vs_last_recompute{name}": theirs.seconds / ours.seconds,
            f"swapped_blocks{name or '_without_swap'}": float(ours.swapped_blocks),
        }
    return figures


def _admission(capacity: float) -> dict[str, float]:
    """Admission by predicted lengths against admission of the worst case, where only memory limits.

    Requests come faster than they can be answered; and, as the hardest case, all at once.
    """
    trace = workload("sharegpt-like")
    figures: dict[str, float] = {}
    for name, rate in (("", 1.5 * capacity), ("burst_", None)):
        requests = trace.requests(max_model_len=_SHORT_LEN, rate=rate, count=_PART)
        expected, worst = (
            _ours(requests, _SHORT_LEN, max_num_seqs=8 * _SLOTS, admission=admission)
            for admission in ("expected", "never-evict")
        )
        figures |= {
            f"{name}admitted_vs_worst_case": expected.concurrency_while_waiting() / worst.concurrency_while_waiting(),
            f"{name}extra_preemptions": (expected.num_preemptions - worst.num_preemptions) / len(requests),
            f"{name}throughput_vs_worst_case": worst.seconds / expected.seconds,
        }
    return figures


def main() -> None:
    """Runs everything and reports."""
    gc.set_threshold(100_000, 50)  # a step makes hundreds of tuples; looking for cycles takes a fifth of the time
    began = time.process_time()
    figures = _slots()
    figures |= _latency()
    figures |= _short_and_long()
    figures |= _memory_pressure()
    figures |= _admission(figures["capacity_req_s_sharegpt"])
    judge(figures, _TARGETS)
    seconds = time.process_time() - began
    say(f"{seconds:.0f} s of processor time")
    report("scheduling", figures, limits(_TARGETS), cpu_seconds=round(seconds, 1), kv_tokens=KV_TOKENS, slots=_SLOTS)


if __name__ == "__main__":
    main()
