"""What paging gains: memory that holds tokens, requests that run at once, blocks that are shared. `make bench-paging`

Pure accounting on the core that serves: blocks of 16 tokens, max_model_len 2,048, 60,000 tokens of KV, the pinned
workloads all at once. Counted while requests wait, so that memory and not the load decides.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.allocators import Buddy, FirstFit
from bench.baselines import Reserving
from bench.replays import BLOCK_SIZE, KV_TOKENS, STEP_TIME, Target, judge, limits, our_scheduler, run
from bench.report import report, say
from bench.workloads import workload
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import Request, ScheduledSequence, SchedulerConfig, SchedulerStats, StepPlan
from octavo_runtime.replay import EOS, Measured, ReplayRequest, SimulatedExecutor

_MAX_MODEL_LEN = 2048
_SLOTS = 1024  # more than the memory has room for
_EVERY = 8  # steps between two looks at the blocks
_WIDTHS = (2, 4, 6)
_BEAM_PARENTS = Path(__file__).with_name("beam_parents.json")

_COUNTS = {
    "parallel": {"alpaca": 500, "sharegpt": 160},
    "beam": {"alpaca": 200, "sharegpt": 80},
}
"""Requests of several sequences; each sequence takes time of its own."""

_SAVED = {
    "parallel": {"alpaca": (0.061, 0.098), "sharegpt": (0.162, 0.305)},
    "beam": {"alpaca": (0.376, 0.552), "sharegpt": (0.443, 0.663)},
}
"""The paper's ranges over 2, 4 and 6 sequences (section 6.3)."""

_PAPER = {
    "kv_token_state_share": 0.963,
    "kv_token_state_share_of_pool_exact_buddy": 0.382,
    "kv_token_state_share_of_pool_max_len": 0.204,
}
"""Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (SOSP 2023), figure 2."""

_TARGETS: dict[str, Target] = {
    "kv_token_state_share": ("at least", 0.963),
    "concurrency_vs_max_len": ("at least", 4.0),
    "concurrency_vs_exact_reservation": ("at least", 1.4),
    "concurrency_vs_exact_buddy": ("at least", 1.7),
}


@dataclass(slots=True)
class _Blocks:
    """Looks at a scheduler's blocks every few steps, while requests wait or always."""

    core: Scheduler
    always: bool = False
    steps: int = 0
    live: int = 0  # tokens whose state is in memory, each once
    held: int = 0  # tokens of the blocks in use
    pool: int = 0  # tokens of all blocks
    needed: int = 0  # blocks without sharing
    distinct: int = 0  # blocks with it

    def __call__(self, _plan: StepPlan, stats: SchedulerStats) -> None:
        self.steps += 1
        if self.steps % _EVERY or not (self.always or stats.num_waiting):
            return
        size = self.core.block_size
        filled: dict[int, int] = {}
        for sequence in self.core._running:
            left = sequence.num_planned
            for block in sequence.block_table:
                filled[block] = max(filled.get(block, 0), min(left, size))
                left = max(0, left - size)
            self.needed += len(sequence.block_table)
        self.distinct += len(filled)
        self.live += sum(filled.values())
        self.held += size * len(filled)
        self.pool += size * self.core.num_blocks

    @property
    def saved(self) -> float:
        """Share of the blocks that sharing saves."""
        return 1 - self.distinct / self.needed


