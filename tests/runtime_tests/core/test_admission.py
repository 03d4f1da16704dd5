"""The forecast against a simulation of what it forecasts."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest

from octavo_runtime.core.admission import Forecast
from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.sequence import RequestState, Sequence
from octavo_runtime.domain import Request, SamplingParams

BLOCK = 16


def sequence(prompt: int, generated: int, max_tokens: int, width: int = 1) -> Sequence:
    request = Request("r", (1,) * prompt, SamplingParams(seed=0, max_tokens=max_tokens, n=width))
    state = RequestState.of(request, stops=frozenset(), salt="")
    made = Sequence(0, state, 0, array("i", [1] * (prompt + generated)), max_len=prompt + max_tokens, slots=width)
    state.sequences.append(made)
    return made


def predictor(lengths: list[int]) -> LengthPredictor:
    made = LengthPredictor(4096)
    for length in lengths:
        made.observe(length, is_complete=True)
    made.refresh(())
    return made


def forecast(running: list[Sequence], lengths: list[int], *, used: int | None = None, margin: float = 0.0) -> Forecast:
    now = sum(-(-len(each.token_ids) // BLOCK) for each in running)
    used = now if used is None else used
    return Forecast(running, used=used, predictor=predictor(lengths), block_size=BLOCK, max_len=4096, margin=margin)


def smallest_limit(made: Forecast, candidate: Sequence, cached: int = 0) -> int:
    """The fewest blocks with which the candidate is let in."""
    return next(limit for limit in range(10_000) if made.allows(candidate, cached, limit))


def test_allows_peak_is_that_of_many_simulated_futures() -> None:
    rng = random.Random(0)
    lengths = [max(1, round(rng.lognormvariate(5.0, 0.8))) for _ in range(4000)]
    running = [sequence(rng.randint(10, 300), rng.randint(0, 200), 1500) for _ in range(60)]
    candidate = sequence(100, 0, 1500)
    limit = smallest_limit(forecast(running, lengths), candidate)

    usage = np.zeros(1500)
    futures = 100
    for _ in range(futures):
        for each in (*running, candidate):
            length = rng.choice([x for x in rng.sample(lengths, 60) if x > each.num_generated] or [1500])
            steps = np.arange(min(length, 1500) - each.num_generated)
            usage[: len(steps)] += np.ceil((len(each.token_ids) + steps) / BLOCK)
    assert limit == pytest.approx(usage.max() / futures, rel=0.06)


def test_allows_margin_keeps_more_free() -> None:
    lengths = [10, 1000] * 500
    running = [sequence(16, 0, 1500) for _ in range(20)]
    careless = smallest_limit(forecast(running, lengths), sequence(16, 0, 1500))
    careful = smallest_limit(forecast(running, lengths, margin=3.0), sequence(16, 0, 1500))
    assert careful > 1.2 * careless


def test_allows_nothing_longer_than_max_tokens_is_expected() -> None:
    lengths = [3000] * 500
    assert smallest_limit(forecast([], lengths), sequence(16, 0, 32)) <= 3


def test_allows_forks_share_the_full_blocks_of_the_prompt() -> None:
    lengths = [16] * 500
    alone = smallest_limit(forecast([], lengths), sequence(160, 0, 16))
    four = smallest_limit(forecast([], lengths), sequence(160, 0, 16, width=4))
    assert alone <= 11
    assert four <= 14


def test_allows_what_is_shared_now_is_counted_once() -> None:
    running = [sequence(160, 0, 16) for _ in range(4)]
    lengths = [16] * 500
    unshared = smallest_limit(forecast(running, lengths), sequence(16, 0, 16))
    shared = smallest_limit(forecast(running, lengths, used=10), sequence(16, 0, 16))
    assert unshared - shared == 30


def test_allows_candidate_let_in_counts_for_the_next() -> None:
    made = forecast([], [16] * 500)
    assert made.allows(sequence(160, 0, 16), 0, 12)
    assert not made.allows(sequence(160, 0, 16), 0, 12)


def test_allows_answers_to_one_prompt_vary_together() -> None:
    lengths = [10, 1000] * 500
    apart = [sequence(16, 0, 1500) for _ in range(8)]
    (together,) = [sequence(16, 0, 1500)]
    siblings = [Sequence(n, together.request, n, array("i", [1] * 16), max_len=1516) for n in range(8)]
    together.request.sequences[:] = siblings
    candidate = sequence(16, 0, 1500)
    assert smallest_limit(forecast(siblings, lengths, margin=2.0), candidate) > 1.2 * smallest_limit(
        forecast(apart, lengths, margin=2.0), candidate
    )
