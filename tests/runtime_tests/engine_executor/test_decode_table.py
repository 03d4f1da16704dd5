"""The table is tested against a device that does nothing but what it is told, and its own part at the end of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.domain import SamplingParams, ScheduledSequence
from octavo_runtime.engine.decode_table import Changes, DecodeTable, Layout

LAYOUT = Layout(rows=5, longest=4)
BLOCK = 4
GREEDY = SamplingParams(temperature=0)
DRAWN = SamplingParams(temperature=0.5, top_p=0.75, min_p=0.25, top_k=9, seed=3)


def draw(sequence: ScheduledSequence) -> float:
    return (sequence.number * 100 + sequence.num_generated) / 1e4


def decode(
    number: int,
    computed: int,
    table: Sequence[int],
    token: int = 7,
    sampling: SamplingParams = GREEDY,
    *,
    feeds: bool = False,
) -> ScheduledSequence:
    return ScheduledSequence("", number, (token,), computed, table, 1, computed, sampling, feeds=feeds)


class Device:
    """The words as they are there."""

    def __init__(self) -> None:
        self.words = np.zeros(LAYOUT.size, dtype=np.int32)

    def write(self, changes: Changes) -> None:
        assert len(set(changes.places.tolist())) == len(changes.places)
        self.words[changes.places] = changes.words

    def finish(self, sampled: Sequence[int]) -> None:
        """Each row in use goes on with what was sampled for it; the last rows are nobody's."""
        used = self.words[LAYOUT.context_len] > 0
        assert used.tolist() == [row < len(sampled) for row in range(LAYOUT.rows)]
        self.words[LAYOUT.token][: len(sampled)] = sampled
        self.words[LAYOUT.context_len][used] += 1

    def holds(self, row: int, sequence: ScheduledSequence, token: int) -> None:
        column = {
            name: self.words[getattr(LAYOUT, name)] for name in ("token", "context_len", "top_k", "uniform", "blocks")
        }
        floats = {
            name: self.words[getattr(LAYOUT, name)].view(np.float32) for name in ("temperature", "top_p", "min_p")
        }
        sampling = sequence.sampling
        assert column["token"][row] == token
        assert column["context_len"][row] == sequence.num_computed + 1
        assert column["top_k"][row] == sampling.top_k
        assert [values[row] for values in floats.values()] == [sampling.temperature, sampling.top_p, sampling.min_p]
        if sampling.temperature:
            assert column["uniform"].view(np.float64)[row] == draw(sequence)
        blocks = column["blocks"].reshape(LAYOUT.rows, LAYOUT.longest)[row]
        assert tuple(blocks[: len(sequence.block_table)]) == tuple(sequence.block_table)


def test_layout_words_are_used_once() -> None:
    names = ("uniform", "temperature", "top_p", "min_p", "top_k", "token", "context_len", "blocks")
    used = [word for name in names for word in range(LAYOUT.size)[getattr(LAYOUT, name)]]
    assert sorted(used) == list(range(LAYOUT.size))


def test_update_sequences_that_go_on_need_nothing() -> None:
    table, blocks = DecodeTable(LAYOUT, draw), ((1, 2), (3, 0))
    first = table.update([decode(8, 4, blocks[0]), decode(9, 5, blocks[1])], {})
    assert first.rows == [0, 1]
    table.advance(first.rows, [11, 12])
    # In another order, one with a placeholder: still nothing.
    fed = table.update([decode(9, 6, blocks[1], 12), decode(8, 5, blocks[0], 0, feeds=True)], {8: 11})
    assert (fed.rows, len(fed.places)) == ([1, 0], 0)


def test_update_a_new_block_is_one_word() -> None:
    table = DecodeTable(LAYOUT, draw)
    first = table.update([decode(8, 7, (1, 2))], {})
    table.advance(first.rows, [11])
    changes = table.update([decode(8, 8, (1, 2, 6), 11)], {})
    assert changes.places.tolist() == [LAYOUT.blocks.start + 2]
    assert changes.words.tolist() == [6]


def test_update_a_row_that_draws_needs_its_number() -> None:
    table = DecodeTable(LAYOUT, draw)
    blocks = (1,)
    table.advance(table.update([decode(8, 1, blocks, 7, DRAWN)], {}).rows, [11])
    changes = table.update([decode(8, 2, blocks, 11, DRAWN)], {})
    assert set(changes.places.tolist()) <= {0, 1}, "the two words of its uniform"


def test_update_placeholder_of_nothing() -> None:
    with pytest.raises(KeyError):
        DecodeTable(LAYOUT, draw).update([decode(8, 4, (1, 2), feeds=True)], {9: 3})


@st.composite
def steps(data: st.DrawFn) -> list[list[ScheduledSequence]]:
    """Sequences that come, go on, are copied, moved, set back and leave; some steps pass the table by."""
    state: dict[int, tuple[int, tuple[int, ...], int]] = {}  # number -> tokens computed, table, next token
    drawn: list[list[ScheduledSequence]] = []
    for _ in range(data(st.integers(1, 8))):
        numbers = data(st.lists(st.integers(0, 8), unique=True, max_size=LAYOUT.rows))
        step = []
        for number in numbers:
            computed, table, token = state.get(number, (data(st.integers(0, 9)), (), data(st.integers(0, 9))))
            change = data(st.sampled_from(["goes on", "goes on", "goes on", "moved", "set back", "other token"]))
            if change == "set back":
                computed = 0
            if change == "other token":
                token += 1
            need = computed // BLOCK + 1
            if change == "moved" or len(table) != need:
                kept = () if change == "moved" else table[: need - 1]
                fresh = data(st.lists(st.integers(0, 20), min_size=need - len(kept), max_size=need - len(kept)))
                table = (*kept, *fresh)
            step.append(decode(number, computed, table, token, (GREEDY, DRAWN)[number % 2]))
            state[number] = (min(computed + 1, LAYOUT.longest * BLOCK - 1), table, number + computed)
        drawn.append(step)
    return drawn


@given(drawn=steps(), passed_by=st.sets(st.integers(0, 7)))
def test_update_device_holds_what_the_plan_says(drawn: list[list[ScheduledSequence]], passed_by: set[int]) -> None:
    table, device = DecodeTable(LAYOUT, draw), Device()
    for number, step in enumerate(drawn):
        if number in passed_by or not step:  # computed in another way
            continue
        changes = table.update(step, {})
        device.write(changes)
        assert sorted(changes.rows) == list(range(len(step)))
        for row, sequence in zip(changes.rows, step, strict=True):
            device.holds(row, sequence, sequence.token_ids[0])
        tokens = [sequence.number + sequence.num_computed for sequence in step]
        by_row = dict(zip(changes.rows, tokens, strict=True))
        device.finish([by_row[row] for row in range(len(step))])
        table.advance(changes.rows, tokens)
