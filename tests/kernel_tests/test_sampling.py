from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from octavo_kernels.native import Context
from octavo_kernels.native.operations import Sampling
from octavo_kernels.sampling import NOT_FINITE, cpu, reference
from octavo_kernels.sampling.penalties import Penalties

ISAS = ("avx512", "avx2")  # there is nothing in it for VNNI


@pytest.fixture
def form_of(require_isa: Callable[[str], str]) -> Callable[[str], Any]:
    """A form by its name, or by that of an instruction set."""
    plain = {"reference": reference, "cpu": cpu}
    return lambda name: plain.get(name) or Sampling(Context(2, require_isa(name)))


@pytest.fixture(params=["reference", "cpu", *ISAS])
def form(request: pytest.FixtureRequest, form_of: Callable[[str], Any]) -> Any:
    return form_of(request.param)


@pytest.fixture(params=["cpu", *ISAS])
def fast(request: pytest.FixtureRequest, form_of: Callable[[str], Any]) -> Any:
    """A form that is held to the reference."""
    return form_of(request.param)


def call(
    form: Any,
    logits: torch.Tensor,
    uniform: list[float],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[int]:
    rows = len(uniform)
    tokens: list[int] = form.sample(
        logits.expand(rows, -1),
        torch.full((rows,), float(temperature)),
        torch.full((rows,), top_k),
        torch.full((rows,), float(top_p)),
        torch.full((rows,), float(min_p)),
        torch.tensor(uniform, dtype=torch.float64),
    ).tolist()
    return tokens


def shares(form: Any, probabilities: list[float], **parameters: Any) -> list[float]:
    """How often each token is drawn, over draws spread evenly."""
    count = 1000
    tokens = call(
        form, torch.tensor(probabilities).log()[None], [(i + 0.5) / count for i in range(count)], **parameters
    )
    return [tokens.count(token) / count for token in range(len(probabilities))]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [0.5, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]),
        ({"temperature": 2.0}, [math.sqrt(p) / sum(map(math.sqrt, (0.5, 0.3, 0.2))) for p in (0.5, 0.3, 0.2)]),
        ({"top_k": 2}, [0.625, 0.375, 0]),
        ({"top_k": 1}, [1, 0, 0]),
        ({"top_k": 7}, [0.5, 0.3, 0.2]),
        ({"top_p": 0.49}, [1, 0, 0]),
        ({"top_p": 0.6}, [0.625, 0.375, 0]),
        ({"top_p": 0.81}, [0.5, 0.3, 0.2]),
        ({"min_p": 0.5}, [0.625, 0.375, 0]),
        ({"min_p": 1.0}, [1, 0, 0]),
        ({"top_k": 2, "top_p": 0.62}, [1, 0, 0]),  # top_p counts what top_k leaves: 0.625 is enough
        ({"min_p": 0.5, "top_p": 0.62}, [1, 0, 0]),  # and what min_p leaves
        ({"temperature": 1e-7}, [1, 0, 0]),
        ({"temperature": 1e-300}, [1, 0, 0]),
        ({"temperature": 0, "top_k": 3, "min_p": 0.1}, [1, 0, 0]),
    ],
)
def test_sample_shares(form: Any, parameters: dict[str, Any], expected: list[float]) -> None:
    assert shares(form, [0.5, 0.3, 0.2], **parameters) == pytest.approx(expected, abs=0.0021)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-48])
def test_sample_never_draws_what_is_impossible(form: Any, uniform: float) -> None:
    logits = torch.full((1, 5000), -torch.inf)
    logits[0, 7] = logits[0, 4000] = 1.0
    assert call(form, logits, [uniform])[0] in {7, 4000}
    assert call(form, logits, [uniform], top_p=0.9, top_k=3)[0] in {7, 4000}


def test_sample_not_finite(form: Any) -> None:
    logits = torch.zeros(5, 9)
    logits[0, 3] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, 3] = -torch.inf
    for temperature in (0.0, 1.0):
        tokens = form.sample(
            logits,
            torch.full((5,), temperature),
            torch.zeros(5, dtype=torch.int64),
            torch.ones(5),
            torch.zeros(5),
            torch.full((5,), 0.5, dtype=torch.float64),
        ).tolist()
        assert tokens[:3] == [NOT_FINITE] * 3
        assert all(token in range(9) for token in tokens[3:])
    assert form.greedy(logits).tolist() == [NOT_FINITE] * 3 + [0, 0]


def test_sample_greedy_takes_the_first_of_equals(form: Any) -> None:
    assert call(form, torch.tensor([[0.0, 2.0, 2.0, 1.0]]), [0.9], temperature=0) == [1]


def test_sample_ties_at_the_bound_are_kept(form: Any) -> None:
    assert shares(form, [0.4, 0.2, 0.2, 0.2], top_k=2) == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.0021)


