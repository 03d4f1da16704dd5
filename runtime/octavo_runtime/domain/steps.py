"""What the scheduler tells the executor to do in one step, and what comes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo_runtime.domain.requests import SamplingParams

__all__ = ["BlockCopy", "CopyKind", "ScheduledSequence", "StepPlan", "StepResult"]


class CopyKind(enum.Enum):
    """Between which tiers a block is copied."""

    DEVICE = "device to device"
    OUT = "device to host"
    IN = "host to device"


class BlockCopy(NamedTuple):
    """The copy of one whole block, all layers.

    Attributes:
        kind: The tiers.
        source: Block number in the tier it is read from.
        target: Block number in the tier it is written to.
    """

    kind: CopyKind
    source: int
    target: int


class ScheduledSequence(NamedTuple):
    """What one sequence does in one step. A tuple, since there are hundreds in each step.

        prompt + output:  [ num_computed tokens in KV ][ token_ids, computed now ][ not yet scheduled ]
        block_table:      covers the first two parts, block i holding positions i*block_size …

    Attributes:
        request_id: Whose sequence.
        number: The sequence's own number, unique in the engine: a request may have several.
        token_ids: Tokens computed in this step, at positions num_computed … ; at least one.
        num_computed: Tokens whose KV is already there, computed or found in the prefix cache.
        block_table: Block numbers, in order of position; there may be more than this step needs.
        num_samples: Tokens wanted from the last token's logits: 0 while prefilling; 1; one per answer where a prompt
            is about to fork; for beam search the number of best candidates.
        num_generated: Output tokens before this step; with seed and choice it fixes the draw.
        sampling: The request's.
        choice: Which of the request's answers the first sample is for; the others are for the next ones.
        feeds: The one token of `token_ids` is a placeholder: it is the token that this sequence sampled in the step
            executed just before, which was not known when this step was planned.
    """

    request_id: str
    number: int
    token_ids: Sequence[int]
    num_computed: int
    block_table: Sequence[int]
    num_samples: int
    num_generated: int
    sampling: SamplingParams
    choice: int = 0
    feeds: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that an executor needs for one step. Empty when there is nothing to do.

    Attributes:
        sequences: What is computed.
        copies: Block copies that come before anything is computed, in this order: one may read what an earlier one
            wrote, or write what an earlier one read.
        num_blocks: The new size of the KV pool: it grows before the copies, or shrinks after them; None: as before.
    """

    sequences: tuple[ScheduledSequence, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    num_blocks: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def has_work(self) -> bool:
        """Whether an executor has anything to do."""
        return bool(self.sequences or self.copies or self.num_blocks is not None)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        tokens: The sampled tokens, `num_samples` for each sequence of the plan, one sequence after the other; for beam
            search the candidates of each, best first. A failed sequence has its places too, with any tokens.
        logprobs: The natural logarithm of each one's probability under the model (softmax of the logits as they are),
            as long as `tokens`; empty when no sequence of the plan asks for them (`SamplingParams.needs_logprobs`).
        failed: Position in the plan's sequences -> why this sequence has no token.
        seconds: How long the step took on the device; 0: not measured.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
