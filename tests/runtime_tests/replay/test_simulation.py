"""Replays in virtual time, against what can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import Event, Request, SamplingParams, SchedulerConfig, SchedulerStats, StepPlan, StepResult
from octavo_runtime.replay import (
    EOS,
    ClosedLoop,
    Measured,
    OpenLoop,
    ReplayRequest,
    SimulatedExecutor,
    StepTimeModel,
    simulate,
)
from octavo_runtime.replay.load import Load

STEP = StepTimeModel(base=1.0, per_token=0.01, per_context=0.0)


def replay_request(
    name: str,
    prompt: int = 10,
    output: int = 3,
    *,
    arrival: float = 0.0,
    max_tokens: int = 50,
    n: int = 1,
    **sampling: object,
) -> ReplayRequest:
    tokens = (5000 + sum(map(ord, name)), *[5000] * (prompt - 1))
    params = SamplingParams(temperature=0, seed=0, max_tokens=max_tokens, n=n, **sampling)  # type: ignore[arg-type]  # tests pass fields by name
    return ReplayRequest(Request(name, tokens, params, arrival), (output,) * params.width)


def run(
    requests: Sequence[ReplayRequest],
    *,
    load: Load | None = None,
    plan_ahead: bool = False,
    num_blocks: int = 64,
    executor: SimulatedExecutor | None = None,
    **config: object,
) -> tuple[Measured, SchedulerStats]:
    core = Scheduler(
        SchedulerConfig(**{"max_num_seqs": 8, "check_invariants": True, **config}),  # type: ignore[arg-type]  # same
        num_blocks=num_blocks,
        block_size=8,
        max_model_len=512,
        eos_token_ids=(EOS,),
    )
    executor = executor or SimulatedExecutor(requests, STEP, 8)
    measured = simulate(core, executor, load or OpenLoop(requests), plan_ahead=plan_ahead)
    return measured, core.stats()


def test_simulate_one_request() -> None:
    measured, _ = run([replay_request("a", prompt=10, output=3, arrival=2.0)])
    (times,) = measured.requests
    assert times.arrival == 2.0
    assert times.ttft == pytest.approx(1.1)
    assert list(times.gaps) == pytest.approx([1.01, 1.01])
    assert times.e2e == pytest.approx(3.12)
    assert times.num_tokens == 3
    assert measured.seconds == pytest.approx(3.12)


def test_simulate_ends_at_max_tokens_without_eos() -> None:
    measured, stats = run([replay_request("a", output=5, max_tokens=5)])
    assert measured.requests[0].num_tokens == 5
    assert stats.num_running == 0


def test_simulate_requests_arrive_in_order_of_time() -> None:
    measured, _ = run([replay_request("late", arrival=9.0), replay_request("early", arrival=1.0)])
    assert [times.arrival for times in measured.requests] == [1.0, 9.0]
    assert [times.ttft for times in measured.requests] == pytest.approx([1.1, 1.1])


def test_simulate_a_request_waits_for_the_step_that_runs() -> None:
    measured, _ = run([replay_request("a"), replay_request("b", arrival=0.5)])
    # It comes in the first step, which ends at 1.1, and is prefilled in the second beside a decode.
    assert measured.requests[1].ttft == pytest.approx(1.1 + 1.11 - 0.5)


def test_simulate_is_the_same_every_time() -> None:
    requests = [replay_request(f"r{number}", 5 + number, 1 + number % 7, arrival=number / 3) for number in range(30)]
    first, second = (run(requests, num_blocks=20)[0] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("plan_ahead", [False, True])
def test_simulate_gives_every_request_its_length(*, plan_ahead: bool) -> None:
    lengths = [1 + 7 * number % 40 for number in range(40)]
    requests = [replay_request(f"r{number}", 5, length) for number, length in enumerate(lengths)]
    measured, stats = run(requests, plan_ahead=plan_ahead, num_blocks=12, admission="max-utilization")
    assert [times.num_tokens for times in measured.requests] == lengths
    assert stats.num_preemptions > 0, "the pool was to be small"


def test_simulate_planned_ahead_sees_who_comes_early_in_a_step() -> None:
    soon, late = (
        run([replay_request("a", output=9), replay_request("b", arrival=arrival)], plan_ahead=True)[0].requests[1]
        for arrival in (0.5, 1.05)
    )
    assert soon.ttft == pytest.approx(1.1 + 1.11 - 0.5)
    assert late.ttft == pytest.approx(1.1 + 1.01 + 1.11 - 1.05)


def test_simulate_recomputed_tokens_are_what_the_scheduler_counts() -> None:
    requests = [replay_request(f"r{number}", 20, 40) for number in range(8)]
    measured, stats = run(requests, num_blocks=24, admission="max-utilization", max_num_batched_tokens=24)
    assert measured.num_preemptions > 0
    assert measured.recomputed_tokens > 0
    # A chunk in flight when its sequence is preempted makes the only difference; without planning ahead there is none.
    assert measured.recomputed_tokens == stats.num_recomputed_tokens


def test_simulate_several_answers() -> None:
    request = replay_request("a", prompt=20, n=3, max_tokens=30)
    request = ReplayRequest(request.request, (2, 5, 9))
    measured, _ = run([request])
    assert measured.requests[0].num_tokens == 2 + 5 + 9
    assert len(measured.requests[0].gaps) == 1 + 4 + 8


def test_simulate_ranked_answers_come_whole() -> None:
    measured, _ = run([replay_request("a", output=4, n=2, best_of=3)])
    assert measured.requests[0].num_tokens == 8
    assert measured.requests[0].ttft == pytest.approx(measured.requests[0].e2e)


@pytest.mark.parametrize(("output", "max_tokens"), [(6, 20), (6, 6)])
def test_simulate_beams_end_when_the_longest_did(output: int, max_tokens: int) -> None:
    measured, _ = run([replay_request("a", output=output, max_tokens=max_tokens, n=2, best_of=3, use_beam_search=True)])
    assert measured.requests[0].num_tokens == 2 * output


def test_simulate_known_output_is_found_by_the_next_turn() -> None:
    first = replay_request("a", prompt=10, output=7)
    known = tuple(range(6000, 6007))
    first = ReplayRequest(first.request, (7,), known)
    # The second prompt is the first with its answer; of 16 tokens, the 15 that were computed fill one block.
    tokens = (*first.request.prompt_token_ids, *known[:6], 7000)
    second = ReplayRequest(Request("b", tokens, first.request.sampling, arrival=100.0), (3,))
    measured, stats = run([first, second])
    assert stats.prefix_hits == 16
    assert measured.prefix_hit_rate == pytest.approx(16 / 27)


def test_simulate_closed_loop_keeps_so_many_requests() -> None:
    requests = [replay_request(f"r{number}", output=4) for number in range(12)]
    measured, _ = run(requests, load=ClosedLoop(requests, clients=3))
    for times in measured.requests:
        there = [t for t in measured.requests if t.arrival <= times.arrival < t.arrival + t.e2e]
        assert len(there) <= 3
    assert len(measured.requests) == 12
    assert measured.use.sequence_seconds / measured.use.seconds == pytest.approx(3)


class Stuck:
    """Takes requests and plans nothing."""

    has_work = True
    can_plan_ahead = False

    def add(self, request: Request) -> None:
        pass

    def schedule(self, _now: float, /) -> StepPlan:
        return StepPlan()

    def apply(self, _plan: StepPlan, _result: StepResult, /) -> list[Event]:
        return []

    def stats(self) -> SchedulerStats:
        return SchedulerStats(0, 1, 0.0)


def test_simulate_says_when_the_scheduler_is_stuck() -> None:
    requests = [replay_request("a")]
    with pytest.raises(RuntimeError, match="1 requests wait for ever"):
        simulate(Stuck(), SimulatedExecutor(requests, STEP, 8), OpenLoop(requests))
