"""The engine on random weights: its share of what memory and arithmetic allow, graphs on and off, the host's time."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from bench.gpu.machine import Machine, events
from bench.gpu.model import write_model
from bench.gpu.results import Results
from bench.workloads import workload
from octavo_runtime.domain import (
    INT8_WEIGHTS,
    EngineConfig,
    EngineInfo,
    Request,
    SamplingParams,
    SchedulerConfig,
    StepPlan,
    StepResult,
)
from octavo_runtime.engine.decode_graphs import CudaDevice, GraphDevice
from octavo_runtime.engine.executor import Executor, load_executor
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.engine.testing import RecordingDevice
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.spec import DecoderSpec, read_spec
from octavo_runtime.loading.weight_map import weight_map

__all__ = ["run_engine", "run_host", "run_quantised"]

STREAMS = (1, 8, 64)
_GREEDY = {"temperature": 0.0, "seed": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was computed, with the times when it began and ended."""

    plan: StepPlan
    began: float
    ended: float


class _Recording:
    """An executor, and what it was told to do."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.steps: list[_Step] = []

    @property
    def info(self) -> EngineInfo:
        return self._executor.info

    def execute(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        result = self._executor.execute(plan)
        self.steps.append(_Step(plan, began, time.perf_counter()))
        return result


class _Timed:
    """A GraphDevice that keeps how long each replay takes on the device.

    Attributes:
        replays: Since it was last cleared: how to learn the seconds that one took, once all has ended.
    """

    def __init__(self, device: GraphDevice, *, dry: bool) -> None:
        self._device = device
        self._dry = dry
        self.replays: list[Callable[[], float]] = []

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = self._device.capture(work)

        def replay() -> None:
            if self._dry:
                began = time.perf_counter()
                graph()
                seconds = time.perf_counter() - began
                self.replays.append(lambda: seconds)
                return
            begin, end = events()
            begin.record()
            graph()
            end.record()
            self.replays.append(lambda: begin.elapsed_time(end) / 1000)

        return replay

    def send(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        return self._device.send(numbers)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An engine, and what it was loaded with.

    Attributes:
        executor: The engine's.
        config: What it was loaded with.
        spec: The model, whose head is its embedding.
        numbers: Its weights, however they are held.
    """

    executor: TorchExecutor
    config: EngineConfig
    spec: DecoderSpec
    numbers: int

    def generate(self, requests: Sequence[Request], executor: Executor | None = None) -> _Answers:
        """All answers to requests that come at once."""
        recording = _Recording(executor or self.executor)
        core = EngineCore(recording, self.config)
        for request in requests:
            core.add(request)
        tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        while core.has_work:
            for event in core.step().events:
                if event.error:
                    raise RuntimeError(f"{event.request_id}: {event.error}")
                tokens[event.request_id] += event.token_ids
        seconds = time.perf_counter() - began
        gc.enable()
        short = [r.request_id for r in requests if len(tokens[r.request_id]) != r.sampling.max_tokens]
        if short:
            raise RuntimeError(f"{len(short)} answers are short, the first is {short[0]}")
        return _Answers(tokens, seconds, recording.steps)

    def roofline(self, step: _Step, machine: Machine) -> float:
        """Seconds that a step must take: its bytes at the speed of a copy, or its products at that of a large one.

        A step reads all weights once, and the KV of each sequence's context; each token costs two operations for each
        weight of the layers, and each row that samples two for each of the head. Of an embedding beside a quantised
        head it reads next to nothing.
        """
        sequences = step.plan.sequences
        context = sum(each.num_computed + len(each.token_ids) for each in sequences)
        info = self.executor.info
        head = self.spec.vocab_size * self.spec.hidden_size
        beside = head * (4 if info.dtype == "float32" else 2) if self.config.quantization in INT8_WEIGHTS else 0
        rows = sum(1 for each in sequences if each.num_samples)
        moved = info.weights_bytes - beside + context * info.block_bytes / info.block_size
        operations = 2 * ((self.numbers - head) * step.plan.num_tokens + head * rows)
        return max(moved / machine.bandwidth, operations / machine.peak)


