"""The truth: row after row, token after token in order of likelihood."""

from __future__ import annotations

import torch

from octavo_kernels.sampling.penalties import Penalties

__all__ = ["MIN_TEMPERATURE", "best", "greedy", "penalised", "sample"]

NOT_FINITE = -1
# Colder is greedy in all but name; the bound keeps the division in float32's range.
MIN_TEMPERATURE = 1e-5


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    *,
    penalties: Penalties | None = None,
) -> torch.Tensor:
    """See octavo_kernels.sampling."""
    if penalties is not None:
        logits = penalised(logits, penalties)
    tokens = [
        _sample_row(row.float(), *(float(x) for x in parameters))
        for row, *parameters in zip(logits, temperature, top_k, top_p, min_p, uniform, strict=True)
    ]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def penalised(logits: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    """Logits with their penalties, in float32."""
    wide = logits.float()
    repetition, presence, frequency = (column[:, None] for column in penalties[1:])
    times = penalties.seen // 2
    repeated = torch.where(wide > 0, wide / repetition, wide * repetition)
    wide = torch.where(penalties.seen > 0, repeated, wide)
    return wide - torch.where(times > 0, presence + times * frequency, 0.0)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """See octavo_kernels.sampling."""
    tokens = [_sample_row(row.float(), 0, 0, 1, 0, 0) for row in logits]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See octavo_kernels.sampling."""
    values, tokens = scores.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], tokens[:, :count]


def _sample_row(row: torch.Tensor, temperature: float, top_k: float, top_p: float, min_p: float, uniform: float) -> int:
    best = float(row.max())
    if not torch.isfinite(row.max()):
        return NOT_FINITE
    if temperature == 0:
        return int((row == best).nonzero()[0])
    # Likelihoods relative to the most likely token's.
    likelihood: list[float] = ((row - best) / max(temperature, MIN_TEMPERATURE)).exp().tolist()
    order = sorted(range(len(likelihood)), key=lambda token: -likelihood[token])
    order = [token for token in order if likelihood[token] >= min_p]
    if 0 < top_k < len(order):
        order = [token for token in order if likelihood[token] >= likelihood[order[int(top_k) - 1]]]
    if top_p < 1:
        wanted = top_p * sum(likelihood[token] for token in order)
        mass, last = 0.0, 0.0
        for token in order:
            if mass >= wanted:
                break
            last = likelihood[token]
            mass += last
        order = [token for token in order if likelihood[token] >= last]
    kept = sorted(order)
    target = uniform * sum(likelihood[token] for token in kept)
    mass = 0.0
    for token in kept:
        mass += likelihood[token]
        if mass > target:
            return token
    return next(token for token in reversed(kept) if likelihood[token] > 0)
