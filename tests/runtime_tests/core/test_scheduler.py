"""The scheduler's rules, one by one; the oracle tests hold them together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import Event, FinishReason, Request, SamplingParams, StepPlan, StepResult
from octavo_runtime.errors import InvalidRequest


def make_scheduler(**settings: int | bool | tuple[int, ...]) -> Scheduler:
    defaults: dict[str, int | bool | tuple[int, ...]] = {
        "num_blocks": 64,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 1024,
        "eos_token_ids": (2,),
    }
    return Scheduler(**{**defaults, **settings})  # type: ignore[arg-type]  # each name has its own type


def request(name: str, prompt: int | Sequence[int], max_tokens: int = 4, **sampling: object) -> Request:
    tokens = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(temperature=0, seed=0, max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]  # tests pass fields by name
    return Request(request_id=name, prompt_token_ids=tokens, sampling=params)


def step(scheduler: Scheduler, token: int = 7) -> tuple[StepPlan, list[Event]]:
    plan = scheduler.schedule()
    sampled = {s.request_id: token for s in plan.sequences if s.samples}
    events = scheduler.apply(plan, StepResult(sampled=sampled, failed={}))
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
    assert scheduler.schedule().sequences == ()


def test_schedule_long_prompt_is_computed_in_chunks() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("a", 150))
    plans = [step(scheduler)[0] for _ in range(3)]
    assert [shape(plan) for plan in plans] == [{"a": 64}, {"a": 64}, {"a": 22}]
    assert [plan.sequences[0].samples for plan in plans] == [False, False, True]
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


def test_schedule_pool_exhausted_preempts_the_last_admitted_and_brings_it_back_first() -> None:
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
        one = request(name, 32, max_tokens=1)
        scheduler.add(Request(one.request_id, one.prompt_token_ids, one.sampling, cache_salt=name))
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
    plan = scheduler.schedule()
    events = scheduler.apply(plan, StepResult(sampled={"b": 7}, failed={"a": "the logits are not finite"}))
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
    plan = scheduler.schedule()
    scheduler.abort("a")
    assert scheduler.apply(plan, StepResult(sampled={"a": 7}, failed={})) == []
    scheduler.check_invariants()


def test_abort_unknown_request_is_ignored() -> None:
    make_scheduler().abort("nobody")
