"""The step-time model against steps whose law is known."""

from __future__ import annotations

import random

import pytest

from octavo_runtime.core.step_time import StepTimeModel


def law(tokens: int, context: int) -> float:
    return 0.004 + 0.00002 * tokens + 0.00000004 * context


def fitted(count: int = 400, noise: float = 0.05) -> StepTimeModel:
    model, rng = StepTimeModel(), random.Random(1)
    for _ in range(count):
        tokens, context = rng.choice([rng.randint(1, 64), rng.randint(64, 2048)]), rng.randint(0, 60_000)
        model.observe(tokens, context, law(tokens, context) * rng.gauss(1, noise))
    return model


def test_seconds_after_noisy_steps_is_near_the_law() -> None:
    model = fitted()
    for tokens, context in ((16, 10_000), (512, 30_000), (2048, 0)):
        assert model.seconds(tokens, context) == pytest.approx(law(tokens, context), rel=0.1)


def test_tokens_within_keeps_the_time() -> None:
    model = fitted(noise=0.0)
    tokens = model.tokens_within(0.02, 20_000)
    assert law(tokens, 20_000) <= 0.0201
    assert law(tokens + 20, 20_000) > 0.0199
    assert model.tokens_within(0.001, 20_000) == 0


def test_observe_steps_all_alike_stay_finite() -> None:
    model = StepTimeModel()
    for _ in range(20_000):
        model.observe(8, 4096, 0.005)
    assert model.seconds(8, 4096) == pytest.approx(0.005, rel=0.01)


def test_is_fitted_only_after_some_steps() -> None:
    model = StepTimeModel()
    assert not model.is_fitted
    for _ in range(8):
        model.observe(8, 0, 0.004)
    assert model.is_fitted
