"""The pinned workloads do not move: a digest of each, and what their description says."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import WORKLOADS, workload

DIGESTS = {
    "sharegpt-like": "142ac111b217b238",
    "alpaca-like": "7d30a789db8fd161",
    "bimodal": "07f4085635359c59",
    "shared-prefix-1": "22bbcdb22b519617",
    "shared-prefix-5": "63693bc74d8c05f2",
    "memory-pressure": "fe37308d0a9b2b19",
    "nano": "4fa46cbcf4b5ccc8",
}


def test_every_workload_is_pinned() -> None:
    assert DIGESTS.keys() == WORKLOADS.keys()


@pytest.mark.parametrize("name", DIGESTS)
def test_workload_is_what_it_was(name: str) -> None:
    assert workload(name).digest() == DIGESTS[name]


@pytest.mark.parametrize(("name", "prompts", "outputs"), [("sharegpt-like", 161.3, 338.0), ("alpaca-like", 19.3, 58.5)])
def test_workload_has_the_papers_means(name: str, prompts: float, outputs: float) -> None:
    drawn = workload(name)
    assert drawn.prompts.mean() == pytest.approx(prompts, rel=0.06)
    assert drawn.outputs.mean() == pytest.approx(outputs, rel=0.06)


def test_bimodal_is_short_or_long_in_both() -> None:
    drawn = workload("bimodal")
    short = np.array([label == "short" for label in drawn.labels])
    assert 0.88 < short.mean() < 0.92
    assert (drawn.prompts[short].min(), drawn.prompts[short].max()) == (16, 128)
    assert drawn.prompts[~short].min() >= 2000
    assert drawn.outputs[~short].min() >= 128


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    requests = workload("shared-prefix-5").requests(max_model_len=2048)
    prompts = [replay.request.prompt_token_ids for replay in requests]
    assert len({prompt[:341] for prompt in prompts}) == 20
    assert len({prompt[:342] for prompt in prompts}) == 2000


def test_requests_fit_the_model_and_leave_the_length_open() -> None:
    for replay in workload("sharegpt-like").requests(max_model_len=2048):
        prompt, sampling = len(replay.request.prompt_token_ids), replay.request.sampling
        assert prompt + (sampling.max_tokens or 0) == 2048
        assert 1 <= replay.output_lengths[0] <= 2048 - prompt


def test_requests_of_nano_end_by_their_length() -> None:
    replay = workload("nano").requests(max_model_len=2048)[3]
    assert replay.request.sampling.ignore_eos
    assert replay.request.sampling.max_tokens == replay.output_lengths[0]


def test_requests_come_at_the_rate() -> None:
    requests = workload("alpaca-like").requests(max_model_len=2048, rate=10.0)
    arrivals = [replay.request.arrival for replay in requests]
    assert arrivals == sorted(arrivals)
    assert len(arrivals) / arrivals[-1] == pytest.approx(10, rel=0.05)


def test_requests_of_several_answers() -> None:
    equal = workload("alpaca-like").requests(max_model_len=2048, count=50, n=3)
    other = workload("alpaca-like").requests(max_model_len=2048, count=50, n=3, equal_lengths=False)
    assert all(len(set(replay.output_lengths)) == 1 for replay in equal)
    assert [replay.output_lengths[0] for replay in other] == [replay.output_lengths[0] for replay in equal]
    assert any(len(set(replay.output_lengths)) > 1 for replay in other)
