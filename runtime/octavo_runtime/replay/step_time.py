"""How long a step takes: a linear model with three coefficients, and a link for block copies.

    computing = base + per_token x tokens in the step + per_context x context of decoding sequences
    seconds   = blocks from the host x seconds per block + max(computing, blocks to the host x seconds per block)

`base` is reading the weights and starting the kernels, `per_token` the arithmetic of a token, `per_context` reading a
token's KV while decoding: the shape of what a device's bandwidth and arithmetic allow. It leaves out the attention
among a prompt's own tokens, and that kernels fill a device in jumps; for prompts of a few thousand tokens both are
small. Blocks on their way to the host are copied beside the computation, those that come back before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from octavo_runtime.domain import CopyKind, StepPlan

__all__ = ["StepTimeModel", "num_swapped"]


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Seconds of a step. The defaults are those of the pinned benchmarks: near an 8B model on a large GPU.

    Attributes:
        base: Seconds of every step.
        per_token: Seconds for each token computed in it.
        per_context: Seconds for each token of context of each decoding sequence.
        link_bytes_per_second: Between device and host.
        kv_bytes_per_token: All layers, keys and values.

    Raises:
        ValueError: A negative coefficient, a step that takes no time, or a link that carries nothing.
    """

    base: float = 0.004
    per_token: float = 20e-6
    per_context: float = 40e-9
    link_bytes_per_second: float = 20e9
    kv_bytes_per_token: int = 131_072

    def __post_init__(self) -> None:
        if min(self.base, self.per_token, self.per_context) < 0 or self.base + self.per_token <= 0:
            raise ValueError(
                f"a step cannot take {self.base} s + {self.per_token} s per token + {self.per_context} s per token of "
                "context: no part may be negative, and base and per token not both zero"
            )
        if self.link_bytes_per_second <= 0:
            raise ValueError(f"the link must carry more than {self.link_bytes_per_second} bytes per second")

    def seconds_per_block(self, block_size: int) -> float:
        """How long the copy of a block between device and host takes."""
        return block_size * self.kv_bytes_per_token / self.link_bytes_per_second

    def seconds(self, plan: StepPlan, block_size: int) -> float:
        """How long the step takes; copies on the device cost nothing."""
        tokens = context = 0
        for sequence in plan.sequences:
            count = len(sequence.token_ids)
            tokens += count
            if count == 1:
                context += sequence.num_computed
        computing = self.base + self.per_token * tokens + self.per_context * context if tokens else 0.0
        if not plan.copies:
            return computing
        block = self.seconds_per_block(block_size)
        kinds = Counter(copy.kind for copy in plan.copies)
        return block * kinds[CopyKind.IN] + max(computing, block * kinds[CopyKind.OUT])


def num_swapped(plan: StepPlan) -> int:
    """Blocks that the step copies between device and host."""
    return sum(copy.kind is not CopyKind.DEVICE for copy in plan.copies)
