"""What a device knows about the sequences that decode, and what a step has to change there.

One table of 32-bit words lies on the device, and a copy of it here. A row belongs to a sequence for as long as it
decodes; the rows in use are the first ones:

    words    uniform      [rows]          float64, two words each: what the row draws with
             temperature  [rows]          float32
             top_p        [rows]          float32
             min_p        [rows]          float32
             top_k        [rows]          int32
             token        [rows]          int32: the token to compute
             context_len  [rows]          int32: tokens with KV, that one included; 0: nobody's row
             blocks       [rows, longest] int32: the sequence's block table

After a step the device writes what it sampled as the next token, and counts context_len on, by itself; `advance` does
so here. So of a sequence that goes on, `update` finds nothing to change but its uniform, if it draws, and now and then
a block. It compares what a plan asks for with what is there, and trusts nothing else: where a token was replaced, a
block copied, a sequence preempted or a step computed in another way, the words differ, and are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo_runtime.domain import SamplingParams, ScheduledSequence

__all__ = ["Changes", "DecodeTable", "Layout"]

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in the table, in words from its start.

    Attributes:
        rows: Sequences that it has room for.
        longest: Blocks that one of them may have.
    """

    rows: int
    longest: int

    @property
    def uniform(self) -> slice:
        """[rows] of float64: it comes first, so that it is aligned."""
        return slice(0, 2 * self.rows)

    @property
    def temperature(self) -> slice:
        """[rows] of float32."""
        return self._column(2)

    @property
    def top_p(self) -> slice:
        """[rows] of float32."""
        return self._column(3)

    @property
    def min_p(self) -> slice:
        """[rows] of float32."""
        return self._column(4)

    @property
    def top_k(self) -> slice:
        """[rows] of int32."""
        return self._column(5)

    @property
    def token(self) -> slice:
        """[rows] of int32."""
        return self._column(6)

    @property
    def context_len(self) -> slice:
        """[rows] of int32."""
        return self._column(7)

    @property
    def blocks(self) -> slice:
        """[rows * longest] of int32."""
        return slice(8 * self.rows, self.size)

    @property
    def size(self) -> int:
        """Words in all."""
        return (8 + self.longest) * self.rows

    def _column(self, number: int) -> slice:
        return slice(number * self.rows, (number + 1) * self.rows)


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be written on the device before a step.

    Attributes:
        places: [changes], int64: words from the table's start, each once.
        words: [changes], int32.
        rows: The row of each of the plan's sequences: the numbers below their count, in any order.
    """

    places: npt.NDArray[np.int64]
    words: Words
    rows: list[int]


class DecodeTable:
    """The table as it is on the device, and whose its rows are.

    Args:
        layout: Its size.
        uniform: The number in [0, 1) that a sequence's next token is drawn with.
    """

    def __init__(self, layout: Layout, uniform: Callable[[ScheduledSequence], float]) -> None:
        self._layout = layout
        self._draw = uniform
        self._device = np.zeros(layout.size, dtype=np.int32)
        self._blocks = self._device[layout.blocks].reshape(layout.rows, layout.longest)
        # What the next step wants of everything but the blocks; the views are of it.
        self._wanted = np.zeros(layout.blocks.start, dtype=np.int32)
        self._uniform = self._wanted[layout.uniform].view(np.float64)
        self._temperature = self._wanted[layout.temperature].view(np.float32)
        self._top_p = self._wanted[layout.top_p].view(np.float32)
        self._min_p = self._wanted[layout.min_p].view(np.float32)
        self._top_k = self._wanted[layout.top_k]
        self._token = self._wanted[layout.token]
        self._context_len = self._wanted[layout.context_len]
        self._row: dict[int, int] = {}  # sequence number -> row
        # What the rows hold, to tell at a glance that it is the same object still.
        self._tables: list[Sequence[int] | None] = [None] * layout.rows
        self._samplings: list[SamplingParams | None] = [None] * layout.rows

    def update(self, sequences: Sequence[ScheduledSequence], sampled: Mapping[int, int]) -> Changes:
        """What to write so that the first rows hold these sequences.

        Args:
            sequences: Each computes one token and samples once; no more than there are rows.
            sampled: Sequence number -> token sampled in the step before: what takes the places of placeholders.

        Raises:
            KeyError: A placeholder's token was not sampled in the step before.
        """
        tokens = [sampled[each.number] if each.feeds else each.token_ids[0] for each in sequences]
        rows = self._assign(sequences)
        self._token[rows] = tokens
        self._context_len[rows] = [each.num_computed + 1 for each in sequences]
        places: list[npt.NDArray[np.int64]] = []
        for row, sequence in zip(rows, sequences, strict=True):
            sampling = sequence.sampling
            if sampling is not self._samplings[row]:
                self._samplings[row] = sampling
                self._temperature[row] = sampling.temperature
                self._top_p[row] = sampling.top_p
                self._min_p[row] = sampling.min_p
                self._top_k[row] = sampling.top_k
            if sampling.temperature:
                self._uniform[row] = self._draw(sequence)
            if sequence.block_table is not self._tables[row]:
                places.append(self._replace_blocks(row, sequence.block_table))
        changed = (self._wanted != self._device[: len(self._wanted)]).nonzero()[0]
        self._device[changed] = self._wanted[changed]
        where = np.concatenate([changed, *places])
        return Changes(where, self._device[where], rows)

    def advance(self, rows: list[int], tokens: Sequence[int]) -> None:
        """What the device does to these rows at the end of a step, in which it sampled these tokens for them."""
        self._token[rows] = tokens
        self._context_len[: len(rows)] += 1
        for column in (self._layout.token, self._layout.context_len):
            self._device[column] = self._wanted[column]

    def _assign(self, sequences: Sequence[ScheduledSequence]) -> list[int]:
        """Rows for these sequences. Who has one of the first keeps it; the rows behind them become nobody's."""
        count = len(sequences)
        kept = {each.number: row for each in sequences if (row := self._row.get(each.number, count)) < count}
        if len(kept) < count:
            free = iter(sorted(set(range(count)) - set(kept.values())))
            kept |= {each.number: next(free) for each in sequences if each.number not in kept}
        self._context_len[count:] = 0
        self._row = kept
        return [kept[each.number] for each in sequences]

    def _replace_blocks(self, row: int, table: Sequence[int]) -> npt.NDArray[np.int64]:
        """Writes a row's block table; returns the places of what changed. What lies behind it is never read."""
        blocks = np.fromiter(table, dtype=np.int32, count=len(table))
        own = self._blocks[row, : len(table)]
        changed = (own != blocks).nonzero()[0]
        own[changed] = blocks[changed]
        self._tables[row] = table
        places: npt.NDArray[np.int64] = changed + (self._layout.blocks.start + row * self._layout.longest)
        return places