@pytest.mark.parametrize("width", [1, 7, 16, 17, 300, 50_000])
def test_greedy_equals_reference(fast: Any, width: int, generator: torch.Generator) -> None:
    # Few different numbers: the largest stands in many places, and in every lane. 50,000 wide rows wake the threads.
    logits = torch.randint(-4, 4, (12, width), generator=generator).float()
    logits[3, width // 2] = torch.nan
    logits[4] = -torch.inf
    logits[5] = -torch.inf
    logits[5, -1] = -1e30
    assert fast.greedy(logits).tolist() == reference.greedy(logits).tolist()


@pytest.mark.parametrize("vocabulary", [300, 600, 5000])
def test_sample_flat_beyond_the_candidates(form: Any, vocabulary: int) -> None:
    # 0.9 of a flat distribution is more tokens than the vectorised form looks at first.
    logits = torch.arange(vocabulary)[None] * (0.06 / vocabulary)
    tokens = call(form, logits, [i / 97 for i in range(97)], top_p=0.9)
    assert 0.09 < min(tokens) / vocabulary < 0.12
    assert max(tokens) / vocabulary > 0.98


def test_sample_equals_reference(fast: Any, generator: torch.Generator) -> None:
    logits = torch.randn(48, 1500, generator=generator) * torch.linspace(0.1, 6, 48)[:, None]
    settings = list(itertools.product([0.0, 0.3, 1.0, 2.0], [0, 1, 5, 400], [0.2, 0.9, 1.0]))
    columns = [torch.tensor(column, dtype=torch.float32) for column in zip(*settings, strict=True)]
    temperature, top_k, top_p = columns[0], columns[1].long(), columns[2]
    min_p = torch.tensor([0.0, 0.05]).repeat(24)
    uniform = torch.rand(48, generator=generator, dtype=torch.float64)
    truth = reference.sample(logits, temperature, top_k, top_p, min_p, uniform)
    together = fast.sample(logits, temperature, top_k, top_p, min_p, uniform)
    assert together.tolist() == truth.tolist()
    for row in range(48):  # alone as in the batch
        one = slice(row, row + 1)
        alone = fast.sample(logits[one], temperature[one], top_k[one], top_p[one], min_p[one], uniform[one])
        assert alone.tolist() == truth[one].tolist()


@pytest.mark.parametrize("plain", [reference, cpu], ids=["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sample_narrow_logits(plain: Any, dtype: torch.dtype) -> None:
    logits = torch.tensor([[4.0, 8.0, 2.0]], dtype=dtype)
    assert plain.greedy(logits).tolist() == [1]
    assert call(plain, logits, [0.5, 0.1]) == [1, 1]


def test_penalised() -> None:
    """Of prompt and answer, of the answer, for each time that the answer has it; rows by themselves."""
    logits = torch.tensor([[2.0, 2.0, -2.0, 2.0, 0.0, -torch.inf]]).expand(3, -1).half()
    seen = torch.tensor([0, 1, 2, 5, 4, 1], dtype=torch.int32).expand(3, -1)  # twice the times, and 1 of the prompt
    columns = torch.tensor([[1.0, 2, 1], [0.5, 0, 0], [0.25, 0, -1]])
    got = reference.penalised(logits, Penalties(seen, *columns))
    assert got.dtype == torch.float32
    assert got.tolist() == [
        [2, 2, -2.75, 1, -1, -math.inf],
        [2, 1, -4, 1, 0, -math.inf],
        [2, 2, -1, 4, 2, -math.inf],
    ]


@pytest.mark.parametrize("plain", [reference, cpu])
def test_sample_with_penalties(plain: Any) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0]]).expand(2, -1).bfloat16()
    seen = torch.tensor([[0, 3, 0, 0], [2, 20, 4, 0]], dtype=torch.int32)
    penalties = Penalties(seen, torch.tensor([1.5, 1.0]), torch.tensor([0.5, 5.0]), torch.tensor([0.0, 0.1]))
    greedy = torch.zeros(2), torch.zeros(2).long(), torch.ones(2), torch.zeros(2), torch.zeros(2).double()
    assert plain.sample(logits, *greedy).tolist() == [1, 1]
    assert plain.sample(logits, *greedy, penalties=penalties).tolist() == [2, 3]


def test_best_takes_the_first_of_equals(form: Any) -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [-torch.inf, 0.0, -torch.inf, -torch.inf, -1.0, -2.0]])
    values, tokens = form.best(scores, 4)
    assert tokens.tolist() == [[1, 3, 2, 4], [1, 4, 5, 0]]
    assert values.tolist() == [[3, 3, 2, 2], [0, -1, -2, -torch.inf]]


@pytest.mark.parametrize("count", [1, 8, 1500])
def test_best_equals_reference(fast: Any, count: int, generator: torch.Generator) -> None:
    scores = torch.randn(5, 1500, generator=generator)
    scores[2] = scores[2].round()  # many equals
    scores[3] = 0.25
    (values, tokens), (true_values, true_tokens) = fast.best(scores, count), reference.best(scores, count)
    assert torch.equal(tokens, true_tokens)
    assert torch.equal(values, true_values)
