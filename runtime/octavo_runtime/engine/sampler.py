"""Next tokens from logits: each request's parameters, and the number that it draws with."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch

from octavo_kernels.sampling import NOT_FINITE, sample
from octavo_runtime.domain import ScheduledSequence, StepResult

__all__ = ["sample_tokens", "uniform"]


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on the seed and the index of the token alone.

    There is no generator with a state, so the draw is the same alone, in a batch, and after a preemption.
    """
    digest = hashlib.blake2b(struct.pack("<qQ", seed, index), digest_size=6).digest()
    # 48 bits: times any sum of likelihoods, the result stays below the sum also when rounded.
    return int.from_bytes(digest, "little") * 2.0**-48


def sample_tokens(logits: torch.Tensor, sequences: Sequence[ScheduledSequence]) -> StepResult:
    """Draws one token for each sequence.

    Args:
        logits: [sequences, vocabulary].
        sequences: Whose rows they are.
    """
    if not sequences:
        return StepResult({}, {})
    device = logits.device
    params = [sequence.sampling for sequence in sequences]
    if all(p.temperature == 0 for p in params):
        draws = [0.0] * len(params)
    else:
        assert all(p.seed is not None for p in params), "the door draws a seed where the client gives none"
        draws = [uniform(p.seed or 0, s.num_generated) for p, s in zip(params, sequences, strict=True)]
    tokens: list[int] = sample(
        logits,
        torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
        torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
        torch.tensor(draws, dtype=torch.float64, device=device),
    ).tolist()
    return StepResult(
        sampled={s.request_id: token for s, token in zip(sequences, tokens, strict=True) if token != NOT_FINITE},
        failed={
            s.request_id: "the model's output for this request is not finite"
            for s, token in zip(sequences, tokens, strict=True)
            if token == NOT_FINITE
        },
    )
