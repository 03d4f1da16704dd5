"""How many KV blocks one request can come to hold: what the door and the scheduler refuse by.

A request of `width` answers or beams begins as one sequence, its prompt, and then forks:

    prompt, 40 tokens     [ b0 ][ b1 ][ b2 ·    ]      b0 and b1 are full: all sequences keep them in common
    each of the width              [ b2'· ][ b3' ]…    the rest of the prompt and the output: a copy for each

Two beams may share more than the prompt, never less, and a beam that dies frees its blocks before another forks.
"""

from __future__ import annotations

from octavo_runtime.domain import Request
from octavo_runtime.errors import InvalidRequest

__all__ = ["most_output_tokens", "refuse_impossible", "worst_case_blocks"]


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


def refuse_impossible(
    request: Request, *, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int
) -> None:
    """Refuses a request that could never run, even alone.

    Raises:
        InvalidRequest: With both numbers: what it may need, and what there is.
    """
    prompt, sampling = len(request.prompt_token_ids), request.sampling
    assert sampling.max_tokens is not None, "the door resolves max_tokens"
    if prompt == 0:
        raise InvalidRequest("the prompt has no tokens", param="prompt")
    limit = min(max_model_len, num_blocks * block_size)
    if prompt + sampling.max_tokens > limit:
        raise InvalidRequest(
            f"the prompt has {prompt} tokens and max_tokens is {sampling.max_tokens}, "
            f"together more than the {limit} that one request can have here",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if sampling.width > max_num_seqs:
        raise InvalidRequest(
            f"{sampling.width} sequences are asked for, more than the {max_num_seqs} that run at once here",
            param="n" if sampling.best_of is None else "best_of",
        )
    blocks = worst_case_blocks(prompt, sampling.max_tokens, sampling.width, block_size)
    if blocks > num_blocks:
        raise InvalidRequest(
            f"{sampling.width} sequences of {prompt} prompt tokens and {sampling.max_tokens} output tokens may need "
            f"{blocks} KV blocks; there are {num_blocks}",
            param="max_tokens",
            code="context_length_exceeded",
        )
