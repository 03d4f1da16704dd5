"""The scripted executor stands for the real one in other tests: the same plans through both bring the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.domain import BlockCopy, CopyKind, EngineConfig, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.executor import Executor, load_executor
from octavo_runtime.testing import Script, ScriptedExecutor

WriteModel = Callable[..., Path]
BLOCK = 2048
DRAWN = SamplingParams(seed=1)
SEVERAL = SamplingParams(seed=1, n=3)
RANKED = SamplingParams(seed=1, n=1, best_of=2)
BEAMS = SamplingParams(seed=1, n=2, use_beam_search=True)


def sequence(
    number: int, tokens: Sequence[int], computed: int, samples: int, sampling: SamplingParams = DRAWN, **fields: Any
) -> ScheduledSequence:
    blocks = (2 * number, 2 * number + 1)
    return ScheduledSequence(str(number), number, tokens, computed, blocks, samples, 0, sampling, **fields)


PLANS: dict[str, list[StepPlan]] = {
    "nothing": [StepPlan()],
    "prefill without an end": [StepPlan((sequence(0, (3, 4), 0, 0),))],
    "prefill, then decode": [
        StepPlan((sequence(0, (3, 4), 0, 1),)),
        StepPlan((sequence(0, (5,), 2, 1),)),
    ],
    "planned ahead": [
        StepPlan((sequence(0, (3, 4), 0, 1), sequence(1, (5,), 0, 1))),
        StepPlan((sequence(1, (0,), 1, 1, feeds=True), sequence(0, (0,), 2, 1, feeds=True))),
    ],
    "copies alone": [StepPlan(copies=(BlockCopy(CopyKind.OUT, 0, 0), BlockCopy(CopyKind.IN, 0, 1)))],
    "a new size": [StepPlan(num_blocks=8), StepPlan((sequence(0, (3,), 0, 1),), num_blocks=20)],
    "fork": [StepPlan((sequence(0, (3, 4), 0, 3, SEVERAL), sequence(1, (4,), 0, 1)))],
    "a fork goes on": [
        StepPlan((sequence(0, (3, 4), 0, 3, SEVERAL),)),
        StepPlan(tuple(sequence(n, (5,), 2, 1, SEVERAL, choice=n) for n in range(3))),
    ],
    "ranked": [StepPlan((sequence(0, (3, 4), 0, 2, RANKED), sequence(1, (4,), 0, 1)))],
    "ranked, in the midst of its prompt": [StepPlan((sequence(0, (3, 4), 0, 0, RANKED), sequence(1, (4,), 0, 1)))],
    "beams": [StepPlan((sequence(0, (3, 4), 0, 4, BEAMS), sequence(1, (4,), 0, 1), sequence(2, (4,), 0, 4, BEAMS)))],
}
WRONG: dict[str, list[StepPlan]] = {
    "fed by nothing": [StepPlan((sequence(0, (0,), 2, 1, feeds=True),))],
    "fed by the step before the last": [
        StepPlan((sequence(0, (3, 4), 0, 1),)),
        StepPlan((sequence(1, (3, 4), 0, 1),)),
        StepPlan((sequence(0, (0,), 2, 1, feeds=True),)),
    ],
    "fed by a fork": [
        StepPlan((sequence(0, (3, 4), 0, 3, SEVERAL),)),
        StepPlan((sequence(0, (0,), 2, 1, SEVERAL, feeds=True),)),
    ],
}


def both(write_model: WriteModel) -> list[Executor]:
    config = EngineConfig(
        str(write_model()),
        device="cpu",
        kv_cache_memory=10 * BLOCK,
        kv_cache_memory_max=20 * BLOCK,
        swap_space=4 * BLOCK,
    )
    script = Script(reply=(7, 7, 8), num_blocks=10)
    return [load_executor(config), ScriptedExecutor(script, num_host_blocks=4, max_num_blocks=20)]


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS.keys())
def test_execute_same_shapes(plans: list[StepPlan], write_model: WriteModel) -> None:
    executors = both(write_model)
    for plan in plans:
        shapes = []
        for executor in executors:
            result = executor.execute(plan)
            assert all(0 <= token < executor.info.vocab_size for token in result.tokens)
            assert all(logprob < 0 for logprob in result.logprobs)
            assert not result.failed
            assert 0 < result.seconds < 5
            place = 0
            for each in plan.sequences:
                if each.sampling.use_beam_search:
                    own = slice(place, place + each.num_samples)
                    assert len(set(result.tokens[own])) == each.num_samples, "candidates are tokens of their own"
                    assert list(result.logprobs[own]) == sorted(result.logprobs[own], reverse=True)
                place += each.num_samples
            shapes.append((len(result.tokens), len(result.logprobs)))
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("plans", WRONG.values(), ids=WRONG.keys())
def test_execute_same_refusals(plans: list[StepPlan], write_model: WriteModel) -> None:
    for executor in both(write_model):
        for plan in plans[:-1]:
            executor.execute(plan)
        with pytest.raises(KeyError):
            executor.execute(plans[-1])


def test_info_same_fields(write_model: WriteModel) -> None:
    real, scripted = (executor.info for executor in both(write_model))
    for name in ("num_blocks", "max_num_blocks", "num_host_blocks", "block_size"):
        assert getattr(real, name) == getattr(scripted, name)
    assert scripted.block_bytes > 0
