"""How many KV blocks one request can come to hold: what the door and the scheduler refuse by.

A request of `width` answers or beams begins as one sequence, its prompt, and then forks:

    prompt, 40 tokens     [ b0 ][ b1 ][ b2 ·    ]      b0 and b1 are full: all sequences keep them in common
    each of the width              [ b2'· ][ b3' ]…    the rest of the prompt and the output: a copy for each

Two beams may share more than the prompt, never less, and a beam that dies frees its blocks before another forks.
"""

from __future__ import annotations

__all__ = ["most_output_tokens", "worst_case_blocks"]


def worst_case_blocks(prompt_len: int, max_tokens: int, width: int, block_size: int) -> int:
    """The most blocks that a request can come to hold.

    Args:
        prompt_len: Tokens of its prompt.
        max_tokens: Most output tokens of each answer.
        width: Sequences that run at once: answers, candidates or beams.
        block_size: Tokens per block.
    """
    shared, rest = divmod(prompt_len, block_size)
    return shared + width * -(-(rest + max_tokens) // block_size)


def most_output_tokens(prompt_len: int, width: int, num_blocks: int, block_size: int) -> int:
    """The largest max_tokens with which a request cannot outgrow a pool of `num_blocks`; below 1: there is none."""
    shared, rest = divmod(prompt_len, block_size)
    return (num_blocks - shared) // width * block_size - rest