@dataclass(frozen=True, slots=True)
class _Answers:
    """What an engine answered.

    Attributes:
        tokens: By request.
        seconds: From the first step to the last token.
        steps: In order.
    """

    tokens: dict[str, list[int]]
    seconds: float
    steps: list[_Step]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests."""
        return sum(map(len, self.tokens.values())) / self.seconds


def run_engine(machine: Machine, results: Results, folder: Path) -> None:
    """Streams of one length, then the nano workload, each beside its roofline."""
    results.limit(machine.limits())
    engine = _load(machine, results, folder)
    for streams in STREAMS[:1] if machine.dry else STREAMS:
        requests = _streams(machine, streams)
        if streams == STREAMS[0] and not machine.dry:
            engine.generate(requests)  # whatever happens once happens now
        _tell(f"streams_{streams}", engine, engine.generate(requests), machine, results)
    nano = workload("nano")
    pairs = list(zip(nano.prompts.tolist(), nano.outputs.tolist(), strict=True))
    rng = random.Random(0)
    requests = [
        Request(
            f"nano-{number}",
            tuple(rng.randrange(3, 10_000) for _ in range(prompt)) if not machine.dry else (3,) * (prompt % 9 + 1),
            # As the benchmark that the workload is of: drawn at 0.6.
            SamplingParams(
                temperature=0.6, seed=number, ignore_eos=True, max_tokens=output if not machine.dry else output % 2 + 1
            ),
        )
        for number, (prompt, output) in enumerate(pairs[:2] if machine.dry else pairs)
    ]
    _tell("nano", engine, engine.generate(requests), machine, results)


def run_quantised(machine: Machine, results: Results, folder: Path) -> None:
    """Streams of one length with weights in eight bits."""
    results.limit(machine.limits())  # while there is memory for them
    engine = _load(machine, results, folder, quantization="w8a16")
    for streams in STREAMS[:1] if machine.dry else STREAMS:
        requests = _streams(machine, streams)
        if not machine.dry:
            engine.generate(requests)
        _tell(f"w8a16_streams_{streams}", engine, engine.generate(requests), machine, results)


def run_host(machine: Machine, results: Results, folder: Path) -> None:
    """The same greedy requests with graphs and without: equal tokens, and what the host adds to a step.

    A decode step takes from the end of the one before to its own; what its graph takes on the device is taken off.
    """
    devices: list[_Timed] = []

    def timed(device: torch.device) -> GraphDevice:
        devices.append(_Timed(RecordingDevice() if machine.dry else CudaDevice(device), dry=machine.dry))
        return devices[-1]

    engine = _load(machine, results, folder, timed)
    for streams in STREAMS[:2] if machine.dry else (*STREAMS, 256):
        requests = _streams(machine, streams)
        replays = devices[-1].replays
        for _ in range(1 if machine.dry else 2):  # the first is for whatever happens once
            replays.clear()
            replaying = engine.generate(requests)
        machine.synchronise()
        on_device = iter(replays)
        steps, graphs, hosts = [], [], []
        for before, step in itertools.pairwise(replaying.steps):
            if _decodes(step):
                steps.append(step.ended - before.ended)
                graphs.append(next(on_device)())
                hosts.append(steps[-1] - graphs[-1])
        if len(graphs) != len(replays):
            raise RuntimeError(f"{len(graphs)} steps decode, but {len(replays)} graphs were replayed")
        eager = engine.generate(requests, engine.executor.without_graphs())
        pairs = [pair for name in eager.tokens for pair in zip(replaying.tokens[name], eager.tokens[name], strict=True)]
        results.add(
            {
                f"step_us_{streams}": 1e6 * statistics.median(steps),
                f"graph_us_{streams}": 1e6 * statistics.median(graphs),
                f"host_us_{streams}": 1e6 * statistics.median(hosts),
                f"graphs_equal_tokens_{streams}": sum(left == right for left, right in pairs) / len(pairs),
                f"graphs_speed_up_{streams}": eager.seconds / replaying.seconds,
            }
        )


def _decodes(step: _Step) -> bool:
    """Whether it is a graph's step."""
    sequences = step.plan.sequences
    return bool(sequences) and all(len(each.token_ids) == each.num_samples == 1 for each in sequences)


def _load(
    machine: Machine,
    results: Results,
    folder: Path,
    graph_device: Callable[[torch.device], GraphDevice] | None = None,
    *,
    quantization: str = "none",
) -> _Loaded:
    model = write_model(folder / "model", dry=machine.dry, device=machine.device)
    if machine.dry and graph_device is None:
        graph_device = _recording
    config = EngineConfig(
        str(model),
        device=machine.device.type,
        quantization=quantization,
        kv_cache_dtype="float32" if machine.dry else "auto",  # as a GPU has it, of the weights' type
        max_model_len=64 if machine.dry else 2048,
        kv_cache_memory=1 << 20 if machine.dry else None,
        scheduler=SchedulerConfig(
            max_num_seqs=2 if machine.dry else 256,
            max_num_batched_tokens=8 if machine.dry else 8192,
            admission="max-utilization",
        ),
    )
    began = time.perf_counter()
    executor = load_executor(config, graph_device=graph_device)
    assert isinstance(executor, TorchExecutor), "a GPU's, or the dry run's"
    info = executor.info
    suffix = "" if quantization == "none" else f"_{quantization}"
    results.add(
        {
            f"load_seconds{suffix}": time.perf_counter() - began,
            f"kv_tokens{suffix}": info.num_blocks * info.block_size,
            f"weights_bytes{suffix}": info.weights_bytes,
        }
    )
    results.fact("kernels", info.kernels)
    spec = read_spec(model)
    return _Loaded(executor, config, spec, weight_map(spec, open_checkpoint(model)).num_elements)


def _recording(_device: torch.device) -> GraphDevice:
    return RecordingDevice()


def _streams(machine: Machine, streams: int) -> list[Request]:
    """Prompts that share no prefix, and answers of one length."""
    prompt, output = (2, 3) if machine.dry else (128, 256)
    rng = random.Random(streams)
    count = min(streams, 2) if machine.dry else streams
    vocabulary = 199 if machine.dry else 10_000
    return [
        Request(
            str(number),
            tuple(rng.randrange(3, vocabulary) for _ in range(prompt)),
            SamplingParams(**_GREEDY, max_tokens=output),  # type: ignore[arg-type]  # each name has its own type
        )
        for number in range(count)
    ]


def _tell(name: str, engine: _Loaded, answers: _Answers, machine: Machine, results: Results) -> None:
    least = sum(engine.roofline(step, machine) for step in answers.steps)
    results.add(
        {
            f"{name}_tok_s": answers.tokens_per_second,
            f"{name}_roofline_tok_s": answers.tokens_per_second * answers.seconds / least,
            f"{name}_roofline_share": least / answers.seconds,
            f"{name}_steps": len(answers.steps),
        }
    )
