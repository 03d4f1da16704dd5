"""Graphs compute what the same plans compute without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import (
    EngineConfig,
    Request,
    SamplingParams,
    ScheduledSequence,
    SchedulerConfig,
    StepPlan,
    StepResult,
)
from octavo_runtime.engine.decode_graphs import DecodeGraphs, graph_sizes
from octavo_runtime.engine.decode_table import Layout
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.testing import RecordingDevice, poison
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.models.decoder import Decoder

WriteModel = Callable[..., Path]
BuildSequence = Callable[..., ScheduledSequence]
BLOCK = 2048
ROWS = 6
HOST_BLOCKS = 6


@pytest.fixture
def plain(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchExecutor]:
    """Without graphs, with NaN wherever nothing was written."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "reference")
    form.cache_clear()
    executor = load_executor(
        EngineConfig(str(write_model()), device="cpu", kv_cache_memory=32 * BLOCK, swap_space=HOST_BLOCKS * BLOCK)
    )
    assert isinstance(executor, TorchExecutor)
    yield executor
    form.cache_clear()


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


@pytest.fixture
def replaying(plain: TorchExecutor, device: RecordingDevice) -> TorchExecutor:
    """The same model and KV cache with graphs. One of the two runs at a time."""
    info, decoder = plain.info, plain._decoder
    assert isinstance(decoder, Decoder)
    layout = Layout(ROWS, -(-info.max_model_len // info.block_size))
    poison(plain)
    with torch.inference_mode():
        graphs = DecodeGraphs(
            decoder,
            device,
            torch.zeros(layout.size, dtype=torch.int32),
            layout=layout,
            max_rows=ROWS,
            block_size=info.block_size,
        )
    assert np.isnan(plain.pool.device).all(), "rows of nobody have KV"
    return TorchExecutor(decoder, plain.pool, info, graphs=graphs)


def run(executor: TorchExecutor, requests: Sequence[Request]) -> dict[tuple[str, int], tuple[int, ...]]:
    """All answers of a scheduler with these requests, and with too few blocks for them."""
    poison(executor)
    info = executor.info
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=ROWS, admission="max-utilization"),
        num_blocks=7,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        eos_token_ids=info.eos_token_ids,
        num_host_blocks=info.num_host_blocks,
        swap_seconds_per_block=1e-9,
        prefill_seconds_per_token=1.0,
    )
    answers: dict[tuple[str, int], tuple[int, ...]] = {}
    waiting = list(requests)
    for step in range(1000):
        if waiting and step % 3 == 0:
            scheduler.add(waiting.pop())
        if not scheduler.has_work:
            break
        plan = scheduler.schedule(float(step))
        for event in scheduler.apply(plan, executor.execute(plan)):
            key = (event.request_id, event.choice)
            answers[key] = answers.get(key, ()) + event.token_ids
    assert not waiting
    assert not scheduler.has_work
    assert scheduler.stats().num_preemptions > 0
    return answers


def requests() -> list[Request]:
    """Greedy ones, drawn ones, forks, beams, long and short: some wait, some are preempted and swapped."""
    settings: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 5, "top_p": 0.9},
        {"temperature": 1.2, "seed": 6, "top_k": 7, "n": 3},
        {"temperature": 0, "n": 2, "use_beam_search": True},
        {"temperature": 0.7, "seed": 8, "min_p": 0.1},
        {"temperature": 0, "seed": 0},
        {"temperature": 1.0, "seed": 9, "best_of": 2, "n": 1},
    ]
    return [
        Request(
            str(number),
            tuple(range(3, 3 + length)),
            SamplingParams(
                **({"max_tokens": tokens, "ignore_eos": True, "seed": 0} | settings[number % len(settings)])
            ),
        )
        for number, (length, tokens) in enumerate(
            [(1, 20), (15, 20), (16, 9), (17, 8), (20, 20), (5, 30), (3, 6), (12, 23), (2, 18), (9, 20)]
        )
    ]


def test_step_as_without_graphs(plain: TorchExecutor, replaying: TorchExecutor, device: RecordingDevice) -> None:
    truth = run(plain, requests())
    assert run(replaying, requests()) == truth
    assert len(truth) == 15
    assert len(device.replayed) > 20
    assert len(set(device.replayed)) >= 3, "of several sizes"


