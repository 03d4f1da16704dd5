"""Events to choices: order, stop strings, counts and what is told to engine, metrics, queue and trace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.domain import EngineConfig, EngineInfo, Event, FinishReason, Request, SamplingParams
from octavo_runtime.ipc.client import Arrival, EngineClient
from octavo_runtime.replay.trace import read_trace
from octavo_runtime.server.generation import Generation
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.server.queue import Queue
from octavo_runtime.server.recording import Recording
from octavo_runtime.testing import EOS, ids, write_model
from octavo_runtime.text.tokenizer import Tokenizer

STOP, LENGTH, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR


class Client:
    """Sends events, one a second, so many at once, and keeps what it is told."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.at_once = 1
        self.aborted: list[tuple[str, int | None]] = []
        self.num_open = 0

    async def stream(self, requests: Sequence[Request]) -> AsyncGenerator[list[Arrival]]:
        del requests
        arrivals = [Arrival(event, float(at)) for at, event in enumerate(self.events, start=1)]
        for start in range(0, len(arrivals), self.at_once):
            yield arrivals[start : start + self.at_once]
        raise AssertionError("the generation waits for more than there is")

    def abort(self, request_id: str, choice: int | None = None) -> None:
        self.aborted.append((request_id, choice))


class Case:
    """One call for `prompts` prompts of two tokens."""

    def __init__(self, folder: Path, events: Sequence[Event], *, prompts: int = 1, **sampling: Any) -> None:
        params = SamplingParams(**{"max_tokens": 9, **sampling})
        self.requests = [Request(f"r{number}", ids("hi"), params) for number in range(prompts)]
        self.client = Client(events)
        client: EngineClient = self.client  # type: ignore[assignment] # of the same shape
        self.metrics = Metrics("tiny", client, max_num_queued_reqs=9)
        self.queue = Queue()
        self.recording = Recording(None)
        self.generation = Generation(
            self.requests,
            client=client,
            tokenizer=Tokenizer(write_model(folder)),
            metrics=self.metrics,
            queue=self.queue,
            recording=self.recording,
        )
        self.texts = [""] * len(self.generation.answers)
        self.ends: dict[int, tuple[FinishReason, object]] = {}

    async def run(self) -> Case:
        with self.queue.holding(self.requests):
            async for deltas in self.generation.deltas():
                for answer, delta in deltas:
                    self.texts[answer.index] += delta.text
                    if delta.finish_reason is not None:
                        self.ends[answer.index] = (delta.finish_reason, delta.stop_reason)
        return self

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model_name": "tiny", **labels})


def news(request: int, choice: int, text: str, reason: FinishReason | None = None, **more: Any) -> Event:
    return Event(f"r{request}", ids(text), reason, choice=choice, **more)


@pytest.mark.parametrize("at_once", [1, 3, 4])
async def test_deltas_choices_are_prompt_major(tmp_path: Path, at_once: int) -> None:
    events = [news(1, 0, "c", LENGTH), news(0, 1, "b", LENGTH), news(1, 1, "d", LENGTH), news(0, 0, "a", LENGTH)]
    case = Case(tmp_path, events, prompts=2, n=2)
    case.client.at_once = at_once
    await case.run()
    assert case.texts == ["a", "b", "c", "d"]


@pytest.mark.parametrize("at_once", [1, 5])
async def test_deltas_a_stop_string_ends_its_own_choice_only(tmp_path: Path, at_once: int) -> None:
    events = [
        news(0, 0, "ab"),
        news(0, 1, "ax"),
        news(0, 0, "!zz"),
        news(0, 0, "late"),  # was on its way
        news(0, 1, "y!", LENGTH),  # the engine ended it: nothing to tell it
    ]
    case = Case(tmp_path, events, n=2, stop=("!",))
    case.client.at_once = at_once
    await case.run()
    assert case.texts == ["ab", "axy"]
    assert case.ends == {0: (STOP, "!"), 1: (STOP, "!")}
    assert case.client.aborted == [("r0", 0)]
    assert [answer.num_tokens for answer in case.generation.answers] == [3, 4]


