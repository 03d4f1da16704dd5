"""The memory of the KV cache: the device's pool of blocks and the host's, copies between them, and a change of size.

    device   [layers, 2, max_num_blocks, block size, kv heads, row]      keys before values
    host     the same with num_host_blocks

A row is head_dim numbers; in int8 and fp8 it has its scale with it (octavo_kernels.paged_attention.rows).

Nothing is initialised: a slot is read only after it was written. So a pool that may grow reserves addresses, not memory.
What an engine starts with is taken before it is ready (ADR 51), else requests wait for pages. These are of 2 MiB where
the kernel has them: a decode reads its blocks, which lie anywhere, once in each layer.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from octavo_kernels.block_copy.native import copy_blocks
from octavo_kernels.native.arrays import Array
from octavo_kernels.native.huge_pages import prefer_huge_pages
from octavo_kernels.paged_attention.rows import row_width
from octavo_runtime.domain import BlockCopy, CopyKind
from octavo_runtime.errors import NotEnoughMemoryForKV
from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["KVPool", "independent_runs", "make_copies", "pool_shape"]

_Tier = TypeVar("_Tier")

_libc = ctypes.CDLL(None)
_MADV_POPULATE_WRITE = 23  # of Linux; Python has no name for it


class KVPool:
    """Both tiers, in the memory of a CPU.

    Args:
        spec: The model.
        num_blocks: Blocks on the device at first.
        max_num_blocks: Blocks up to which it may grow.
        num_host_blocks: Blocks on the host.
        block_size: Tokens per block.
        dtype: Of keys and values.

    Attributes:
        device: The device's blocks.
        host: The host's.

    Raises:
        NotEnoughMemoryForKV: The kernel does not even give the addresses.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        *,
        num_blocks: int,
        max_num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._num_blocks = num_blocks
        row = row_width(spec.head_dim, dtype)
        self._memory, self.device = _reserve(pool_shape(spec, max_num_blocks, block_size, row), dtype)
        self._prefer_huge_pages()
        host_shape = pool_shape(spec, num_host_blocks, block_size, row)
        self.host = _reserve(host_shape, dtype)[1] if num_host_blocks else np.empty(host_shape, dtype)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Makes copies as if one after the other."""
        make_copies(copies, self.device, self.host, copy_blocks)

    def resize(self, num_blocks: int) -> None:
        """Gives the memory of blocks from `num_blocks` on back; those that were not there before are simply there."""
        if num_blocks < self._num_blocks:
            row = self.device[0, 0].nbytes  # the blocks of one layer's keys or values
            block = self.device[0, 0, 0].nbytes
            for start in range(0, self.device.nbytes, row):
                first = _pages(start + num_blocks * block)
                end = (start + row) // mmap.PAGESIZE * mmap.PAGESIZE
                if first < end:
                    self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)
        grown = num_blocks > self._num_blocks
        self._num_blocks = num_blocks
        if grown:
            self._prefer_huge_pages()

    def map(self, threads: int) -> None:
        """Takes the memory of all blocks that there are, on so many threads, so that no request waits for pages.

        Where the kernel does not know how (Linux before 5.14), pages come when they are first written.
        """
        base = self.device.ctypes.data

        def take(stretch: tuple[int, int]) -> None:
            start = stretch[0] // mmap.PAGESIZE * mmap.PAGESIZE
            _libc.madvise(ctypes.c_void_p(base + start), ctypes.c_size_t(stretch[1] - start), _MADV_POPULATE_WRITE)

        # ctypes lets go of the interpreter meanwhile; mmap's own madvise does not.
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(take, self._stretches()))

    def _prefer_huge_pages(self) -> None:
        for start, end in self._stretches():
            prefer_huge_pages(self._memory, start, end)

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Where the blocks that there are lie, in bytes: what the pool may grow by is left out."""
        row, block = self.device[0, 0].nbytes, self.device[0, 0, 0].nbytes
        for start in range(0, self.device.nbytes, row):
            yield start, start + self._num_blocks * block


def pool_shape(spec: DecoderSpec, num_blocks: int, block_size: int, row: int) -> tuple[int, ...]:
    """Of a tier of this many blocks, with rows of this width."""
    return spec.num_layers, 2, num_blocks, block_size, spec.num_kv_heads, row


def make_copies(
    copies: Iterable[BlockCopy],
    device: _Tier,
    host: _Tier,
    copy_blocks: Callable[[_Tier, _Tier, Sequence[int], Sequence[int]], None],
) -> None:
    """Makes copies between two tiers as if one after the other."""
    for kind, sources, targets in independent_runs(copies):
        source = host if kind is CopyKind.IN else device
        target = host if kind is CopyKind.OUT else device
        copy_blocks(source, target, sources, targets)


def independent_runs(copies: Iterable[BlockCopy]) -> Iterator[tuple[CopyKind, list[int], list[int]]]:
    """Cuts an ordered list of copies into runs that may be made at once: kind, blocks to read, blocks to write.

    DEVICE 3→7   DEVICE 4→8   DEVICE 7→9   OUT 1→0   OUT 5→2   OUT 6→0   IN 2→5
    └───────── run ────────┘  └── run ──┘  └────── run ──────┘ └─ run ─┘ └ run ┘
                              reads what                       writes a
                              was written                      block again
    """
    kind: CopyKind | None = None
    sources: list[int] = []
    targets: list[int] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        depends = copy.target in written
        if copy.kind is CopyKind.DEVICE:  # both ends in one pool
            depends = depends or copy.source in written or copy.target in read
        if depends or copy.kind is not kind:
            if kind is not None:
                yield kind, sources, targets
            kind, sources, targets, read, written = copy.kind, [], [], set(), set()
        sources.append(copy.source)
        targets.append(copy.target)
        read.add(copy.source)
        written.add(copy.target)
    if kind is not None:
        yield kind, sources, targets


def _reserve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[mmap.mmap, Array]:
    """An array on memory of its own, which is taken page by page when it is first written."""
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise NotEnoughMemoryForKV(
            f"{size} bytes of addresses for KV blocks cannot be reserved: {error.strerror}",
            hint="Lower --kv-cache-memory, --kv-cache-memory-max or --swap-space: beyond the machine's memory they are of no use.",
            needed=size,
        ) from error
    return memory, np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


def _pages(size: int) -> int:
    """Bytes, rounded up to whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
