"""The door: what fits is completed, what does not is refused with both numbers."""

from typing import Any

import pytest

from octavo_runtime.domain import EngineInfo, Request, SamplingParams
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


def door(prompt: list[int], info: EngineInfo = INFO, **sampling: Any) -> Request:
    return admit("r", prompt, SamplingParams(**sampling), info, arrival=1.0)


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
