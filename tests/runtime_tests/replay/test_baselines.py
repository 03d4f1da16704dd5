"""The baselines are what they claim to be, or comparing with them would mean nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.allocators import Allocator, Buddy, FirstFit
from bench.baselines import LastRecompute, Reserving, StaticBatching
from octavo_runtime.domain import Request, SamplingParams
from octavo_runtime.replay import Measured, OpenLoop, ReplayRequest, SimulatedExecutor, StepTimeModel, simulate
from octavo_runtime.replay.simulation import Core


def requests(*lengths: tuple[int, int], max_tokens: int = 1000) -> list[ReplayRequest]:
    return [
        ReplayRequest(Request(f"r{n}", (9,) * prompt, SamplingParams(seed=0, max_tokens=max_tokens)), (output,))
        for n, (prompt, output) in enumerate(lengths)
    ]


def run(core: Core, asked: list[ReplayRequest]) -> Measured:
    return simulate(
        core, SimulatedExecutor(asked, StepTimeModel(base=1.0, per_token=0.0, per_context=0.0), 16), OpenLoop(asked)
    )


@pytest.mark.parametrize("make", [FirstFit, Buddy])
@given(actions=st.lists(st.integers(1, 40) | st.just(0), max_size=60), slots=st.integers(1, 100))
def test_allocator_never_gives_a_slot_twice(
    make: Callable[[int], FirstFit | Buddy], actions: list[int], slots: int
) -> None:
    allocator = make(slots)
    ranges: dict[int, int] = {}
    for size in actions:
        if size == 0 and ranges:
            start = min(ranges)
            allocator.free(start)
            del ranges[start]
        elif size:
            found = allocator.allocate(size)
            if found is not None:
                ranges[found] = size
    taken = [slot for start, size in ranges.items() for slot in range(start, start + size)]
    assert len(set(taken)) == len(taken)
    assert all(0 <= slot < slots for slot in taken)
    assert sum(ranges.values()) <= allocator.held <= slots
    for start in ranges:
        allocator.free(start)
    assert allocator.held == 0
    # All of it is one again.
    assert allocator.allocate(1 << (slots.bit_length() - 1)) is not None


def fill(allocator: Allocator, *sizes: int) -> list[int | None]:
    return [allocator.allocate(size) for size in sizes]


def test_first_fit_is_exact_and_fragments() -> None:
    allocator = FirstFit(10)
    assert fill(allocator, 3, 3, 4) == [0, 3, 6]
    allocator.free(0)
    allocator.free(6)
    assert allocator.allocate(5) is None, "seven are free, but only four in a row"
    assert allocator.allocate(4) == 6


def test_buddy_rounds_up_to_a_power_of_two() -> None:
    allocator = Buddy(32)
    assert fill(allocator, 5, 8, 9) == [0, 8, 16]
    assert allocator.held == 32
    assert allocator.allocate(1) is None


def test_buddy_of_any_size_is_a_row_of_powers() -> None:
    assert fill(Buddy(21), 16, 4, 1, 1) == [0, 16, 20, None]


def test_reserving_runs_as_many_as_memory_is_reserved_for() -> None:
    core = Reserving(FirstFit(1000), memory=1000, wants=lambda _request: 300, slots=64, budget=512)
    measured = run(core, requests(*[(10, 20)] * 9))
    assert measured.concurrency_while_waiting() == 3
    assert measured.num_preemptions == 0
    # Three rounds of a prefill, which gives the first token, and nineteen decodes.
    assert measured.use.steps == 3 * 20


def test_static_batching_waits_for_the_longest() -> None:
    measured = run(StaticBatching(slots=2, budget=512), requests((4, 2), (4, 10), (4, 2), (4, 2)))
    assert [times.finished for times in measured.requests] == [2, 10, 12, 12]
    # In the first ten steps the batch gives twelve tokens for twenty slots.
    assert measured.slot_utilisation(2) == pytest.approx(12 / 20)


def test_static_batching_fills_a_batch_beyond_one_steps_budget() -> None:
    core = StaticBatching(slots=4, budget=10)
    for replay in requests(*[(10, 3)] * 8):
        core.add(replay.request)
    assert core.schedule(0.0).num_tokens == 10
    assert (core.stats().num_running, core.stats().num_waiting) == (4, 4)


def test_last_recompute_preempts_who_started_last_and_computes_it_again() -> None:
    core = LastRecompute(num_blocks=4, block_size=16, slots=8, budget=512)
    measured = run(core, requests((16, 40), (16, 40)))
    # Each needs four blocks in the end; the second gives up two when the first wants its third.
    assert measured.num_preemptions == 1
    assert measured.requests[0].finished == 40
    assert measured.recomputed_tokens > 0
    assert [times.num_tokens for times in measured.requests] == [40, 40]


def test_last_recompute_finds_what_is_still_cached() -> None:
    # The victim's blocks are not all needed by then: what is left of them is not computed again.
    core = LastRecompute(num_blocks=8, block_size=16, slots=8, budget=512)
    measured = run(core, requests((60, 10), (60, 10)))
    assert measured.num_preemptions == 1
    assert measured.recomputed_tokens < 60


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12),
    blocks=st.integers(8, 20),
)
def test_last_recompute_answers_everyone(lengths: list[tuple[int, int]], blocks: int) -> None:
    core = LastRecompute(num_blocks=blocks, block_size=16, slots=6, budget=32)
    measured = run(core, requests(*lengths))
    assert [times.num_tokens for times in measured.requests] == [output for _, output in lengths]
    assert core.usage == 0
