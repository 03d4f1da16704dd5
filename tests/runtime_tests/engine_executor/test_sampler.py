from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo_kernels.native import Context
from octavo_kernels.native.arrays import from_tensor
from octavo_kernels.sampling.native import NativeSampling
from octavo_runtime.domain import SamplingParams, ScheduledSequence, StepResult
from octavo_runtime.engine import sampler
from octavo_runtime.engine.sampler import uniform
from octavo_runtime.engine.torch_sampling import TorchSampling

SampleTokens = Callable[[torch.Tensor, Sequence[ScheduledSequence]], StepResult]

DRAWN = SamplingParams(temperature=1.0, seed=0)
GREEDY = SamplingParams(temperature=0, seed=0)


@pytest.fixture(params=["torch", "native"])
def sample_tokens(request: pytest.FixtureRequest) -> SampleTokens:
    """`sampler.sample_tokens` with each form."""
    if request.param == "torch":
        return lambda logits, sequences: sampler.sample_tokens(logits, sequences, TorchSampling())
    form = NativeSampling(Context(2))
    return lambda logits, sequences: sampler.sample_tokens(from_tensor(logits), sequences, form)


def sequence(sampling: SamplingParams = DRAWN, num_generated: int = 0, **fields: Any) -> ScheduledSequence:
    plain = ScheduledSequence("a", 0, (1,), 4, (0,), 1, num_generated, sampling)
    return plain._replace(**fields)


def beams(width: int, count: int) -> ScheduledSequence:
    return sequence(SamplingParams(n=width, use_beam_search=True, seed=0), num_samples=count)


def log_softmax(row: torch.Tensor) -> list[float]:
    """Another truth, in float64 and by hand."""
    wide = row.double()
    shares: list[float] = (wide - (wide - wide.max()).exp().sum().log() - wide.max()).tolist()
    return shares


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


def test_uniform_of_further_answers_is_their_own() -> None:
    draws = [[uniform(seed, index, choice) for choice in range(4)] for seed in range(200) for index in range(5)]
    assert [row[0] for row in draws] == [uniform(seed, index) for seed in range(200) for index in range(5)]
    assert len({number for row in draws for number in row}) == 4 * len(draws)
    columns = list(zip(*draws, strict=True))
    for first in range(4):
        assert statistics.mean(columns[first]) == pytest.approx(0.5, abs=0.03)
        for second in range(first):
            assert abs(statistics.correlation(columns[first], columns[second])) < 0.08


def test_sample_tokens_depends_on_seed_and_index_alone(sample_tokens: SampleTokens) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, seed=s)
        for t, k, p, s in ((0, 0, 1, 1), (1, 0, 1, 2), (0.7, 5, 1, 3), (1.5, 0, 0.8, 4), (1, 40, 0.9, 2), (2, 0, 1, -9))
    ]
    sequences = [sequence(sampling, n) for n, sampling in enumerate(params)]
    together = sample_tokens(logits, sequences).tokens
    for order in ([5, 3, 1, 0, 2, 4], [2], [4, 1]):
        some = sample_tokens(logits[order], [sequences[n] for n in order]).tokens
        assert list(some) == [together[n] for n in order]


def test_sample_tokens_moves_with_seed_and_index(sample_tokens: SampleTokens) -> None:
    logits = torch.zeros(1, 1000)
    tokens = {
        sample_tokens(logits, [sequence(replace(DRAWN, seed=seed), index)]).tokens[0]
        for seed in range(5)
        for index in range(5)
    }
    assert len(tokens) > 20


def test_sample_tokens_several_from_one_row_as_each_alone(sample_tokens: SampleTokens) -> None:
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(2))
    sampling = SamplingParams(seed=5, top_p=0.95, n=4)
    plan = [
        sequence(GREEDY),
        sequence(sampling, 7, num_samples=0),  # in the midst of its prompt: it has no row
        sequence(sampling, 0, num_samples=4),
        sequence(DRAWN, 3),
    ]
    result = sample_tokens(logits, plan)
    assert len(result.tokens) == 1 + 4 + 1
    assert result.logprobs == ()
    alone = [sample_tokens(logits[1:2], [sequence(sampling, 0, choice=choice)]).tokens[0] for choice in range(4)]
    assert list(result.tokens[1:5]) == alone
    assert len(set(alone)) > 1
    assert alone[0] == sample_tokens(logits[1:2], [sequence(replace(sampling, n=1), 0)]).tokens[0], "as without n"
    assert result.tokens[0] == int(logits[0].argmax())
    assert result.tokens[5] == sample_tokens(logits[2:], [sequence(DRAWN, 3)]).tokens[0]