async def test_usage_counts_a_prompt_once_and_all_answers(tmp_path: Path) -> None:
    events = [
        news(0, 0, "aaa", LENGTH, num_cached_tokens=1),
        news(0, 1, "bb", LENGTH, num_cached_tokens=1),
        Event("r1", (*ids("c"), EOS), STOP, EOS, choice=1),
        news(1, 0, "d", LENGTH),
    ]
    case = await Case(tmp_path, events, prompts=2, n=2).run()
    assert case.generation.usage() == {
        "prompt_tokens": 4,
        "completion_tokens": 8,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_metrics_count_a_request_once_and_its_answers_each(tmp_path: Path) -> None:
    events = [news(0, 0, "a"), news(0, 1, "b"), news(0, 0, "a", LENGTH), news(0, 1, "b", LENGTH)]
    case = await Case(tmp_path, events, n=2).run()
    assert case.count("vllm:time_to_first_token_seconds_count") == 1
    assert case.count("vllm:prompt_tokens_total") == 2
    assert case.count("vllm:generation_tokens_total") == 4
    assert case.count("vllm:inter_token_latency_seconds_sum") == 4, "from 1 to 3 and from 2 to 4"
    assert case.count("vllm:request_success_total", finished_reason="length") == 2
    assert case.count("vllm:e2e_request_latency_seconds_count") == 2


async def test_queue_hears_of_the_first_token(tmp_path: Path) -> None:
    case = Case(tmp_path, [news(0, 1, "b"), news(0, 0, "a", LENGTH), news(0, 1, "b", LENGTH)], n=2)
    with case.queue.holding(case.requests):
        assert len(case.queue) == 1
        assert [len(case.queue) async for _ in case.generation.deltas()] == [0, 0, 0]


async def test_deltas_left_early_counts_the_rest_as_aborted(tmp_path: Path) -> None:
    case = Case(tmp_path, [news(0, 0, "a", LENGTH), news(0, 1, "b")], n=3)
    deltas = case.generation.deltas()
    assert [answer.index for answer, _ in await anext(deltas)] == [0]
    await deltas.aclose()
    assert case.count("vllm:request_success_total", finished_reason="length") == 1
    assert case.count("vllm:request_success_total", finished_reason="abort") == 2


async def test_recording_has_lengths_and_ends_and_no_text(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    events = [
        news(0, 0, "ab!"),
        news(1, 0, "xyz", LENGTH),
        news(0, 1, "cdef", LENGTH),
        Event("r1", finish_reason=ERROR, error="why", choice=1),
    ]
    case = Case(tmp_path, events, prompts=2, n=2, stop=("!",))
    case.recording = case.generation._recording = Recording(file)
    info = EngineInfo(512, 257, (EOS,), 256, 16, "cpu", "float32", "float32")
    case.recording.loaded(info, EngineConfig("tiny"))
    await case.run()
    case.recording.close()
    trace = read_trace(file)
    assert (trace.header.num_blocks, trace.header.max_model_len) == (256, 512)
    assert {(line.prompt, line.outputs, line.finish) for line in trace.lines} == {
        (2, (3, 4), ("stop", "length")),
        (2, (3, 0), ("length", "error")),
    }


async def test_recording_gives_up_on_a_full_disk_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(tmp_path, [news(0, 0, "ab", LENGTH), news(1, 0, "cd", LENGTH)], prompts=2)
    case.recording = case.generation._recording = Recording(Path("/dev/full"))
    info = EngineInfo(512, 257, (EOS,), 256, 16, "cpu", "float32", "float32")
    case.recording.loaded(info, EngineConfig("tiny"))
    assert (await case.run()).texts == ["ab", "cd"]
    assert "no more is recorded in /dev/full: No space left" in caplog.text
    case.recording.close()
