"""The next token of each row of logits, drawn, or its best ones. README.md has the order of the filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_kernels.dispatch import form

if TYPE_CHECKING:
    import torch

    from octavo_kernels.sampling.penalties import Penalties

__all__ = ["NOT_FINITE", "best", "greedy", "sample"]

NOT_FINITE = -1


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
    """One token for each row, which depends on nothing but the row.

    Args:
        logits: [rows, vocabulary].
        temperature: [rows], float32; 0 is greedy: the largest logit, the first of equals.
        top_k: [rows], int64; 0 keeps all.
        top_p: [rows], float32 in (0, 1].
        min_p: [rows], float32 in [0, 1].
        uniform: [rows], float64 in [0, 1): what is drawn with; unused by greedy rows.
        penalties: What changes the logits before all else; None where nothing does.

    Returns:
        [rows], int64: token ids; NOT_FINITE where a row holds NaN or +inf, or nothing but -inf.
    """
    result: torch.Tensor = form("sampling", logits.device.type).sample(
        logits, temperature, top_k, top_p, min_p, uniform, penalties=penalties
    )
    return result


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row, the first of equals: `sample` with temperature 0, and nothing besides.

    Args:
        logits: [rows, vocabulary].

    Returns:
        [rows], int64: token ids; NOT_FINITE as in `sample`.
    """
    result: torch.Tensor = form("sampling", logits.device.type).greedy(logits)
    return result


def best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest numbers of each row, largest first; of equals the first in the row.

    Args:
        scores: [rows, vocabulary], float32, without NaN.
        count: How many: at most the vocabulary.

    Returns:
        The numbers, [rows, count], and where they stand, int64.
    """
    result: tuple[torch.Tensor, torch.Tensor] = form("sampling", scores.device.type).best(scores, count)
    return result
