"""All rows at once, sorting only as many candidates as the filters need."""

from __future__ import annotations

import torch

from octavo_kernels.sampling.penalties import Penalties
from octavo_kernels.sampling.reference import MIN_TEMPERATURE, NOT_FINITE, penalised

__all__ = ["best", "greedy", "sample"]

# top_p looks among this many of a row's likeliest tokens; for a row where they do not suffice, among 16 times as many.
_CANDIDATES = 256


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
    # NaN wins over every number in max, so one look at the maximum finds all that is not finite, in one pass.
    best, tokens = logits.max(dim=-1)
    drawn = (temperature > 0).nonzero()[:, 0]
    if len(drawn):
        # [drawn rows, vocabulary]: likelihoods relative to the most likely token's
        likelihood = logits[drawn].float().sub_(best[drawn, None].float())
        likelihood.div_(temperature[drawn, None].clamp(min=MIN_TEMPERATURE)).exp_()
        _filter(likelihood, top_k[drawn], top_p[drawn], min_p[drawn])
        mass = likelihood.cumsum(dim=-1, dtype=torch.float64)
        target = uniform[drawn, None] * mass[:, -1:]
        tokens[drawn] = torch.searchsorted(mass, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    return tokens.masked_fill_(~best.isfinite(), NOT_FINITE)


def _filter(likelihood: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> None:
    """Sets what the filters drop to 0. The most likely token has likelihood 1, so min_p is a bound as it stands."""
    bound = min_p.clone()
    limited = (top_k > 0) & (top_k < likelihood.shape[1])
    if limited.any():
        rows = limited.nonzero()[:, 0]
        largest = likelihood[rows].topk(int(top_k[rows].max()), dim=-1).values
        bound[rows] = bound[rows].maximum(largest.gather(1, top_k[rows, None] - 1)[:, 0])
    likelihood.masked_fill_(likelihood < bound[:, None], 0)
    rows = (top_p < 1).nonzero()[:, 0]
    candidates = min(_CANDIDATES, likelihood.shape[1])
    while len(rows):
        largest = likelihood[rows].topk(candidates, dim=-1).values
        mass = largest.cumsum(dim=-1, dtype=torch.float64)
        wanted = top_p[rows] * likelihood[rows].sum(dim=-1, dtype=torch.float64)
        # The last token kept is the first whose mass, with all likelier ones, reaches what is wanted.
        enough = (
            (mass[:, -1] >= wanted) if candidates < likelihood.shape[1] else torch.ones_like(rows, dtype=torch.bool)
        )
        last = (mass < wanted[:, None]).sum(dim=-1, keepdim=True).clamp_(max=candidates - 1)
        kept = rows[enough]
        likelihood[kept] *= likelihood[kept] >= largest.gather(1, last)[enough]
        rows, candidates = rows[~enough], min(candidates * 16, likelihood.shape[1])


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """See octavo_kernels.sampling."""
    largest, tokens = logits.max(dim=-1)
    return tokens.masked_fill_(~largest.isfinite(), NOT_FINITE)


def best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See octavo_kernels.sampling."""
    # topk leaves open which of equals it takes: it only tells the bound, and the few above and at it are sorted.
    bounds = scores.topk(count, dim=-1).values[:, -1]
    values, tokens = scores.new_empty(len(scores), count), bounds.new_empty((len(scores), count), dtype=torch.int64)
    for row, bound in enumerate(bounds):
        kept = (scores[row] >= bound).nonzero()[:, 0]
        largest, order = scores[row, kept].sort(descending=True, stable=True)
        values[row], tokens[row] = largest[:count], kept[order[:count]]
    return values, tokens
