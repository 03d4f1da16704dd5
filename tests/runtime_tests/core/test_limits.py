"""The worst case of one request, against a count of blocks one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.core.limits import most_output_tokens, worst_case_blocks

lengths = st.integers(1, 70)
widths = st.integers(1, 6)
block_sizes = st.sampled_from([1, 2, 8, 16])


@given(prompt=lengths, output=lengths, width=widths, block_size=block_sizes)
def test_worst_case_blocks_equals_a_count(prompt: int, output: int, width: int, block_size: int) -> None:
    # A block by what it holds: of a full block of the prompt there is one, of any other one for each sequence.
    blocks = set()
    for sequence in range(width):
        for position in range(prompt + output):
            number = position // block_size
            is_common = (number + 1) * block_size <= prompt
            blocks.add((number, None if is_common else sequence))
    assert worst_case_blocks(prompt, output, width, block_size) == len(blocks)


@given(prompt=lengths, width=widths, num_blocks=st.integers(0, 40), block_size=block_sizes)
def test_most_output_tokens_is_the_edge(prompt: int, width: int, num_blocks: int, block_size: int) -> None:
    most = most_output_tokens(prompt, width, num_blocks, block_size)
    if most >= 1:
        assert worst_case_blocks(prompt, most, width, block_size) <= num_blocks
    assert worst_case_blocks(prompt, max(most, 0) + 1, width, block_size) > num_blocks


def test_worst_case_blocks_of_four_beams_shares_the_prompt() -> None:
    assert worst_case_blocks(160, 16, 4, 16) == 10 + 4
    assert worst_case_blocks(161, 16, 4, 16) == 10 + 4 * 2


def test_worst_case_blocks_fills_its_last_block() -> None:
    assert worst_case_blocks(33, 15, 1, 16) == 3
    assert worst_case_blocks(33, 16, 1, 16) == 4