def test_sample_tokens_draws_go_on_from_the_choice(sample_tokens: SampleTokens) -> None:
    logits = torch.zeros(1, 1000)
    sampling = SamplingParams(seed=1, n=6)
    all_six = sample_tokens(logits, [sequence(sampling, num_samples=6)]).tokens
    last_two = sample_tokens(logits, [sequence(sampling, num_samples=2, choice=4)]).tokens
    assert list(all_six[4:]) == list(last_two)


def test_sample_tokens_logprobs_where_any_sequence_needs_them(sample_tokens: SampleTokens) -> None:
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(3)) * 3
    ranked = SamplingParams(temperature=0.7, top_k=5, seed=2, n=1, best_of=3)
    result = sample_tokens(logits, [sequence(), sequence(ranked, num_samples=3)])
    assert len(result.logprobs) == len(result.tokens) == 4
    truth = [log_softmax(logits[0])[result.tokens[0]], *(log_softmax(logits[1])[t] for t in result.tokens[1:])]
    assert list(result.logprobs) == pytest.approx(truth, abs=1e-5), "of the logits as they are, not of what was kept"
    assert sample_tokens(logits[:1], [sequence(), sequence(ranked, num_samples=0)]).logprobs == ()


def test_sample_tokens_beam_candidates_are_the_best_in_order(sample_tokens: SampleTokens) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(4))
    logits[1, 6] = logits[1, 30] = logits[1].max() + 1
    result = sample_tokens(logits, [beams(2, 4), beams(2, 3), sequence(GREEDY)])
    assert len(result.tokens) == len(result.logprobs) == 8
    for row, found in ((0, slice(0, 4)), (1, slice(4, 7))):
        truth = log_softmax(logits[row])
        best = sorted(range(40), key=lambda token: (-truth[token], token))[: found.stop - found.start]
        assert list(result.tokens[found]) == best
        assert list(result.logprobs[found]) == pytest.approx([truth[token] for token in best], abs=1e-5)
    assert list(result.tokens[4:6]) == [6, 30], "of equals the lower id first"
    assert result.tokens[7] == int(logits[2].argmax())


def test_sample_tokens_more_candidates_than_tokens(sample_tokens: SampleTokens) -> None:
    result = sample_tokens(torch.tensor([[0.0, 1.0, 2.0]]), [beams(3, 6)])
    assert list(result.tokens[:3]) == [2, 1, 0]
    assert len(result.tokens) == len(result.logprobs) == 6
    assert max(result.logprobs[3:]) < -1e6


def test_sample_tokens_not_finite_fails_that_sequence_alone(sample_tokens: SampleTokens) -> None:
    logits = torch.zeros(6, 10)
    logits[:, 3] = 5.0
    logits[1, 7] = torch.nan
    logits[2, 7] = torch.inf
    logits[4] = torch.nan
    several = SamplingParams(seed=0, n=3, temperature=0.1)
    plan = [
        sequence(GREEDY),
        sequence(num_samples=0),
        sequence(),
        sequence(GREEDY),
        sequence(several, num_samples=3),
        beams(2, 4),
        beams(2, 2),
    ]
    result = sample_tokens(logits, plan)
    assert result.failed.keys() == {2, 3, 5}
    assert all("not finite" in why for why in result.failed.values())
    assert len(result.tokens) == len(result.logprobs) == 1 + 1 + 1 + 3 + 4 + 2
    assert all(0 <= token < 10 for token in result.tokens), "an executor may feed them"
    assert all(math.isfinite(logprob) for logprob in result.logprobs)
    assert [result.tokens[place] for place in (0, 3, 4, 5, 10)] == [3, 3, 3, 3, 3]


def test_sample_tokens_none(sample_tokens: SampleTokens) -> None:
    assert sample_tokens(torch.zeros(0, 10), []) == StepResult()
    assert sample_tokens(torch.zeros(0, 10), [sequence(num_samples=0)]) == StepResult()
