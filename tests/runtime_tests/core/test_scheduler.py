"""The scheduler's rules, one by one; the oracle tests hold them together."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.core.waiting import AGING
from octavo_runtime.domain import (
    CopyKind,
    Event,
    FinishReason,
    Request,
    SamplingParams,
    SchedulerConfig,
    StepPlan,
    StepResult,
)
from octavo_runtime.errors import InvalidRequest


def make_scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    num_host_blocks: int = 0,
    max_num_blocks: int | None = None,
    **config: Any,
) -> Scheduler:
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "admission": "max-utilization"}
    return Scheduler(
        SchedulerConfig(**{**defaults, **config}),
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=1024,
        eos_token_ids=(2,),
        num_host_blocks=num_host_blocks,
        max_num_blocks=max_num_blocks,
    )


def request(
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int = 4,
    *,
    arrival: float = 0.0,
    priority: int = 0,
    **sampling: Any,
) -> Request:
    tokens = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(temperature=0, seed=0, max_tokens=max_tokens, **sampling)
    return Request(name, tokens, params, arrival, priority=priority)


def answer(plan: StepPlan, token: int = 7) -> StepResult:
    return StepResult([token] * sum(sequence.num_samples for sequence in plan.sequences))


def step(scheduler: Scheduler, token: int = 7) -> tuple[StepPlan, list[Event]]:
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, answer(plan, token))
    scheduler.check_invariants()
    return plan, events


def shape(plan: StepPlan) -> dict[str, int]:
    return {sequence.request_id: len(sequence.token_ids) for sequence in plan.sequences}


def test_init_budget_below_max_num_seqs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(4\) must be at least max_num_seqs \(8\)"):
        make_scheduler(max_num_batched_tokens=4)


def test_add_request_too_long_names_the_numbers() -> None:
    with pytest.raises(InvalidRequest, match="1000 tokens and max_tokens is 100, together more than the 1024"):
        make_scheduler().add(request("a", 1000, max_tokens=100))


def test_add_request_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than the 64 "):
        make_scheduler(num_blocks=4).add(request("a", 64, max_tokens=1))


def test_add_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        make_scheduler().add(request("a", 0))


def test_schedule_no_work_is_an_empty_plan() -> None:
    scheduler = make_scheduler()
    assert not scheduler.has_work
    assert scheduler.schedule(0.0).sequences == ()


def test_schedule_long_prompt_is_computed_in_chunks() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 150))
    plans = [step(scheduler)[0] for _ in range(3)]
    assert [shape(plan) for plan in plans] == [{"a": 64}, {"a": 64}, {"a": 22}]
    assert [plan.sequences[0].num_samples for plan in plans] == [0, 0, 1]
    assert [plan.sequences[0].num_computed for plan in plans] == [0, 64, 128]


def test_schedule_decode_goes_before_another_prompts_chunk() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("short", 10))
    step(scheduler)
    scheduler.add(request("long", 150))
    assert shape(step(scheduler)[0]) == {"short": 1, "long": 63}


def test_schedule_prefill_and_decode_share_one_budget() -> None:
    scheduler = make_scheduler()
    for name, length in (("a", 30), ("b", 30), ("c", 30)):
        scheduler.add(request(name, length))
    assert shape(step(scheduler)[0]) == {"a": 30, "b": 30, "c": 4}
    assert shape(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 26}


def test_schedule_more_requests_than_seats_wait() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(request(name, [ord(name)] * 3, max_tokens=1))
    assert shape(step(scheduler)[0]) == {"a": 3, "b": 3}
    assert shape(step(scheduler)[0]) == {"c": 3}


def test_schedule_block_table_grows_by_one_block_at_its_end() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 33, max_tokens=20))
    tables = [len(step(scheduler)[0].sequences[0].block_table) for _ in range(18)]
    # 33 tokens need 3 blocks; the 49th token needs a fourth.
    assert tables == [3] * 16 + [4] * 2


def test_schedule_pool_exhausted_preempts_and_brings_the_victim_back_before_new_ones() -> None:
    scheduler = make_scheduler(num_blocks=4, enable_prefix_caching=False)
    scheduler.add(request("first", 32, max_tokens=20))
    scheduler.add(request("second", 32, max_tokens=20))
    scheduler.add(request("third", 5, max_tokens=1))
    plan, _ = step(scheduler)
    assert shape(plan) == {"first": 32, "second": 32}
    plan, _ = step(scheduler)
    assert shape(plan) == {"first": 1}
    assert scheduler.stats().num_preemptions == 1
    while scheduler.stats().num_running == 1:
        step(scheduler)
    # All of it is computed again, its one output token too, and it does not wait behind the third.
    plan, _ = step(scheduler)
    assert list(shape(plan).items()) == [("second", 33), ("third", 5)]


def test_schedule_shared_prefix_reuses_only_full_blocks() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 31, max_tokens=1))
    step(scheduler)
    scheduler.add(request("b", [*range(100, 131), 5, 6], max_tokens=1))
    plan, events = step(scheduler)
    assert shape(plan) == {"b": 17}
    assert plan.sequences[0].num_computed == 16
    assert events[0].num_cached_tokens == 16
    assert (scheduler.stats().prefix_queries, scheduler.stats().prefix_hits) == (31 + 33, 16)


def test_schedule_prompt_fully_cached_still_computes_its_last_token() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(request(name, 32, max_tokens=1))
        plan, _ = step(scheduler)
    assert (plan.sequences[0].num_computed, len(plan.sequences[0].token_ids)) == (16, 16)


def test_schedule_prefix_caching_off_computes_everything_again() -> None:
    scheduler = make_scheduler(enable_prefix_caching=False)
    for name in "ab":
        scheduler.add(request(name, 32, max_tokens=1))
        plan, _ = step(scheduler)
    assert shape(plan) == {"b": 32}
    assert scheduler.stats().prefix_queries == 0


def test_schedule_other_salt_shares_nothing() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(replace(request(name, 32, max_tokens=1), cache_salt=name))
        plan, _ = step(scheduler)
    assert shape(plan) == {"b": 32}


def test_stats_cached_blocks_of_ended_requests_count_as_free() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 32, max_tokens=2))
    step(scheduler)
    assert scheduler.stats().kv_cache_usage == pytest.approx(2 / 64)
    step(scheduler)
    assert scheduler.stats().kv_cache_usage == 0


def test_apply_eos_as_the_only_token_is_a_stop_not_a_length() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, max_tokens=1))
    _, events = step(scheduler, token=2)
    assert events == [Event("a", (2,), FinishReason.STOP, 2)]


def test_apply_ignore_eos_goes_on_to_the_length() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, max_tokens=2, ignore_eos=True))
    assert step(scheduler, token=2)[1] == [Event("a", (2,))]
    assert step(scheduler, token=2)[1] == [Event("a", (2,), FinishReason.LENGTH)]


def test_apply_stop_token_id_ends_even_when_eos_is_ignored() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, ignore_eos=True, stop_token_ids=(9,)))
    assert step(scheduler, token=9)[1] == [Event("a", (9,), FinishReason.STOP, 9)]


def test_apply_failed_sequence_ends_alone() -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(request(name, 4))
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, StepResult([7, 7], failed={0: "the logits are not finite"}))
    assert events[0] == Event("a", (), FinishReason.ERROR, error="the logits are not finite")
    assert events[1] == Event("b", (7,))
    scheduler.check_invariants()
    assert shape(step(scheduler)[0]) == {"b": 1}


def test_abort_waiting_and_running_requests_frees_their_blocks() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request("running", 40))
    scheduler.add(request("waiting", 40))
    step(scheduler)
    scheduler.abort("waiting")
    scheduler.abort("running")
    scheduler.check_invariants()
    assert not scheduler.has_work
    assert scheduler.stats().kv_cache_usage == 0


def test_abort_between_schedule_and_apply_drops_the_news() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4))
    plan = scheduler.schedule(0.0)
    scheduler.abort("a")
    assert scheduler.apply(plan, StepResult([7])) == []
    scheduler.check_invariants()


def test_abort_unknown_request_is_ignored() -> None:
    make_scheduler().abort("nobody")


def test_add_more_answers_than_seats_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="9 sequences are asked for, more than the 8"):
        make_scheduler().add(request("a", 4, n=9))


def test_add_answers_that_could_outgrow_the_pool_are_refused() -> None:
    # The prompt's two blocks are shared; each answer may need two of its own.
    with pytest.raises(InvalidRequest, match="may need 8 KV blocks; there are 7"):
        make_scheduler(num_blocks=7).add(request("a", 32, max_tokens=32, n=3))


def test_schedule_answers_share_the_prompts_blocks() -> None:
    # The known case: beam width 4, block 16, prompt 160: ten prompt blocks in all, not forty.
    scheduler = make_scheduler(max_num_batched_tokens=256)
    scheduler.add(request("a", 160, n=4, max_tokens=8))
    step(scheduler)
    assert scheduler.stats().num_running == 4
    assert scheduler.stats().kv_cache_usage == pytest.approx(10 / 64)
    plan, events = step(scheduler)
    assert {sequence.block_table[:10] for sequence in plan.sequences} == {plan.sequences[0].block_table[:10]}
    assert len({sequence.block_table[10] for sequence in plan.sequences}) == 4
    assert plan.copies == ()  # the prompt ends with its block: nothing to copy on write
    assert [event.choice for event in events] == [0, 1, 2, 3]


def test_schedule_answers_copy_the_block_that_they_write_to() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 20, n=3, max_tokens=8))
    step(scheduler)
    plan, _ = step(scheduler)
    # Two copies for three answers: the last owner writes in place.
    assert [copy.kind for copy in plan.copies] == [CopyKind.DEVICE, CopyKind.DEVICE]
    assert scheduler.stats().kv_cache_usage == pytest.approx(4 / 64)
    assert step(scheduler)[0].copies == ()


def test_abort_one_answer_leaves_the_others() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 20, n=3, max_tokens=3))
    step(scheduler)
    scheduler.abort("a", 1)
    assert [event.choice for event in step(scheduler)[1]] == [0, 2]
    assert [event.finish_reason for event in step(scheduler)[1]] == [FinishReason.LENGTH] * 2
    assert not scheduler.has_work


def test_abort_one_answer_before_the_prompt_has_forked() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16)
    scheduler.add(request("a", 20, n=3, max_tokens=3))
    step(scheduler)
    scheduler.abort("a", 0)
    assert [event.choice for event in step(scheduler)[1]] == [1, 2]
    assert scheduler.stats().num_running == 2


def test_apply_failed_answer_ends_the_request_with_one_event_for_each_answer() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, n=2))
    step(scheduler)
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, StepResult([7, 7], failed={1: "the logits are not finite"}))
    assert [(event.choice, event.finish_reason) for event in events] == [
        (0, None),
        (0, FinishReason.ERROR),
        (1, FinishReason.ERROR),
    ]
    assert not scheduler.has_work


def test_apply_best_of_gives_the_likeliest_answers_whole_and_best_first() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, n=2, best_of=3, max_tokens=1))
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, StepResult([7, 8, 9], [-3.0, -1.0, -2.0]))
    assert events == [
        Event("a", (8,), FinishReason.LENGTH, choice=0),
        Event("a", (9,), FinishReason.LENGTH, choice=1),
    ]


def test_abort_one_ranked_answer_early_leaves_the_ranking_as_it_is() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, n=2, best_of=3, max_tokens=1))
    scheduler.abort("a", 1)
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, StepResult([7, 8, 9], [-3.0, -1.0, -2.0]))
    assert events == [Event("a", (8,), FinishReason.LENGTH, choice=0)]


def test_schedule_ahead_feeds_the_token_that_is_not_known_yet() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, max_tokens=3))
    first = scheduler.schedule(0.0)
    second = scheduler.schedule(0.0)
    assert (second.sequences[0].feeds, second.sequences[0].num_computed, second.sequences[0].num_generated) == (
        True,
        4,
        1,
    )
    scheduler.apply(first, answer(first))
    third = scheduler.schedule(0.0)
    scheduler.apply(second, answer(second))
    # The third token is the last that was asked for.
    assert not scheduler.schedule(0.0).has_work
    assert scheduler.apply(third, answer(third))[0].finish_reason is FinishReason.LENGTH
    assert not scheduler.has_work


def test_schedule_ahead_of_an_end_of_sequence_wastes_a_token_and_nothing_else() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, max_tokens=9))
    first = scheduler.schedule(0.0)
    second = scheduler.schedule(0.0)
    assert scheduler.apply(first, answer(first, token=2))[0].finish_reason is FinishReason.STOP
    assert scheduler.apply(second, answer(second)) == []
    scheduler.check_invariants()
    assert scheduler.stats().kv_cache_usage == 0


def test_can_plan_ahead_not_while_a_beam_search_runs() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, best_of=2, use_beam_search=True))
    assert scheduler.can_plan_ahead
    scheduler.schedule(0.0)
    assert not scheduler.can_plan_ahead


def test_schedule_swapped_victim_comes_back_without_computing_anew() -> None:
    scheduler = make_scheduler(num_blocks=5, num_host_blocks=8, block_size=8)
    scheduler.add(request("first", list(range(16)), max_tokens=20))
    scheduler.add(request("second", list(range(50, 66)), max_tokens=20))
    while scheduler.has_work:
        step(scheduler)
    stats = scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.num_swapped_in > 0
    # Only what had not filled a block is computed again.
    assert stats.num_recomputed_tokens < 8 * stats.num_preemptions


def test_schedule_preempted_beams_come_back_together_whatever_the_forecast_says() -> None:
    # Nothing is known of lengths, so that the forecast lets nothing start beside what runs.
    scheduler = make_scheduler(num_blocks=10, block_size=2, max_num_seqs=3, admission="expected")
    scheduler.add(request("beams", [7], max_tokens=8, best_of=2, use_beam_search=True, ignore_eos=True))

    def beam_step() -> None:
        plan = scheduler.schedule(0.0)
        rows = [(5, -1.0), (6, -1.1)]
        count = sum(sequence.num_samples // 2 for sequence in plan.sequences)
        scheduler.apply(plan, StepResult([token for token, _ in rows * count], [lp for _, lp in rows * count]))
        scheduler.check_invariants()

    for _ in range(3):
        beam_step()
    scheduler._policy.preempt(list(scheduler._running))
    for _ in range(20):
        if scheduler.has_work:
            beam_step()
    assert not scheduler.has_work


def test_init_copying_dearer_than_computing_leaves_the_host_tier_out() -> None:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
    sizes: dict[str, Any] = {"num_blocks": 4, "block_size": 16, "max_model_len": 64, "num_host_blocks": 8}
    dear = Scheduler(config, **sizes, swap_seconds_per_block=0.01, prefill_seconds_per_token=0.001)
    cheap = Scheduler(config, **sizes, swap_seconds_per_block=0.001, prefill_seconds_per_token=0.001)
    for scheduler in (dear, cheap):
        for name in "abc":
            scheduler.add(request(name, [ord(name)] * 40, max_tokens=2))
            step(scheduler)
            step(scheduler)
    assert (dear.stats().num_swapped_out, dear.stats().host_cache_usage) == (0, 0)
    assert cheap.stats().num_swapped_out > 0


def test_schedule_priority_takes_a_seat_from_the_least_important() -> None:
    scheduler = make_scheduler(policy="priority", max_num_seqs=2)
    for name, priority in (("low", 5), ("middle", 3)):
        scheduler.add(request(name, [ord(name[0])] * 4, max_tokens=9, priority=priority))
    step(scheduler)
    scheduler.add(request("high", 4, max_tokens=2, priority=0))
    scheduler.add(request("equal", [9] * 4, max_tokens=2, priority=3))
    assert shape(step(scheduler)[0]) == {"middle": 1, "high": 4}
    step(scheduler)
    # Equals do not take each other's seats; the preempted one comes back before a new one of its kind.
    assert shape(step(scheduler)[0]) == {"middle": 1, "equal": 4}


def test_schedule_shortest_first_overtakes_a_long_prompt_under_way() -> None:
    scheduler = make_scheduler(policy="shortest-first")
    scheduler.add(request("long", 900, arrival=0.0))
    step(scheduler)
    scheduler.add(request("short", 10, arrival=0.001))
    assert shape(step(scheduler)[0]) == {"short": 10, "long": 54}


def test_schedule_shortest_first_long_request_waits_no_longer_than_its_bound() -> None:
    scheduler = make_scheduler(policy="shortest-first", max_num_seqs=1)
    scheduler.add(request("long", 200, arrival=0.0, max_tokens=1))
    # A short one that comes every second, for ever; each takes the only seat for one step.
    started = None
    for now in range(1, 60):
        scheduler.add(request(f"short {now}", [now] * 4, arrival=float(now), max_tokens=1))
        plan, _ = step(scheduler)
        if "long" in shape(plan):
            started = now
            break
    work = 201 * 1e-4  # seconds: what the scheduler takes it for, without measurements
    assert started is not None
    assert started <= 1 + AGING * work + 1


def test_schedule_time_slice_ends_when_a_shorter_one_waits() -> None:
    scheduler = make_scheduler(policy="shortest-first", max_num_seqs=1, time_slice_tokens=4)
    scheduler.add(request("endless", 4, max_tokens=500))
    for _ in range(3):
        step(scheduler)
    scheduler.add(request("short", [9, 9], max_tokens=1, arrival=0.0))
    assert shape(step(scheduler)[0]) == {"endless": 1}
    assert shape(step(scheduler)[0]) == {"short": 2}
    assert shape(step(scheduler)[0]) == {"endless": 8}


def test_schedule_slo_chunk_keeps_the_time_between_tokens() -> None:
    scheduler = make_scheduler(policy="slo", target_itl_ms=20.0, max_num_batched_tokens=512)
    scheduler.add(request("decoding", 4, max_tokens=200))
    for number in range(12):
        if number % 3 == 0:
            scheduler.add(request(f"other {number}", [number] * (20 * number + 5), max_tokens=1))
        plan = scheduler.schedule(0.0)
        result = replace(answer(plan), seconds=0.004 + 0.0001 * plan.num_tokens)
        scheduler.apply(plan, result)
    scheduler.add(request("long", [77] * 500, max_tokens=1))
    plan = scheduler.schedule(0.0)
    assert 120 < plan.num_tokens <= 160  # (20 ms - 4 ms) / 0.1 ms


def test_schedule_never_evict_admits_only_what_can_end() -> None:
    scheduler = make_scheduler(num_blocks=8, admission="never-evict")
    for name in "abc":
        scheduler.add(request(name, [ord(name)] * 16, max_tokens=48))
    assert shape(step(scheduler)[0]) == {"a": 16, "b": 16}
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.stats().num_preemptions == 0


def test_schedule_expected_admits_more_than_never_evict_once_it_knows_the_lengths() -> None:
    admitted = {}
    for admission in ("never-evict", "expected"):
        scheduler = make_scheduler(num_blocks=40, admission=admission, max_num_seqs=32)
        for number in range(64):  # answers are short, whatever their max_tokens
            scheduler.add(request(f"teaches {number}", [number, 1], max_tokens=200))
        while scheduler.has_work:
            step(scheduler, token=7 if scheduler.stats().num_waiting % 2 else 2)
        for number in range(32):
            scheduler.add(request(f"r{number}", [number] * 8, max_tokens=200))
        for _ in range(8):
            step(scheduler)
        admitted[admission] = scheduler.stats().num_running
    assert admitted["expected"] >= 2 * admitted["never-evict"]


def test_stats_prediction_is_published_with_what_came_of_it() -> None:
    scheduler = make_scheduler()
    for number in range(60):
        scheduler.add(request(f"r{number}", [number, 1], max_tokens=50))
        for token in (7, 7, 2):
            step(scheduler, token)
    stats = scheduler.stats()
    assert stats.num_predictions == 60
    assert stats.predicted_actual_tokens == 180
    assert stats.predicted_tokens / stats.predicted_actual_tokens < 3  # the first ones knew nothing
    assert stats.num_within_p90 >= 54


def test_resize_shrinks_and_grows_under_load() -> None:
    scheduler = make_scheduler(num_blocks=16, max_num_blocks=24)
    for name in "abcd":
        scheduler.add(request(name, [ord(name)] * 40, max_tokens=8))
    step(scheduler)
    scheduler.resize(4)
    plan, _ = step(scheduler)
    assert plan.num_blocks == 4
    assert scheduler.stats().num_blocks == 4
    assert all(max(sequence.block_table) < 4 for sequence in plan.sequences)
    scheduler.resize(24)
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.stats().num_blocks == 24


@pytest.mark.parametrize("num_blocks", [0, 25])
def test_resize_out_of_bounds_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="can have 1 to 24 blocks"):
        make_scheduler(num_blocks=16, max_num_blocks=24).resize(num_blocks)


def test_resize_below_an_accepted_request_is_refused() -> None:
    scheduler = make_scheduler(num_blocks=16)
    scheduler.add(request("a", 100, max_tokens=28))
    with pytest.raises(ValueError, match="may need 8 blocks"):
        scheduler.resize(7)


def test_apply_violated_invariant_ends_one_request_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler()
    scheduler.add(request("broken", 4, n=2))
    scheduler.add(request("whole", 5))
    plan = scheduler.schedule(0.0)
    # A fork that finds its parent's blocks free is what a fault of ours would look like.
    broken = next(iter(scheduler._running))
    scheduler._running.pool.release(broken.block_table)
    events = scheduler.apply(plan, answer(plan))
    assert [(event.request_id, event.finish_reason) for event in events] == [
        ("whole", None),
        ("broken", FinishReason.ERROR),
        ("broken", FinishReason.ERROR),
    ]
    assert "the server lost track of this request (block 0 is shared but not in use)" in (events[1].error or "")
    scheduler.check_invariants()
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.stats().num_invariant_violations == 1
    assert "request broken was ended" in caplog.text


def test_init_time_slices_without_shortest_first_are_refused() -> None:
    with pytest.raises(ValueError, match="time slices go with the policy shortest-first"):
        make_scheduler(time_slice_tokens=8)


def test_add_waiting_request_keeps_four_bytes_per_prompt_token_and_little_else() -> None:
    prompts = {length: tuple(range(1000, 1000 + length)) for length in (10, 1000)}
    sampling = SamplingParams(temperature=0, seed=0, max_tokens=4)

    def size(length: int) -> float:
        scheduler = make_scheduler()
        tracemalloc.start()
        for number in range(200):
            scheduler.add(Request(f"r{number}", prompts[length], sampling))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return held / 200

    assert size(10) < 4096
    assert size(1000) - size(10) < 4.2 * 990


def test_stats_count_requests_and_their_sequences() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, n=3))
    scheduler.add(request("b", [9, 9]))
    step(scheduler)
    assert (scheduler.stats().num_running, scheduler.stats().num_running_requests) == (4, 2)


def test_schedule_short_request_takes_the_seat_that_another_leaves() -> None:
    # Outputs of 1 and 100 tokens in one batch, and a third of 1: 100 steps, where a static batch would take 101.
    scheduler = make_scheduler(max_num_seqs=2)
    for name, max_tokens in (("a", 1), ("b", 100), ("c", 1)):
        scheduler.add(request(name, [ord(name)] * 4, max_tokens=max_tokens))
    steps = 0
    while scheduler.has_work:
        step(scheduler)
        steps += 1
    assert steps == 100


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_schedule_blocks_are_counted_to_the_token(block_size: int) -> None:
    # 33 tokens in blocks of 16: three, with 15 places over; the 49th token needs a fourth.
    for length in (1, block_size - 1, block_size, block_size + 1, 33, 48, 49):
        scheduler = make_scheduler(block_size=block_size)
        scheduler.add(request("a", length, max_tokens=1))
        plan = scheduler.schedule(0.0)
        assert len(plan.sequences[0].block_table) == -(-length // block_size)