class RecordedBeams(SimulatedExecutor):
    """Gives each beam's candidates such probabilities that the beams fork as recorded ones did.

    Args:
        requests: Of beam searches, all of one width.
        parents: For each prompt a word for each step, as bench/record_beams.py writes them; prompts and steps are used
            again from the start when there are more.
    """

    def __init__(self, requests: Sequence[ReplayRequest], parents: Sequence[str]) -> None:
        super().__init__(requests, STEP_TIME, BLOCK_SIZE)
        self._parents = {
            replay.request.request_id: parents[place % len(parents)].split() for place, replay in enumerate(requests)
        }

    def candidates(self, replay: ReplayRequest, beam: ScheduledSequence) -> list[tuple[int, float]]:
        """A likely token for each beam that will come of this one, then others that no beam takes.

        A beam's token tells its rank. A beam of rank r has lost r / 100 against the best: its child of rank c takes
        that back and loses c / 100.
        """
        position, words = beam.num_generated, self._parents[replay.request.request_id]
        rank = beam.token_ids[-1] - 1 if position else 0
        if position + 1 >= replay.output_lengths[0]:
            likely = [(EOS, -0.5)]
        else:
            word = words[(position - 1) % len(words)] if position else "0" * replay.request.sampling.width
            children = [child for child, parent in enumerate(word) if int(parent) == rank]
            likely = [(1 + child, (rank - child) / 100 - 1) for child in children]
        rest = range(beam.num_samples - len(likely))
        return likely + [(1000 + place, -1e6 - place) for place in rest]


def _config(**settings: object) -> SchedulerConfig:
    return SchedulerConfig(max_num_seqs=_SLOTS, **settings)  # type: ignore[arg-type]  # each name has its own type


def _ours(requests: Sequence[ReplayRequest], block_size: int = BLOCK_SIZE) -> tuple[Measured, _Blocks]:
    core = our_scheduler(
        _config(), max_model_len=_MAX_MODEL_LEN, num_blocks=KV_TOKENS // block_size, block_size=block_size
    )
    blocks = _Blocks(core)
    return run(core, requests, observe=blocks), blocks


def _reserving(requests: Sequence[ReplayRequest]) -> Iterator[tuple[str, Measured, float]]:
    """Name, measurements and share of all memory that holds tokens, of each way to reserve."""
    lengths = {replay.request.request_id: replay.output_lengths[0] for replay in requests}

    def exact(request: Request) -> int:
        return len(request.prompt_token_ids) + lengths[request.request_id]

    def longest(_request: Request) -> int:
        return _MAX_MODEL_LEN

    ways: dict[str, tuple[FirstFit | Buddy, Callable[[Request], int]]] = {
        "max_len": (FirstFit(KV_TOKENS), longest),
        "exact_reservation": (FirstFit(KV_TOKENS), exact),
        "exact_buddy": (Buddy(KV_TOKENS), exact),
    }
    for name, (allocator, wants) in ways.items():
        core = Reserving(allocator, memory=KV_TOKENS, wants=wants, slots=_SLOTS, budget=2048)
        live = steps = 0

        def observe(plan: StepPlan, stats: SchedulerStats, core: Reserving = core) -> None:
            nonlocal live, steps
            if stats.num_waiting:
                live += core.live_tokens + plan.num_tokens
                steps += 1

        measured = run(core, requests, observe=observe)
        yield name, measured, live / (steps * KV_TOKENS)


def _memory(name: str, prefix: str = "") -> dict[str, float]:
    """Concurrency and memory of one workload, ours and those that reserve."""
    requests = workload(name).requests(max_model_len=_MAX_MODEL_LEN)
    measured, blocks = _ours(requests)
    ours = measured.concurrency_while_waiting()
    figures = {
        f"{prefix}kv_token_state_share": blocks.live / blocks.held,
        f"{prefix}kv_token_state_share_of_pool": blocks.live / blocks.pool,
        f"{prefix}concurrency": ours,
        f"{prefix}preemptions_per_request": measured.num_preemptions / len(requests),
    }
    for way, theirs, share in _reserving(requests):
        figures[f"{prefix}concurrency_vs_{way}"] = ours / theirs.concurrency_while_waiting()
        figures[f"{prefix}kv_token_state_share_of_pool_{way}"] = share
    if blocks.needed != blocks.distinct:
        figures[f"{prefix}blocks_saved"] = blocks.saved
        figures[f"{prefix}prefix_hit_rate"] = measured.prefix_hit_rate
    return figures


