from __future__ import annotations

import itertools

import pytest
import torch

from octavo_kernels.aligned import memory_width
from octavo_kernels.sampling import NOT_FINITE, reference, triton
from octavo_kernels.sampling.penalties import Penalties
from octavo_kernels.testing import Guards


def columns(
    rows: int, generator: torch.Generator, temperatures: list[float]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row its own combination of filters."""
    settings = list(
        itertools.islice(itertools.cycle(itertools.product([0, 1, 5, 40], [0.2, 0.9, 1.0], [0.0, 0.05])), rows)
    )
    top_k, top_p, min_p = (torch.tensor(column) for column in zip(*settings, strict=True))
    temperature = torch.tensor(list(itertools.islice(itertools.cycle(temperatures), rows)))
    return temperature, top_k.long(), top_p, min_p, torch.rand(rows, generator=generator, dtype=torch.float64)


def compare(logits: torch.Tensor, parameters: tuple[torch.Tensor, ...], guards: Guards) -> list[int]:
    truth = reference.sample(logits, *parameters).tolist()
    got = triton.sample(guards.place(logits), *(guards.place(column) for column in parameters)).tolist()
    assert got == truth
    return got


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 24), (torch.float16, 5), (torch.bfloat16, 5)], ids=str)
def test_sample(dtype: torch.dtype, rows: int, generator: torch.Generator, guards: Guards) -> None:
    logits = torch.randn(rows, 101, generator=generator) * torch.linspace(0.1, 6, rows)[:, None]
    compare(logits.to(dtype), columns(rows, generator, [0.3, 1.0, 2.0, 0.0, 1e-7]), guards)


def test_sample_pieces(generator: torch.Generator, guards: Guards) -> None:
    # More tokens than one piece of the loop, and no multiple of it.
    logits = torch.randn(3, 4096 * 2 + 77, generator=generator) * 3
    temperature, _, _, min_p, _ = columns(3, generator, [1.0])
    top_k, top_p = torch.tensor([0, 7, 0]), torch.tensor([1.0, 1.0, 0.9])
    uniform = torch.tensor([1 - 2**-40, 0.3, 0.9], dtype=torch.float64)
    compare(logits, (temperature, top_k, top_p, min_p, uniform), guards)


def test_sample_whole_vocabulary(generator: torch.Generator, guards: Guards) -> None:
    logits = torch.randn(2, 49152, generator=generator) * 3
    parameters = torch.tensor([1.0, 0.0]), torch.zeros(2).long(), torch.ones(2), torch.zeros(2)
    compare(logits, (*parameters, torch.tensor([0.7, 0.7], dtype=torch.float64)), guards)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_sample_never_draws_what_is_impossible(uniform: float, guards: Guards) -> None:
    logits = torch.full((2, 5000), -torch.inf)
    logits[:, 7] = logits[:, 4500] = 1.0
    settings = torch.ones(2), torch.tensor([0, 3]), torch.tensor([1.0, 0.9]), torch.zeros(2)
    tokens = compare(logits, (*settings, torch.full((2,), uniform, dtype=torch.float64)), guards)
    assert set(tokens) == {7 if uniform < 0.5 else 4500}


def test_sample_not_finite(guards: Guards) -> None:
    logits = torch.zeros(5, 9)
    logits[0, 3] = torch.nan
    logits[1, 3] = torch.inf
    logits[2] = -torch.inf
    logits[3, 3] = -torch.inf
    for temperature in (0.0, 1.0):
        parameters = torch.full((5,), temperature), torch.zeros(5).long(), torch.ones(5), torch.zeros(5)
        tokens = compare(logits, (*parameters, torch.full((5,), 0.5, dtype=torch.float64)), guards)
        assert tokens[:3] == [NOT_FINITE] * 3


def test_sample_equals(guards: Guards) -> None:
    """Greedy takes the first of equals; those as likely as the last token kept are kept as well."""
    logits = torch.tensor([0.1, 0.3, 0.3, 0.1, 0.1, 0.1]).log().expand(19, -1).contiguous()
    uniform = torch.linspace(0.01, 0.99, 19, dtype=torch.float64)
    top_k, top_p = torch.tensor([3] * 10 + [0] * 9), torch.tensor([1.0] * 10 + [0.65] * 9)
    temperature = torch.ones(19)
    temperature[0] = 0
    tokens = compare(logits, (temperature, top_k, top_p, torch.zeros(19), uniform), guards)
    assert tokens[0] == 1
    assert set(tokens[1:]) == set(range(6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocabulary"), [(24, 101), (5, 2048 + 77)])
def test_sample_with_penalties(
    dtype: torch.dtype, rows: int, vocabulary: int, generator: torch.Generator, guards: Guards
) -> None:
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    memory = guards.place(torch.full((rows, memory_width(vocabulary)), 2**31 - 1, dtype=torch.int32))
    seen = memory[:, :vocabulary]
    seen.copy_(torch.randint(-9, 8, seen.shape, generator=generator).clamp(min=0))
    by_row = itertools.islice(
        itertools.cycle([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, 0.5, 0.0), (1.0, -1.0, 0.4)]), rows
    )
    penalties = Penalties(seen, *(guards.place(torch.tensor(column)) for column in zip(*by_row, strict=True)))
    parameters = columns(rows, generator, [0.7, 0.0, 1.5])
    truth = reference.sample(logits, *parameters, penalties=penalties).tolist()
    assert triton.sample(guards.place(logits), *parameters, penalties=penalties).tolist() == truth
    assert truth != reference.sample(logits, *parameters).tolist()


def test_sample_with_penalties_not_finite() -> None:
    logits = torch.zeros(3, 9)
    logits[0, 3], logits[1, 3], logits[2, 3] = torch.nan, torch.inf, -torch.inf
    seen = torch.full((3, 16), 3, dtype=torch.int32)[:, :9]
    penalties = Penalties(seen, torch.full((3,), 2.0), torch.ones(3), torch.ones(3))
    columns = torch.ones(3), torch.zeros(3).long(), torch.ones(3), torch.zeros(3), torch.full((3,), 0.5).double()
    truth = reference.sample(logits, *columns, penalties=penalties).tolist()
    assert triton.sample(logits, *columns, penalties=penalties).tolist() == truth
    assert truth[:2] == [NOT_FINITE] * 2


def test_sample_is_the_same_alone(generator: torch.Generator) -> None:
    logits, parameters = torch.randn(4, 300, generator=generator), columns(4, generator, [1.0])
    together = triton.sample(logits, *parameters).tolist()
    alone = [triton.sample(logits[row : row + 1], *(c[row : row + 1] for c in parameters)).item() for row in range(4)]
    assert alone == together


def test_best_takes_the_first_of_equals() -> None:
    values, tokens = triton.best(torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]]), 4)
    assert tokens.tolist() == [[1, 3, 2, 4]]
    assert values.tolist() == [[3, 3, 2, 2]]


def test_greedy(generator: torch.Generator, guards: Guards) -> None:
    logits = torch.randn(4, 101, generator=generator)
    logits[1, 50:60] = 9.0
    logits[2, 3] = torch.nan
    assert triton.greedy(guards.place(logits)).tolist() == reference.greedy(logits).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sample_rows_in_aligned_memory(dtype: torch.dtype, generator: torch.Generator, guards: Guards) -> None:
    # As a head leaves them: 101 numbers in each row, and in the memory behind them anything.
    memory = guards.place(torch.full((6, 112), torch.nan).to(dtype))
    logits = memory[:, :101]
    logits.copy_(torch.randn(6, 101, generator=generator))
    parameters = columns(6, generator, [0.5, 1.0, 0.0])
    assert triton.sample(logits, *parameters).tolist() == reference.sample(logits, *parameters).tolist()
    logits[:, 70:] = -torch.inf
    memory[:, 101:] = 1e9
    assert triton.sample(logits, *parameters).tolist() == reference.sample(logits, *parameters).tolist()