def decode(
    sequence: BuildSequence, computed: int, tokens: Sequence[int], tables: Sequence[tuple[int, ...]], **settings: Any
) -> StepPlan:
    return StepPlan(
        tuple(
            sequence(name, [token], computed, table, **settings)
            for name, token, table in zip("abcdef", tokens, tables, strict=False)
        )
    )


def test_step_sequences_that_go_on_send_nothing(
    replaying: TorchExecutor, device: RecordingDevice, sequence: BuildSequence
) -> None:
    tables = ((1, 2), (3, 4), (5, 6))
    result = replaying.execute(decode(sequence, 0, [3, 4, 5], tables))
    first, sent = list(device.replayed), list(device.sent)
    for computed in range(1, 32):
        result = replaying.execute(decode(sequence, computed, result.tokens, tables))
    assert sent
    assert device.sent == sent
    assert device.replayed == first * 32
    # What was planned ahead needs nothing either.
    replaying.execute(decode(sequence, 32, [0, 0, 0], tables, feeds=True))
    assert device.sent == sent


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_step_writes_its_own_slots_alone(
    count: int, plain: TorchExecutor, replaying: TorchExecutor, sequence: BuildSequence
) -> None:
    tables = tuple((number, 20 + number) for number in range(count))
    result = replaying.execute(decode(sequence, 0, range(3, 3 + count), tables))
    replaying.execute(decode(sequence, 1, result.tokens, tables))
    written = ~np.isnan(plain.pool.device).any(axis=-1)  # [layers, 2, blocks, block size, kv heads]
    expected = np.zeros_like(written)
    expected[:, :, :count, :2] = True
    assert np.array_equal(written, expected)


def test_step_not_finite_ends_one_request(
    plain: TorchExecutor, replaying: TorchExecutor, sequence: BuildSequence
) -> None:
    tables = ((1,), (2,), (3,))
    tokens = replaying.execute(decode(sequence, 0, [3, 4, 5], tables)).tokens
    plain.pool.device[:, :, 2, 0] = torch.nan
    result = replaying.execute(decode(sequence, 1, tokens, tables))
    assert result.failed.keys() == {1}
    truth = plain.execute(decode(sequence, 1, tokens, tables))
    assert (result.tokens[0], result.tokens[2]) == (truth.tokens[0], truth.tokens[2])
    # The row goes on with a token that exists, until the scheduler takes it away.
    assert replaying.execute(decode(sequence, 2, [0, 0, 0], tables, feeds=True)).failed.keys() == {1}


def test_takes(replaying: TorchExecutor, sequence: BuildSequence) -> None:
    graphs = replaying._graphs
    assert graphs is not None
    plain = sequence("a", [3], 4, (0,))
    assert graphs.takes(StepPlan((plain,) * ROWS))
    for other in (
        StepPlan(),
        StepPlan((plain,) * (ROWS + 1)),
        StepPlan((plain, sequence("b", [3, 4], 0, (1,)))),
        StepPlan((plain, sequence("b", [3], 0, (1,), num_samples=0))),
        StepPlan((plain, sequence("b", [3], 0, (1,), num_samples=2, n=2))),
        StepPlan((plain, sequence("b", [3], 0, (1,), n=1, best_of=2))),
        StepPlan((plain, sequence("b", [3], 0, (1,), n=2, use_beam_search=True))),
    ):
        assert not graphs.takes(other)


def test_execute_same_results(plain: TorchExecutor, replaying: TorchExecutor, sequence: BuildSequence) -> None:
    drawn = {"temperature": 0.8, "seed": 4}
    plans = [
        StepPlan((sequence("a", [3, 4], 0, (1,)), sequence("b", [5], 0, (2,), **drawn))),
        StepPlan((sequence("b", [6], 1, (2,), **drawn), sequence("a", [7], 2, (1,)))),
        StepPlan((sequence("a", [0], 3, (1,), feeds=True), sequence("c", [7], 0, (3,)))),
    ]

    def results(executor: TorchExecutor) -> list[StepResult]:
        return [executor.execute(plan) for plan in plans]

    for got, truth in zip(results(replaying), results(plain), strict=True):
        assert list(got.tokens) == list(truth.tokens)


def test_graph_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(5) == [1, 2, 4, 5]
    assert graph_sizes(64) == [1, 2, 4, 8, 16, 32, 48, 64]
    assert graph_sizes(2000)[-1] == 512
