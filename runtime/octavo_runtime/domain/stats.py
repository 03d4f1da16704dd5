"""What the scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerStats"]


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's state now, and its counts since the start.

    Attributes:
        num_running: Sequences with blocks.
        num_waiting: Sequences that wait, new ones and preempted ones.
        num_running_requests: Requests of which a sequence runs.
        kv_cache_usage: Share of the device's blocks in use by requests, 0-1; cached blocks nobody uses are free.
        host_cache_usage: Share of the host tier's blocks that hold something, 0-1; 0 without a host tier.
        num_blocks: Blocks in the device's pool.
        num_preemptions: Sequences whose blocks were taken.
        num_recomputed_tokens: Tokens computed again because their blocks had been given up by a preemption.
        num_swapped_out: Blocks copied to the host.
        num_swapped_in: Blocks copied back.
        prefix_queries: Prompt tokens looked up in the prefix cache.
        prefix_hits: Of them found, on the device or on the host.
        num_invariant_violations: Requests that were ended because the scheduler's state contradicted itself.
        num_predictions: Finished answers whose length had been predicted.
        predicted_tokens: Sum of the lengths predicted for them.
        predicted_actual_tokens: Sum of the lengths that they had.
        num_within_p90: How many of them were no longer than their predicted 90th percentile.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_running_requests: int = 0
    host_cache_usage: float = 0.0
    num_blocks: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_swapped_out: int = 0
    num_swapped_in: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_invariant_violations: int = 0
    num_predictions: int = 0
    predicted_tokens: int = 0
    predicted_actual_tokens: int = 0
    num_within_p90: int = 0
