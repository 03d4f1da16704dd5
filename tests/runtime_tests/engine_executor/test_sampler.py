from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import torch

from octavo_runtime.domain import SamplingParams, ScheduledSequence
from octavo_runtime.engine.sampler import sample_tokens, uniform

DRAWN = SamplingParams(temperature=1.0, seed=0)


def sequence(request_id: str, sampling: SamplingParams = DRAWN, num_generated: int = 0) -> ScheduledSequence:
    return ScheduledSequence(request_id, (1,), 4, (0,), True, num_generated, sampling)


def test_uniform_is_spread_evenly() -> None:
    for numbers in ([uniform(7, n) for n in range(4000)], [uniform(seed, 0) for seed in range(-2000, 2000)]):
        assert all(0 <= number < 1 for number in numbers)
        assert statistics.mean(numbers) == pytest.approx(0.5, abs=0.02)
        assert statistics.pstdev(numbers) == pytest.approx(12**-0.5, abs=0.01)
        # Neighbours have nothing to do with each other.
        assert abs(statistics.correlation(numbers[:-1], numbers[1:])) < 0.05


def test_uniform_is_what_it_was() -> None:
    # A seed must give the same tokens after an upgrade; these are the numbers of the first release.
    assert [uniform(0, 0), uniform(0, 1), uniform(-(2**63), 5)] == [
        0.010341196597583036,
        0.8728139648842976,
        0.9167701544295923,
    ]


def test_sample_tokens_depends_on_seed_and_index_alone() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, seed=s)
        for t, k, p, s in ((0, 0, 1, 1), (1, 0, 1, 2), (0.7, 5, 1, 3), (1.5, 0, 0.8, 4), (1, 40, 0.9, 2), (2, 0, 1, -9))
    ]
    sequences = [sequence(str(n), sampling, n) for n, sampling in enumerate(params)]
    together = sample_tokens(logits, sequences).sampled
    for order in ([5, 3, 1, 0, 2, 4], [2], [4, 1]):
        some = sample_tokens(logits[order], [sequences[n] for n in order]).sampled
        assert some == {str(n): together[str(n)] for n in order}


def test_sample_tokens_moves_with_seed_and_index() -> None:
    logits = torch.zeros(1, 1000)
    tokens = {
        sample_tokens(logits, [sequence("a", replace(DRAWN, seed=seed), index)]).sampled["a"]
        for seed in range(5)
        for index in range(5)
    }
    assert len(tokens) > 20


def test_sample_tokens_not_finite_fails_that_request_alone() -> None:
    logits = torch.zeros(4, 10)
    logits[:, 3] = 5.0
    logits[1, 7] = torch.nan
    logits[2, 7] = torch.inf
    greedy = SamplingParams(temperature=0, seed=0)
    result = sample_tokens(logits, [sequence("a", greedy), sequence("b"), sequence("c", greedy), sequence("d", greedy)])
    assert result.sampled == {"a": 3, "d": 3}
    assert result.failed.keys() == {"b", "c"}
    assert "not finite" in result.failed["b"]


def test_sample_tokens_none() -> None:
    result = sample_tokens(torch.zeros(0, 10), [])
    assert (result.sampled, result.failed) == ({}, {})
