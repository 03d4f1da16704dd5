"""Whether one more sequence may start: what all will need, not only what there is.

`expected`: a running sequence of g tokens is there in t steps with the probability S(g + t) / S(g) that the length
predictor gives, and then holds the blocks of t more tokens; one that has ended holds none. The sum over the sequences
has a mean and a variance at each t; the candidate starts when mean + MARGIN standard deviations stays within the pool
at every t. Lengths of different requests are independent, so what some need more others need less; the answers to one
prompt are taken to be equally long, which is the worst that they can be.

`never-evict`: as many blocks as all could need at most. `max-utilization`: only what is needed now.

Source of the idea: Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees (ASPLOS 2025); the survival
form is ours.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from octavo_runtime.core.lengths import LengthPredictor
from octavo_runtime.core.limits import worst_case_blocks
from octavo_runtime.core.sequence import RequestState, Sequence

__all__ = ["MARGIN", "MARGIN_WITH_HOST", "Forecast", "worst_case"]

MARGIN = 2.5
"""Standard deviations that are kept free where a preemption means computing again. On the pinned loads fewer than 1 % of
the requests are preempted then; two deviations would be 2 %, three cost a tenth of the throughput of a small pool."""

MARGIN_WITH_HOST = 1.0
"""The same where preempted blocks are copied to the host and back, which costs little."""

Floats = npt.NDArray[np.float64]


class Forecast:
    """The blocks that the running sequences are expected to hold in the steps to come.

    Args:
        sequences: Those that run.
        used: Blocks they hold now: what they share is counted once.
        predictor: Of output lengths.
        block_size: Tokens per block.
        max_len: Longest sequence there can be.
        margin: Standard deviations that are kept free.
    """

    def __init__(
        self,
        sequences: Iterable[Sequence],
        *,
        used: int,
        predictor: LengthPredictor,
        block_size: int,
        max_len: int,
        margin: float,
    ) -> None:
        self._predictor = predictor
        self._block_size = block_size
        self._margin = margin
        # 0, one block, two, four, …: usage changes by blocks, and far ahead all is vague.
        self._horizons = np.concatenate(
            ([0.0], block_size * 2.0 ** np.arange(max(1, max_len // block_size).bit_length()))
        )
        rows = [(len(s.token_ids), s.num_generated, s.request.max_tokens, len(s.request.sequences)) for s in sequences]
        self._mean, self._variance = self._needs(np.array(rows, dtype=np.float64).reshape(-1, 4))
        self._mean += used - self._mean[0]

    def allows(self, candidate: Sequence, cached_blocks: int, limit: int) -> bool:
        """Whether the candidate fits beside the running ones within `limit` blocks; if so, it is one of them now.

        Args:
            candidate: What would start, with all sequences that it will fork into.
            cached_blocks: Of its blocks, those in use by others already.
            limit: Blocks of the pool.
        """
        length, width = len(candidate.token_ids), candidate.slots
        row = (
            length,
            candidate.num_generated,
            candidate.request.max_tokens,
            max(width, len(candidate.request.sequences)),
        )
        mean, variance = self._needs(np.array([row] * width, dtype=np.float64))
        # The forks share the full blocks of the prompt.
        mean = mean - (width - 1) * (length // self._block_size) - cached_blocks
        mean, variance = self._mean + mean, self._variance + variance
        if (mean + self._margin * np.sqrt(variance)).max() > limit:
            return False
        self._mean, self._variance = mean, variance
        return True

    def _needs(self, rows: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the blocks at each horizon.

        Args:
            rows: [sequences, 4]: tokens, output tokens, most of them, sequences of the same request.
        """
        tokens, generated, cap = rows[:, 0:1], rows[:, 1:2], rows[:, 2:3]  # [sequences, 1]
        later = generated + self._horizons  # [sequences, horizons]
        there = self._predictor.survival(np.minimum(later, cap), generated) * (later < cap)
        blocks = np.ceil((tokens + self._horizons) / self._block_size)
        mean: Floats = (there * blocks).sum(axis=0)
        # k equal ones vary k² as much as one: k times for each.
        variance: Floats = (rows[:, 3:4] * there * (1 - there) * blocks**2).sum(axis=0)
        return mean, variance


def worst_case(requests: Iterable[RequestState], block_size: int) -> int:
    """The most blocks that requests can come to hold together, when they share nothing with each other."""
    return sum(worst_case_blocks(r.prompt_len, r.max_tokens, r.sampling.width, block_size) for r in requests)