def _shared(kind: str, corpus: str, *, equal_lengths: bool = True) -> dict[str, float]:
    """Blocks that the sequences of one request save by sharing.

    As in the paper's traces, all answers to a prompt are of one length, unless said otherwise. Samples can then share
    the full blocks of the prompt from beginning to end, and nothing else: what that saves is the ceiling, given for the
    whole workload; how much of it was reached is of the requests that ran.
    """
    figures = {}
    for width in _WIDTHS if equal_lengths else _WIDTHS[1:2]:
        sampling: dict[str, Any] = {"n": width}
        if kind == "beam":
            sampling |= {"best_of": width, "use_beam_search": True}
        requests = workload(f"{corpus}-like").requests(
            max_model_len=_MAX_MODEL_LEN, count=_COUNTS[kind][corpus], equal_lengths=equal_lengths, **sampling
        )
        core = our_scheduler(_config(), max_model_len=_MAX_MODEL_LEN)
        blocks = _Blocks(core, always=True)
        executor = None
        if kind == "beam":
            executor = RecordedBeams(requests, json.loads(_BEAM_PARENTS.read_text())["widths"][str(width)])
        run(core, requests, executor=executor, observe=blocks)
        figures[f"{kind}{width}_blocks_saved_{corpus}{'' if equal_lengths else '_unequal'}"] = blocks.saved
        if kind == "parallel" and equal_lengths:
            figures[f"parallel{width}_of_ceiling_{corpus}"] = blocks.saved / _ceiling(requests, width)
            everyone = workload(f"{corpus}-like").requests(max_model_len=_MAX_MODEL_LEN, **sampling)
            figures[f"parallel{width}_ceiling_{corpus}"] = _ceiling(everyone, width)
    return figures


def _ceiling(requests: Sequence[ReplayRequest], width: int) -> float:
    shared = needed = 0
    for replay in requests:
        prompt, output = len(replay.request.prompt_token_ids), replay.output_lengths[0]
        shared += (width - 1) * (prompt // BLOCK_SIZE) * output
        needed += width * sum(-(-(prompt + token) // BLOCK_SIZE) for token in range(output))
    return shared / needed


def main() -> None:
    """Runs everything and reports."""
    gc.set_threshold(100_000, 50)  # a step makes hundreds of tuples; looking for cycles takes a fifth of the time
    began = time.process_time()
    targets, paper = dict(_TARGETS), dict(_PAPER)
    figures = _memory("sharegpt-like")
    say(f"sharegpt-like: {figures['concurrency']:.0f} requests at once")
    figures |= _memory("alpaca-like", "alpaca_")
    for examples in (1, 5):
        figures |= _memory(f"shared-prefix-{examples}", f"shared_prefix{examples}_")
    for block_size in (8, 32):
        requests = workload("sharegpt-like").requests(max_model_len=_MAX_MODEL_LEN, count=500)
        _, blocks = _ours(requests, block_size)
        figures[f"kv_token_state_share_block{block_size}"] = blocks.live / blocks.held
    say("blocks that parallel samples and beams share")
    for kind, corpora in _SAVED.items():
        if kind == "beam" and not _BEAM_PARENTS.exists():
            say(f"  no {_BEAM_PARENTS.name}: record it with `python -m bench.record_beams`; beams are left out")
            continue
        for corpus, (low, high) in corpora.items():
            figures |= _shared(kind, corpus)
            if kind == "parallel":
                figures |= _shared(kind, corpus, equal_lengths=False)
            for width in _WIDTHS:
                targets[f"{kind}{width}_blocks_saved_{corpus}"] = ("at least", low)
            paper |= {f"{kind}2_blocks_saved_{corpus}": low, f"{kind}6_blocks_saved_{corpus}": high}
    judge(figures, targets)
    seconds = time.process_time() - began
    say(f"{seconds:.0f} s of processor time")
    report("paging", figures, limits(targets), paper=paper, cpu_seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
