"""What the engine asks of a GPU's memory and of the host's beside it, with stand-ins for CUDA."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form
from octavo_runtime.domain import EngineConfig, StepPlan, StepResult
from octavo_runtime.engine.decode_graphs import CudaDevice
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.gpu_kv_cache import lock_pages
from octavo_runtime.engine.memory import require_room_on_gpu
from octavo_runtime.engine.torch_executor import largest_step, peak_memory
from octavo_runtime.errors import NotEnoughMemoryForKV
from octavo_runtime.testing import Script, ScriptedExecutor

WriteModel = Callable[..., Path]
INFO = ScriptedExecutor(Script(reply=(1,))).info


class Runtime:
    """CUDA's, which locks what it is told to unless it has a reason not to.

    Attributes:
        locked: Address to bytes.
        status: Of the next call.
    """

    def __init__(self, status: int = 0) -> None:
        self.locked: dict[int, int] = {}
        self.status = status

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802
        self.locked[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0


def test_lock_pages_of_as_many_bytes_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = torch.empty(3, 1000, dtype=torch.float16)
    lock_pages(memory)
    assert runtime.locked == {memory.data_ptr(): 6000}
    del memory
    gc.collect()
    assert not runtime.locked, "given back before the memory is somebody else's"


def test_lock_pages_that_the_host_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(status=2))
    with pytest.raises(
        NotEnoughMemoryForKV, match=r"4096 bytes for KV blocks cannot be locked.*: CUDA error 2"
    ) as caught:
        lock_pages(torch.empty(4096, dtype=torch.int8))
    assert "--swap-space" in caught.value.hint
    assert caught.value.needed == 4096


@given(st.integers(1, 50), st.integers(1, 400), st.integers(1, 70))
def test_largest_step(longest: int, tokens: int, sequences: int) -> None:
    plan = largest_step(INFO, longest, tokens, sequences)
    lengths = [len(each.token_ids) for each in plan.sequences]
    assert len(lengths) == min(sequences, tokens), "as many rows of logits as there can be"
    assert sum(lengths) == min(tokens, len(lengths) * longest)
    assert 1 <= min(lengths) <= max(lengths) <= longest
    assert len({each.number for each in plan.sequences}) == len(lengths)
    assert all(each.num_samples == 1 for each in plan.sequences)
    blocks = -(-longest // INFO.block_size)
    assert all(set(each.block_table) <= set(range(blocks)) for each in plan.sequences)


def test_largest_step_can_be_executed(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "reference")
    form.cache_clear()
    executor = load_executor(EngineConfig(str(write_model()), device="cpu", kv_cache_memory=1 << 16))
    result = executor.execute(largest_step(executor.info, 20, 70, 7))
    form.cache_clear()
    assert len(result.tokens) == 7
    assert not result.failed


def test_peak_memory_is_of_a_thread_like_the_one_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of all that torch's allocator took for the step, not of what was in use at once."""
    threads: list[threading.Thread] = []
    reserved = {"now": 100, "most": 5000}

    class Executor(ScriptedExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            threads.append(threading.current_thread())
            assert reserved["most"] == 100, "what came before counts"
            reserved["most"] = 170
            return super().execute(plan)

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved["now"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: reserved["most"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: reserved.update(most=reserved["now"]))
    assert peak_memory(Executor(Script(reply=(1,))), largest_step(INFO, 20, 30, 3)) == 70
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive(), "torch keeps a thread's handle of cuBLAS for the next one when it has ended"


def test_require_room_on_gpu() -> None:
    require_room_on_gpu(4096, 4096, 1000)
    with pytest.raises(NotEnoughMemoryForKV, match=r"is to take 4097 bytes.* 4096 are left on the GPU") as raised:
        require_room_on_gpu(4097, 4096, 1000)
    assert raised.value.hint == "Use --kv-cache-memory 4000 or less."
    assert (raised.value.needed, raised.value.available) == (4097, 4096)
    for available in (999, -5):
        with pytest.raises(NotEnoughMemoryForKV) as raised:
            require_room_on_gpu(4097, available, 1000)
        assert "--max-num-batched-tokens" in raised.value.hint


class Stream:
    """One of CUDA's: it knows which others it waited for."""

    def __init__(self, device: object) -> None:
        self.device = device
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


class Graph:
    def replay(self) -> None:
        raise AssertionError("nobody replays it")


def test_cuda_device_captures_where_it_has_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All graphs on one stream: for each stream that it ever ran on, cuBLAS keeps a workspace."""
    default = Stream("default")
    streams: list[Stream] = []
    seen: list[object] = []

    def new_stream(device: object) -> Stream:
        streams.append(Stream(device))
        return streams[-1]

    def on(stream: Stream) -> AbstractContextManager[None]:
        assert stream.waited_for[-1] is default, "what was queued before may not be done"
        seen.append(("on", stream))
        return nullcontext()

    def capture(graph: object, pool: object, stream: Stream) -> AbstractContextManager[None]:
        assert isinstance(graph, Graph)
        assert default.waited_for[-1] is stream
        seen.append((pool, stream))
        return nullcontext()

    for name, value in {
        "Stream": new_stream,
        "current_stream": lambda _device: default,
        "stream": on,
        "graph": capture,
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    device = CudaDevice(torch.device("cuda"))
    for _ in range(2):
        replay: Any = device.capture(lambda: seen.append("work"))
        assert isinstance(replay.__self__, Graph)
    (stream,) = streams
    assert seen == [("on", stream), "work", "work", ("pool", stream), "work"] * 2
