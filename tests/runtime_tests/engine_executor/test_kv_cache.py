from __future__ import annotations

import contextlib
import itertools
import mmap
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_kernels.native.arrays import Array
from octavo_runtime.domain import BlockCopy, CopyKind
from octavo_runtime.engine.kv_cache import KVPool, independent_runs
from octavo_runtime.loading.spec import decoder_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "vocab_size": 6,
    "tie_word_embeddings": True,
}
DEVICE, OUT, IN = CopyKind.DEVICE, CopyKind.OUT, CopyKind.IN


def pool(**changes: Any) -> KVPool:
    """Blocks of 16 tokens of one head of 32: 2 KiB in each layer's keys, half a page."""
    sizes: dict[str, Any] = {"num_blocks": 8, "max_num_blocks": 8, "num_host_blocks": 0, "block_size": 16}
    made = KVPool(decoder_spec(CONFIG), dtype=np.dtype(np.float32), **(sizes | changes))
    with contextlib.suppress(OSError):  # a kernel without huge pages
        made._memory.madvise(mmap.MADV_NOHUGEPAGE)
    return made


def resident(array: Array) -> int:
    """Bytes of the pages of an array that are there, by the kernel's account."""
    first = array.ctypes.data // mmap.PAGESIZE
    count = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE) - first
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * count), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def test_pool_shapes() -> None:
    both = pool(max_num_blocks=20, num_host_blocks=5)
    assert both.device.shape == (3, 2, 20, 16, 1, 32)
    assert both.host.shape == (3, 2, 5, 16, 1, 32)
    assert pool().host.shape == (3, 2, 0, 16, 1, 32)


def test_pool_takes_no_memory_before_it_is_used() -> None:
    large = pool(num_blocks=4096, max_num_blocks=1 << 16, num_host_blocks=4096)
    assert large.device.nbytes == 6 * (1 << 16) * 2048
    assert resident(large.device) + resident(large.host) == 0
    large.device[0, 0, :512] = 1
    assert resident(large.device) == 1 << 20


def test_map_takes_the_blocks_that_there_are() -> None:
    blocks = pool(num_blocks=1024, max_num_blocks=4096, num_host_blocks=64)
    blocks.map(2)
    assert resident(blocks.device) == 6 * 1024 * 2048
    assert resident(blocks.host) == 0
    blocks.resize(8)
    assert resident(blocks.device) == 6 * 8 * 2048


def test_resize_gives_memory_back_and_keeps_what_stays() -> None:
    blocks = pool(num_blocks=1024, max_num_blocks=2048)
    blocks.device[:, :, :1024] = np.arange(1024.0).reshape(-1, 1, 1, 1)
    assert resident(blocks.device) == 6 * 1024 * 2048
    blocks.resize(101)  # its end is in the middle of a page
    assert resident(blocks.device) == 6 * 102 * 2048
    expected = np.broadcast_to(np.arange(101.0).reshape(-1, 1, 1, 1), (3, 2, 101, 16, 1, 32))
    assert np.array_equal(blocks.device[:, :, :101], expected)
    blocks.resize(2048)
    blocks.device[:, :, 2047] = 7
    assert np.array_equal(blocks.device[:, :, :101], expected)
    blocks.resize(2048)
    assert bool((blocks.device[:, :, 2047] == 7).all())


def test_resize_below_what_was_grown_to() -> None:
    blocks = pool(num_blocks=8, max_num_blocks=1024)
    blocks.resize(1024)
    blocks.device.fill(1)
    blocks.resize(512)
    assert resident(blocks.device) == 6 * 512 * 2048
    blocks.resize(8)
    assert resident(blocks.device) == 6 * 8 * 2048


@pytest.mark.parametrize(
    ("copies", "runs"),
    [
        ([], []),
        ([(DEVICE, 3, 7), (DEVICE, 4, 8)], [(DEVICE, [3, 4], [7, 8])]),
        ([(DEVICE, 3, 7), (DEVICE, 7, 9)], [(DEVICE, [3], [7]), (DEVICE, [7], [9])]),
        ([(DEVICE, 3, 7), (DEVICE, 4, 3)], [(DEVICE, [3], [7]), (DEVICE, [4], [3])]),
        ([(DEVICE, 3, 7), (DEVICE, 4, 7)], [(DEVICE, [3], [7]), (DEVICE, [4], [7])]),
        ([(DEVICE, 3, 7), (DEVICE, 3, 8)], [(DEVICE, [3, 3], [7, 8])]),
        # Block 1 of the device and block 1 of the host are two blocks.
        ([(OUT, 1, 2), (OUT, 2, 1), (OUT, 3, 3)], [(OUT, [1, 2, 3], [2, 1, 3])]),
        ([(OUT, 1, 2), (OUT, 5, 2)], [(OUT, [1], [2]), (OUT, [5], [2])]),
        ([(IN, 1, 2), (IN, 2, 1)], [(IN, [1, 2], [2, 1])]),
        ([(OUT, 1, 2), (IN, 2, 3), (IN, 4, 1)], [(OUT, [1], [2]), (IN, [2, 4], [3, 1])]),
        ([(OUT, 1, 2), (DEVICE, 3, 1), (OUT, 1, 4)], [(OUT, [1], [2]), (DEVICE, [3], [1]), (OUT, [1], [4])]),
    ],
)
def test_independent_runs(
    copies: list[tuple[CopyKind, int, int]], runs: list[tuple[CopyKind, list[int], list[int]]]
) -> None:
    assert list(independent_runs(itertools.starmap(BlockCopy, copies))) == runs


@pytest.mark.parametrize("seed", range(20))
def test_copy_as_if_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    blocks = pool(num_host_blocks=6)
    numbers = np.random.default_rng(seed)
    blocks.device[...], blocks.host[...] = numbers.random(blocks.device.shape), numbers.random(blocks.host.shape)
    device, host = blocks.device.copy(), blocks.host.copy()
    copies = []
    for _ in range(40):
        kind = rng.choice([DEVICE, OUT, IN])
        source = rng.randrange(6 if kind is IN else 8)
        target = rng.choice([n for n in range(6 if kind is OUT else 8) if kind is not DEVICE or n != source])
        copies.append(BlockCopy(kind, source, target))
        (host if kind is OUT else device)[:, :, target] = (host if kind is IN else device)[:, :, source]
    blocks.copy(copies)
    assert np.array_equal(blocks.device, device)
    assert np.array_equal(blocks.host, host)
