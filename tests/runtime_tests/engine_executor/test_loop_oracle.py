"""The loop with the oracle for an executor: it checks each plan in the order in which the loop hands them over."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo_runtime.core.testing import OracleExecutor, OracleRun
from octavo_runtime.domain import EngineConfig, EngineInfo, Request, SamplingParams, SchedulerConfig
from octavo_runtime.engine.loop import EngineCore


def oracle_requests(seed: int) -> list[tuple[int, Request]]:
    """Requests of all kinds, each with the step before which it arrives."""
    rng = random.Random(seed)
    kinds: list[Callable[[], dict[str, Any]]] = [
        dict,
        lambda: {"n": rng.randint(2, 3)},
        lambda: {"n": 1, "best_of": 3},
        lambda: {"n": 2, "best_of": rng.randint(2, 3), "use_beam_search": True},
        lambda: {"stop_token_ids": (rng.randrange(8),)},
    ]
    loads = []
    for number in range(14):
        sampling = SamplingParams(seed=0, max_tokens=rng.randint(1, 12), **rng.choice(kinds)())
        prompt = tuple(rng.randrange(3) for _ in range(rng.randint(1, 24)))
        loads.append((rng.randrange(25), Request(str(number), prompt, sampling)))
    return sorted(loads, key=lambda load: load[0])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_engine_gives_what_the_oracle_gives(seed: int, ahead: bool) -> None:
    info = EngineInfo(
        max_model_len=40,
        vocab_size=8,
        eos_token_ids=(),
        num_blocks=24,
        block_size=4,
        device="cpu",
        dtype="float32",
        kv_cache_dtype="float32",
        max_num_blocks=30,
        num_host_blocks=8,
        block_bytes=1,
    )

    class Oracle(OracleExecutor):
        def __init__(self) -> None:
            self.info = info

    executor = Oracle()
    config = SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=16,
        admission="max-utilization",
        async_scheduling=ahead,
        check_invariants=True,
    )
    core = EngineCore(executor, EngineConfig("", scheduler=config))
    OracleExecutor.__init__(executor, core._scheduler, info.num_blocks, info.vocab_size, info.num_host_blocks)
    run = OracleRun(core._scheduler, executor)
    arrivals = oracle_requests(seed)
    steps = 0
    while arrivals or core.has_work:
        core.begin()
        while arrivals and (arrivals[0][0] <= steps or not core.has_work):
            run.add(arrivals.pop(0)[1])
        if steps in {8, 20}:
            core.resize(30 if steps == 8 else 24)
        for event in core.step().events:
            run._take(event)
        steps += 1
        assert steps < 2000, "it makes no progress"
    run.check()
