"""Beam search against a slow oracle on random tables, and against transformers on a small model."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_runtime.core.beams import BeamSearch, BeamStep, Hypothesis
from octavo_runtime.domain import FinishReason

Early: TypeAlias = bool | Literal["never"]
Output: TypeAlias = tuple[int, ...]
Row: TypeAlias = Callable[[Output], list[float]]  # output so far -> log-probability of each next token

EARLY: tuple[Early, ...] = (True, False, "never")


def search(rows: Callable[[list[Output]], list[list[float]]], beams: BeamSearch, width: int) -> list[Hypothesis]:
    """Runs a search as the scheduler does: it knows of each beam its best candidates only."""
    outputs: list[Output] = [()]
    while outputs:
        step = beams.step([best(row, beams.num_candidates) for row in rows(outputs)], outputs)
        outputs = [(*outputs[parent], token) for parent, token in zip(step.parents, step.tokens, strict=True)]
        assert len(outputs) in {0, width}
    return beams.results(width)


def best(logprobs: list[float], count: int) -> list[tuple[int, float]]:
    ranked = sorted(enumerate(logprobs), key=lambda candidate: -candidate[1])
    return ranked[:count]


def oracle(
    row: Row, width: int, max_tokens: int, stops: frozenset[int], penalty: float, early: Early
) -> list[tuple[tuple[int, ...], float]]:
    """The rules word for word, over the whole vocabulary and all hypotheses that ever finished."""
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, max_tokens + 1):
        every = [((*o, token), score + p) for o, score in running for token, p in enumerate(row(o))]
        every.sort(key=lambda extension: extension[1], reverse=True)
        ends = [e for e in every[:width] if e[0][-1] in stops or length == max_tokens]
        finished += [(output, score / length**penalty) for output, score in ends]
        finished.sort(key=lambda hypothesis: hypothesis[1], reverse=True)
        running = [e for e in every if e[0][-1] not in stops][:width]
        if len(finished) < width:
            continue
        longest = max_tokens if early == "never" and penalty > 0 else length
        if early is True or running[0][1] / longest**penalty <= finished[width - 1][1]:
            break
    return finished[:width]


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    width=st.integers(2, 6),
    max_tokens=st.integers(1, 9),
    num_stops=st.integers(0, 3),
    penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
    early=st.sampled_from(EARLY),
    spread=st.sampled_from([0.5, 2.0, 6.0]),
)
def test_search_equals_the_oracle_on_random_tables(
    seed: int, width: int, max_tokens: int, num_stops: int, penalty: float, early: Early, spread: float
) -> None:
    vocab = 12

    @cache
    def row(output: tuple[int, ...]) -> list[float]:
        draw = random.Random(f"{seed} {output}")
        return log_softmax([draw.gauss(0, spread) for _ in range(vocab)])

    stops = frozenset(random.Random(seed).sample(range(vocab), num_stops))
    beams = BeamSearch(width, max_tokens=max_tokens, stop_token_ids=stops, length_penalty=penalty, early_stopping=early)
    found = search(lambda outputs: [row(output) for output in outputs], beams, width)
    expected = oracle(row, width, max_tokens, stops, penalty, early)
    assert [hypothesis.token_ids for hypothesis in found] == [output for output, _ in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected])


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


# --- transformers

VOCAB = 64
MAX_TOKENS = 12
PROMPTS = ([5], [9, 33, 2, 14], [60, 1, 1, 7, 22, 40, 3])
STOPS = ([2], [11, 40], [3, 17, 50])
CASES = [
    (*case, number) for number, case in enumerate(itertools.product((2, 3, 4, 6), (0.0, 0.6, 1.0, 2.0, -1.0), EARLY))
]


@cache
def small_llama(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,  # peaked enough that beams differ and end at different lengths
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def model_rows(seed: int, prompt: list[int]) -> Callable[[list[Output]], list[list[float]]]:
    def rows(outputs: list[Output]) -> list[list[float]]:
        with torch.inference_mode():
            logits = small_llama(seed)(torch.tensor([[*prompt, *output] for output in outputs])).logits[:, -1]
        values: list[list[float]] = logits.log_softmax(-1).tolist()
        return values

    return rows


@pytest.mark.parametrize(("width", "penalty", "early", "number"), CASES)
def test_search_equals_transformers(width: int, penalty: float, early: Early, number: int) -> None:
    seed = number % 4
    prompt, stops = PROMPTS[number % 3], STOPS[number // 3 % 3]
    beams = BeamSearch(
        width,
        max_tokens=MAX_TOKENS,
        stop_token_ids=frozenset(stops),
        length_penalty=penalty,
        early_stopping=early,
    )
    found = search(model_rows(seed, prompt), beams, width)
    expected = transformers_beams(
        seed, prompt, num_beams=width, length_penalty=penalty, early_stopping=early, eos_token_id=stops
    )
    near = [pytest.approx(score, abs=1e-5, rel=1e-5) for _, score in expected]
    assert [hypothesis.score for hypothesis in found] == near
    for hypothesis, (_, score) in zip(found, expected, strict=True):
        # Of two that are as good as each other either may come first.
        twins = [other for other, value in expected if value == pytest.approx(score, abs=1e-5, rel=1e-5)]
        assert list(hypothesis.token_ids) in twins
        ended = hypothesis.token_ids[-1] in stops
        assert hypothesis.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert hypothesis.stop_token_id == (hypothesis.token_ids[-1] if ended else None)


def transformers_beams(seed: int, prompt: list[int], **settings_: Any) -> list[tuple[list[int], float]]:
    """Output tokens and scores, best first."""
    with torch.inference_mode():
        result = small_llama(seed).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            num_return_sequences=settings_["num_beams"],
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **settings_,
        )
    # A short hypothesis is padded; its length is where transformers has chosen a beam for it.
    lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
    rows = result.sequences[:, len(prompt) :].tolist()
    outputs = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    return list(zip(outputs, result.sequences_scores.tolist(), strict=True))


def test_cases_end_in_different_ways() -> None:
    lengths: set[int] = set()
    for seed, prompt, stops in itertools.product((0, 1), PROMPTS, STOPS):
        beams = BeamSearch(
            3, max_tokens=MAX_TOKENS, stop_token_ids=frozenset(stops), length_penalty=1, early_stopping=True
        )
        lengths |= {len(hypothesis.token_ids) for hypothesis in search(model_rows(seed, prompt), beams, 3)}
    assert len(lengths) > 4
    assert MAX_TOKENS in lengths


# --- single rules


def beam_search(width: int = 2, **changes: Any) -> BeamSearch:
    defaults: dict[str, Any] = {
        "max_tokens": 5,
        "stop_token_ids": frozenset({9}),
        "length_penalty": 1.0,
        "early_stopping": False,
    }
    return BeamSearch(width, **(defaults | changes))


def test_step_first_takes_the_best_tokens_of_the_prompt() -> None:
    beams = beam_search()
    assert beams.num_candidates == 3
    assert beams.step([[(4, -0.1), (9, -3.0), (7, -4.0)]], [()]) == BeamStep(parents=(0, 0), tokens=(4, 7))


def test_step_a_stop_token_below_the_width_best_does_not_finish() -> None:
    beams = beam_search(early_stopping=True)
    beams.step([[(4, -0.1), (7, -2.0), (9, -3.0)]], [()])
    assert beams.results(2) == []


def test_step_a_beam_may_die_and_another_fork() -> None:
    beams = beam_search()
    beams.step([[(4, -0.1), (7, -5.0), (9, -9.0)]], [()])
    step = beams.step([[(1, -0.7), (2, -0.8), (3, -3.0)], [(1, -0.1), (2, -3.0), (3, -4.0)]], [(4,), (7,)])
    assert step == BeamStep(parents=(0, 0), tokens=(1, 2))


def test_step_max_tokens_ends_with_length_unless_the_last_token_stops() -> None:
    beams = beam_search(max_tokens=1)
    assert beams.step([[(4, -0.5), (9, -1.0), (7, -4.0)]], [()]) == BeamStep((), ())
    assert beams.results(2) == [
        Hypothesis((4,), -0.5, FinishReason.LENGTH, None),
        Hypothesis((9,), -1.0, FinishReason.STOP, 9),
    ]


def test_step_never_with_a_negative_penalty_counts_the_present_length() -> None:
    beams = beam_search(length_penalty=-1.0, early_stopping="never")
    beams.step([[(9, -1.0), (4, -1.1), (5, -1.2)]], [()])
    # Worst finished: -1.6 * 2. The best that goes on would have -1.2 * 2 now, though -1.2 * 5 in the end.
    step = beams.step([[(5, -0.1), (9, -0.5), (6, -2.0)], [(7, -2.0), (6, -3.0), (5, -4.0)]], [(4,), (5,)])
    assert step.tokens == (5, 6)


def test_step_only_the_width_best_finished_count() -> None:
    beams = beam_search(length_penalty=0.0)
    beams.step([[(9, -1.0), (4, -1.1), (5, -1.2)]], [()])
    step = beams.step([[(5, -0.1), (9, -0.5), (6, -0.6)], [(7, -2.0), (6, -3.0), (5, -4.0)]], [(4,), (5,)])
    assert step.tokens == (5, 6), "-1.2 beats -1.6, the second best of the finished"
    step = beams.step([[(9, -0.1), (6, -0.3), (5, -4.0)], [(7, -2.0), (6, -3.0), (5, -4.0)]], [(4, 5), (4, 6)])
    assert step == BeamStep((), ()), "-1.5 does not beat -1.3, which is the second best now"
    assert [hypothesis.token_ids for hypothesis in beams.results(2)] == [(9,), (4, 5, 9)]


@pytest.mark.parametrize("penalty", [1e6, -1e6, 1e308, -1e308])
def test_step_absurd_length_penalty_overflows_nothing(penalty: float) -> None:
    beams = beam_search(max_tokens=3, length_penalty=penalty, early_stopping="never")
    row = log_softmax([float(token) for token in range(10)])
    found = search(lambda outputs: [row for _ in outputs], beams, 2)
    assert len(found) == 2
    assert not any(math.isnan(hypothesis.score) for hypothesis in found)
