"""A checkpoint's weights as a decoder's parameters: each is read when it is asked for, and cast on the way.

Whoever packs or moves a parameter before asking for the next one holds no more than that one beside what it makes of
them. Files are read, not mapped: a page that is mapped counts as the process's own, and a container has a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import numpy as np

from octavo_kernels.native.arrays import BFLOAT16, Array, cast
from octavo_runtime.errors import BadWeights
from octavo_runtime.loading.checkpoint import DTYPE_BYTES, TensorEntry
from octavo_runtime.loading.weight_map import Slot, WeightMap

__all__ = ["StoredWeights"]

_DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
"""By safetensors' names, little-endian all of them, as are the machines that this runs on."""


class StoredWeights:
    """The parameters of a model directory; a context manager, which holds its files open.

    Args:
        checkpoint: Name to entry, from `open_checkpoint`.
        weights: What goes where, from `weight_map`.
        dtype: Of the parameters, but for weights in groups.
        progress: Called with bytes read and bytes in all.

    Attributes:
        tied: Whether the head is the embedding, which some checkpoints store twice.

    Raises:
        BadWeights: A file could not be read.
    """

    def __init__(
        self,
        checkpoint: dict[str, TensorEntry],
        weights: WeightMap,
        dtype: np.dtype[Any],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._dtype = dtype
        self._progress = progress
        self._slots: dict[str, list[Slot]] = {}
        for slot in weights.slots:
            self._slots.setdefault(slot.target, []).append(slot)
        self._bytes = {
            slot.source: math.prod(slot.shape) * DTYPE_BYTES[checkpoint[slot.source].dtype] for slot in weights.slots
        }
        self._total, self._done = sum(self._bytes.values()), 0
        self._files: dict[Path, BufferedReader] = {}
        self._open = ExitStack()
        self.tied = weights.tied or self._stored_twice()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters. A tied head is not among them."""
        return tuple(name for name in self._slots if not (self.tied and name == "head"))

    def read(self, name: str) -> Array:
        """A parameter, in memory of its own.

        Raises:
            BadWeights: Its file could not be read.
        """
        fixed = self._weights.fixed.get(name)
        dtype = self._dtype if fixed is None else _DTYPES[fixed]
        parameter: Array = np.empty(self._weights.shapes[name], dtype)
        for slot in self._slots[name]:
            self._fill(parameter[slot.first_row : slot.first_row + slot.shape[0]], slot)
            self._done += self._bytes.pop(slot.source, 0)  # what is read again does not count again
            if self._progress:
                self._progress(self._done, self._total)
        return parameter

    def _fill(self, rows: Array, slot: Slot) -> None:
        """Reads the first rows of what is stored, as many as there is room for."""
        entry = self._checkpoint[slot.source]
        stored = rows if rows.dtype == _DTYPES[entry.dtype] else np.empty(rows.shape, _DTYPES[entry.dtype])
        try:
            if entry.file not in self._files:
                self._files[entry.file] = self._open.enter_context(entry.file.open("rb"))
            file = self._files[entry.file]
            file.seek(entry.offset)
            count = file.readinto(stored.view(np.uint8).data)
        except OSError as error:
            raise BadWeights(f"{entry.file} cannot be read: {error}") from error
        if count < stored.nbytes:
            raise BadWeights(f"{entry.file} ends within {slot.source}", hint="Is somebody still writing it?")
        if stored is not rows:
            rows[...] = cast(stored, rows.dtype)

    def _stored_twice(self) -> bool:
        if not {"head", "embedding"} <= self._slots.keys():
            return False
        (head,), (embedding,) = self._slots["head"], self._slots["embedding"]
        same = self._checkpoint[head.source].dtype == self._checkpoint[embedding.source].dtype
        for first in (1, head.shape[0]):  # one row tells all but always
            both = np.empty((2, first, *head.shape[1:]), _DTYPES[self._checkpoint[head.source].dtype])
            for rows, slot in zip(both, (head, embedding), strict=True):
                if same:
                    self._fill(rows, slot)
            same = same and np.array_equal(*both.view(np.uint8))
        if same:
            self._total -= self._bytes.pop(head.source)
        return same
