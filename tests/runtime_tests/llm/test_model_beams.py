"""Beam search and parallel sampling on a real model: with transformers' beams, whatever the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo_runtime import LLM, SamplingParams

PROMPTS = ("The capital of France is", "Once upon a time there was a small", "def fibonacci(n):")
MAX_TOKENS = 12
CASES: tuple[dict[str, Any], ...] = (
    {"width": 4, "length_penalty": 1.0, "early_stopping": False},
    {"width": 3, "length_penalty": 0.0, "early_stopping": "never"},
    {"width": 2, "length_penalty": 2.0, "early_stopping": True},
)
# 14 blocks of 8 tokens: the searches run side by side and take them from each other.
TIGHT: dict[str, Any] = {
    "block_size": 8,
    "kv_cache_memory": 5 << 20,
    "admission_policy": "max-utilization",
    "check_invariants": True,
}


@pytest.mark.model
@pytest.mark.timeout(180)  # two models in one process, with others on the machine
def test_beams_equal_transformers_on_a_real_model(smollm2: Path) -> None:
    llm = LLM(smollm2, **TIGHT)
    params = [
        SamplingParams(
            n=case["width"],
            use_beam_search=True,
            max_tokens=MAX_TOKENS,
            length_penalty=case["length_penalty"],
            early_stopping=case["early_stopping"],
        )
        for case in CASES
    ]
    outputs = llm.generate(list(PROMPTS), params)
    assert llm._core._scheduler.stats().num_preemptions > 0

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for prompt, case, output in zip(PROMPTS, CASES, outputs, strict=True):
        tokens = tokenizer(prompt, return_tensors="pt")
        assert tuple(tokens["input_ids"][0].tolist()) == output.prompt_token_ids
        with torch.inference_mode():
            result = model.generate(
                **tokens,
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                num_beams=case["width"],
                num_return_sequences=case["width"],
                length_penalty=case["length_penalty"],
                early_stopping=case["early_stopping"],
                return_dict_in_generate=True,
                output_scores=True,
            )
        lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
        rows = result.sequences[:, len(output.prompt_token_ids) :].tolist()
        expected = [tuple(row[:length]) for row, length in zip(rows, lengths, strict=True)]
        assert [answer.token_ids for answer in output.outputs] == expected, (prompt, case)


@pytest.mark.model
@pytest.mark.timeout(120)
def test_answers_are_the_same_side_by_side_and_alone(smollm2: Path) -> None:
    llm = LLM(smollm2, kv_cache_memory=16 << 20)
    params = SamplingParams(n=4, temperature=0.8, seed=7, max_tokens=8)
    together = llm.generate([PROMPTS[0], PROMPTS[1], PROMPTS[0]], params)
    (alone,) = llm.generate(PROMPTS[0], params)
    texts = [answer.text for answer in alone.outputs]
    assert [answer.text for answer in together[0].outputs] == texts
    assert [answer.text for answer in together[2].outputs] == texts
    assert len(set(texts)) > 1, "each answer has a draw of its own"
