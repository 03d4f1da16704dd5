"""Steps in which every sequence decodes, as graphs that a device replays: one launch for a whole step.

    host      update the table ─ send what changed ─ replay ──────────────────────────── read the tokens ─ advance
    device                                  [ write it ][ forward, sample, feed the next step ]

A graph is captured for some batch sizes; a step takes the next larger one, whose last rows are nobody's: their context
has no tokens, they write no KV and feed nothing. All that a graph reads lies in the table (decode_table.py), so that a
replay needs nothing else, and a step in which nobody needs a block or a number to draw with needs no copy at all.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from octavo_kernels.paged_attention import prepare_rows
from octavo_kernels.sampling import sample
from octavo_runtime.domain import ScheduledSequence, StepPlan
from octavo_runtime.engine.decode_table import DecodeTable, Layout
from octavo_runtime.engine.sampler import uniform
from octavo_runtime.models.decoder import Decoder

__all__ = ["CudaDevice", "DecodeGraphs", "GraphDevice", "graph_sizes"]

_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batch sizes that have a graph. A step reads all weights whatever its size, so that rows of nobody cost little."""


class GraphDevice(Protocol):
    """What captures work and replays it."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Something that does the same work, on the same memory, each time it is called."""
        ...

    def send(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        """A copy on the device, in the order of all other work there."""
        ...


class CudaDevice:
    """A CUDA GPU. Its graphs share their memory, since only one of them runs at a time.

    All are captured on one stream of its own. cuBLAS has a workspace for each stream that it ever ran on, 32 MiB on
    Hopper, and graphs hold its address: a stream for each graph would keep as many, and where one stream is shared with
    graphs of somebody else, torch may free the workspace under ours when those go (pytorch#193402).

    Args:
        device: Which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See GraphDevice. The work is done twice before, so that nothing is compiled or allocated while it is caught."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
            work()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

    def send(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        """See GraphDevice."""
        return torch.from_numpy(numbers).pin_memory().to(self._device, non_blocking=True)


def graph_sizes(max_rows: int) -> list[int]:
    """Batch sizes to capture, rising; the last one is `max_rows`, or the largest that has a graph."""
    sizes = [size for size in _SIZES if size < max_rows]
    return [*sizes, max_rows] if max_rows <= _SIZES[-1] else sizes


def _uniform(sequence: ScheduledSequence) -> float:
    assert sequence.sampling.seed is not None, "the door draws a seed where the client gives none"
    return uniform(sequence.sampling.seed, sequence.num_generated, sequence.choice)


class DecodeGraphs:
    """The graphs of a decoder.

    Args:
        decoder: Its weights and KV cache stay where they are.
        device: Captures and replays.
        words: Where the table lies: `layout.size` zeros of int32 on the decoder's device.
        layout: The table's.
        max_rows: Sequences of the largest graph: at most the table's rows.
        block_size: Tokens per block.
    """

    def __init__(
        self,
        decoder: Decoder,
        device: GraphDevice,
        words: torch.Tensor,
        *,
        layout: Layout,
        max_rows: int,
        block_size: int,
    ) -> None:
        self._decoder = decoder
        self._device = device
        self._block_size = block_size
        self._table = DecodeTable(layout, _uniform)
        self._words = words
        self._uniform = words[layout.uniform].view(torch.float64)
        self._temperature = words[layout.temperature].view(torch.float32)
        self._top_p = words[layout.top_p].view(torch.float32)
        self._min_p = words[layout.min_p].view(torch.float32)
        self._top_k = words[layout.top_k]
        self._token = words[layout.token]
        self._context_len = words[layout.context_len]
        self._blocks = words[layout.blocks].view(layout.rows, layout.longest)
        self._sampled = torch.zeros(layout.rows, dtype=torch.int64, device=words.device)
        self._sizes = graph_sizes(max_rows)
        # The largest first: the others find room in its memory.
        self._graphs = {size: device.capture(functools.partial(self._step, size)) for size in reversed(self._sizes)}

    def takes(self, plan: StepPlan) -> bool:
        """Whether a plan's step is one: each sequence computes one token and draws one, and nobody asks for more."""
        return 0 < len(plan.sequences) <= self._sizes[-1] and all(
            len(each.token_ids) == 1
            and each.num_samples == 1
            and not (each.sampling.use_beam_search or each.sampling.needs_logprobs)
            for each in plan.sequences
        )

    def step(self, sequences: Sequence[ScheduledSequence], sampled: Mapping[int, int]) -> list[int]:
        """Computes a step that `takes` takes.

        Args:
            sequences: The plan's.
            sampled: Sequence number -> token sampled in the step before.

        Returns:
            A token for each sequence, NOT_FINITE where there is none.
        """
        count = len(sequences)
        changes = self._table.update(sequences, sampled)
        if len(changes.places):
            places, words = self._device.send(np.stack((changes.places, changes.words)))  # [changes] each, int64
            self._words[places] = words.int()
        self._graphs[self._sizes[bisect_left(self._sizes, count)]]()
        by_row: list[int] = self._sampled[:count].tolist()  # waits for the device
        tokens = [by_row[row] for row in changes.rows]
        self._table.advance(changes.rows, [max(token, 0) for token in tokens])
        return tokens

    def _step(self, size: int) -> None:
        """What a graph does. Nothing here may depend on a number that the host would have to read."""
        context_lens = self._context_len[:size]
        used = context_lens > 0
        positions = (context_lens - 1).clamp(min=0).long()
        blocks = self._blocks[:size]
        block = blocks.gather(1, positions[:, None] // self._block_size)[:, 0].long()
        slots = (block * self._block_size + positions % self._block_size).masked_fill(~used, -1)
        logits = self._decoder.forward_prepared(
            self._token[:size].long(), positions, slots, prepare_rows(blocks, context_lens, self._block_size)
        )
        sampled = sample(
            logits,
            self._temperature[:size],
            self._top_k[:size].long(),
            self._top_p[:size],
            self._min_p[:size],
            self._uniform[:size],
        )
        self._sampled[:size] = sampled
        self._token[:size] = torch.where(used, sampled.clamp(min=0).int(), self._token[:size])
        self._context_len[:size] += used
