"""The door: what fits is completed, what does not is refused with both numbers."""

from dataclasses import replace
from typing import Any

import pytest

from octavo_runtime.domain import EngineInfo, Request, SamplingParams, SchedulerConfig
from octavo_runtime.errors import InvalidRequest
from octavo_runtime.text.admission import admit

INFO = EngineInfo(
    max_model_len=32,
    vocab_size=100,
    eos_token_ids=(2,),
    num_blocks=10,
    block_size=16,
    device="cpu",
    dtype="float32",
    kv_cache_dtype="float32",
)


CONFIG = SchedulerConfig(max_num_seqs=4)


def door(
    prompt: list[int],
    info: EngineInfo = INFO,
    *,
    config: SchedulerConfig = CONFIG,
    priority: int = 0,
    cache_salt: str = "",
    **sampling: Any,
) -> Request:
    params = SamplingParams(**sampling)
    return admit("r", prompt, params, info, config, arrival=1.0, cache_salt=cache_salt, priority=priority)


def test_admit_default_length_is_what_is_left() -> None:
    assert door([1] * 30, max_tokens=None).sampling.max_tokens == 2


def test_admit_exactly_what_is_left() -> None:
    assert door([1] * 30, max_tokens=2).sampling.max_tokens == 2


def test_admit_draws_a_seed_and_keeps_a_given_one() -> None:
    seeds = {door([1]).sampling.seed for _ in range(5)}
    assert len(seeds) == 5
    assert None not in seeds
    assert door([1], seed=-7).sampling.seed == -7


@pytest.mark.parametrize(
    ("prompt", "sampling", "said", "param", "code"),
    [
        ([], {}, "empty", "prompt", None),
        ([1, 100], {}, "token id 100; .* 0 to 99", "prompt", None),
        ([-1], {}, "token id -1", "prompt", None),
        ([10**30], {}, "token id 1000000", "prompt", None),
        ([1], {"stop_token_ids": (5, 7777)}, "token id 7777", "stop_token_ids", None),
        ([1] * 32, {}, "32 tokens; .* fewer than 32", "prompt", "context_length_exceeded"),
        (
            [1] * 30,
            {"max_tokens": 3},
            "30 tokens and max_tokens is 3, .* 32 .* at most 2",
            "max_tokens",
            "context_length_exceeded",
        ),
    ],
)
def test_admit_refuses(prompt: list[int], sampling: dict[str, Any], said: str, param: str, code: str | None) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        door(prompt, **sampling)
    assert (caught.value.param, caught.value.code, caught.value.status) == (param, code, 400)


def test_admit_refuses_what_the_pool_cannot_hold() -> None:
    small = EngineInfo(32, 100, (2,), num_blocks=1, block_size=16, device="cpu", dtype="", kv_cache_dtype="")
    assert door([1] * 15, small, max_tokens=None).sampling.max_tokens == 1
    with pytest.raises(InvalidRequest, match="fewer than 16"):
        door([1] * 16, small)


def test_admit_refuses_more_sequences_than_run_at_once() -> None:
    assert door([1], n=4).sampling.n == 4
    with pytest.raises(InvalidRequest, match=r"n asks for 5 sequences; this server runs 4") as caught:
        door([1], n=5)
    assert caught.value.param == "n"
    with pytest.raises(InvalidRequest, match="best_of asks for 9") as caught:
        door([1], n=2, best_of=9)
    assert caught.value.param == "best_of"


@pytest.mark.parametrize("kind", [{"n": 4}, {"best_of": 4}, {"best_of": 4, "use_beam_search": True}])
def test_admit_counts_the_blocks_of_all_sequences(kind: dict[str, Any]) -> None:
    # 20 tokens: a block in common, then 4 tokens and the output in blocks of each: 1 + 4 * 2 of 10.
    assert door([1] * 20, **kind, max_tokens=12).sampling.max_tokens == 12
    pool = replace(INFO, num_blocks=8)
    assert door([1] * 16, pool, n=4, max_tokens=16).sampling.n == 4
    said = "4 sequences with a prompt of 20 tokens and max_tokens 13 may come to need 9 KV blocks; this server has 8"
    with pytest.raises(InvalidRequest, match=rf"{said}.* at most 12 tokens") as caught:
        door([1] * 20, replace(pool, max_model_len=64), **kind, max_tokens=13)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


def test_admit_default_length_is_what_all_sequences_can_have() -> None:
    pool = replace(INFO, max_model_len=160)
    assert door([1] * 20, pool, max_tokens=None).sampling.max_tokens == 140
    assert door([1] * 20, pool, n=2, max_tokens=None).sampling.max_tokens == 4 * 16 - 4


def test_admit_refuses_sequences_that_cannot_even_begin() -> None:
    with pytest.raises(InvalidRequest, match=r"need 5 KV blocks; this server has 4\. Ask for fewer sequences\.$"):
        door([1] * 17, replace(INFO, num_blocks=4), n=4, max_tokens=None)


def test_admit_refuses_beams_that_need_more_candidates_than_tokens() -> None:
    tiny = replace(INFO, vocab_size=6)
    assert door([1], tiny, best_of=4, use_beam_search=True, stop_token_ids=(3,)).sampling.width == 4
    with pytest.raises(InvalidRequest, match="4 beams need 7 candidates a step; this model has 6 tokens"):
        door([1], tiny, best_of=4, use_beam_search=True, stop_token_ids=(3, 4))
    with pytest.raises(InvalidRequest, match="holds 65 ids; beam search takes at most 64") as caught:
        door([1], best_of=2, use_beam_search=True, stop_token_ids=tuple(range(65)))
    assert caught.value.param == "stop_token_ids"
    assert len(door([1], stop_token_ids=tuple(range(65))).sampling.stop_token_ids) == 65


def test_admit_priority_only_where_it_has_a_meaning() -> None:
    by_priority = SchedulerConfig(policy="priority")
    assert door([1], config=by_priority, priority=-3).priority == -3
    assert door([1]).priority == 0
    with pytest.raises(InvalidRequest, match=r"schedules by fcfs.*--scheduling-policy priority") as caught:
        door([1], priority=1)
    assert caught.value.param == "priority"
    with pytest.raises(InvalidRequest, match="64-bit"):
        door([1], config=by_priority, priority=2**63)


def test_admit_keeps_the_salt() -> None:
    assert door([1], cache_salt="tenant").cache_salt == "tenant"
    assert not door([1]).cache_salt


def test_admit_bounds_top_k_by_the_vocabulary() -> None:
    assert door([1], top_k=10**30).sampling.top_k == 100
    assert door([1], top_k=7).sampling.top_k == 7
