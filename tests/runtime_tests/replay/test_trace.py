"""Traces: what a server writes is what a replay reads, and a bad file says where it is bad."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.domain import Event, FinishReason, Request, SamplingParams, SchedulerConfig
from octavo_runtime.replay import (
    ReplayRequest,
    StepTimeModel,
    Trace,
    TraceError,
    TraceHeader,
    TraceLine,
    TraceWriter,
    read_trace,
    replay_requests,
)

BLOCK = 8
HEADER = TraceHeader(
    octavo_trace=1,
    block_size=BLOCK,
    num_blocks=100,
    max_model_len=512,
    scheduler=SchedulerConfig(policy="slo", max_num_seqs=7),
    num_host_blocks=5,
    step_time=StepTimeModel(base=0.001),
)


def request(
    name: str, tokens: tuple[int, ...], *, arrival: float = 10.0, salt: str = "", **sampling: object
) -> Request:
    params = SamplingParams(seed=0, **{"max_tokens": 100, **sampling})  # type: ignore[arg-type]  # tests pass fields by name
    return Request(name, tokens, params, arrival, cache_salt=salt)


def written(*answered: tuple[Request, tuple[int, ...]], now: float = 10.0) -> str:
    """The trace of requests with one answer each."""
    file = io.StringIO()
    writer = TraceWriter(file, HEADER, now)
    for asked, output in answered:
        writer.begin(asked)
        for token in output[:-1]:
            writer.event(Event(asked.request_id, (token,)), asked.arrival + 1)
        writer.event(Event(asked.request_id, output[-1:], FinishReason.STOP, output[-1]), asked.arrival + 2)
    return file.getvalue()


def read(text: str, folder: Path) -> Trace:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return read_trace(path)


def test_trace_round_trip(tmp_path: Path) -> None:
    file = io.StringIO()
    writer = TraceWriter(file, HEADER, 10.0)
    asked = request("a", tuple(range(20)), arrival=12.5, n=2, best_of=3, max_tokens=40)
    writer.begin(asked)
    writer.event(Event("a", (), num_cached_tokens=16), 13.0)
    writer.event(Event("a", (1, 2, 3), FinishReason.STOP, 3, choice=0), 14.0)
    writer.event(Event("a", (4,), FinishReason.LENGTH, choice=1), 14.25)
    trace = read(file.getvalue(), tmp_path)
    assert trace.header == HEADER
    (line,) = trace.lines
    assert line == TraceLine(
        arrival=2.5,
        prompt=20,
        outputs=(3, 1),
        max_tokens=40,
        finished=4.25,
        first_token=4.0,
        cached=16,
        finish=("stop", "length"),
        best_of=3,
        hashes=line.hashes,
    )
    assert len(line.hashes) == 20 // BLOCK


def test_trace_has_neither_text_nor_tokens(tmp_path: Path) -> None:
    text = written((request("client-7", tuple(range(40_000, 40_033))), tuple(range(41_000, 41_010))))
    assert "client-7" not in text
    assert "400" not in text.replace(text.split('"hashes"')[1], "")
    assert read(text, tmp_path).lines[0].prompt == 33


def test_trace_hashes_cannot_be_looked_up_in_another_trace(tmp_path: Path) -> None:
    asked = request("a", tuple(range(32)))
    first, second = (read(written((asked, (1, 2))), tmp_path).lines[0].hashes for _ in range(2))
    assert set(first).isdisjoint(second)


def test_trace_times_begin_with_the_trace(tmp_path: Path) -> None:
    line = read(written((request("a", (1, 2), arrival=11.0), (3, 4)), now=10.5), tmp_path).lines[0]
    assert (line.arrival, line.first_token, line.finished) == (0.5, 1.5, 2.5)


def test_trace_is_in_order_of_arrival(tmp_path: Path) -> None:
    text = written((request("b", (1,), arrival=20.0), (2, 3)), (request("a", (1,), arrival=15.0), (2, 3)))
    assert [line.arrival for line in read(text, tmp_path).lines] == [5.0, 10.0]


def test_trace_ignores_what_comes_after_an_answers_end(tmp_path: Path) -> None:
    file = io.StringIO()
    writer = TraceWriter(file, HEADER, 10.0)
    writer.begin(request("a", (1, 2, 3), n=2))
    writer.event(Event("a", (5, 6), FinishReason.STOP, choice=1), 11.0)
    writer.event(Event("a", (7,), FinishReason.LENGTH, choice=1), 11.5)
    writer.event(Event("a", (5,), FinishReason.STOP, choice=0), 12.0)
    (line,) = read(file.getvalue(), tmp_path).lines
    assert (line.outputs, line.finish) == ((1, 2), ("stop", "stop"))


def test_trace_request_that_nobody_waits_for(tmp_path: Path) -> None:
    file = io.StringIO()
    writer = TraceWriter(file, HEADER, 10.0)
    writer.begin(request("a", (1, 2, 3), n=2))
    writer.event(Event("a", (5,), FinishReason.STOP, 5, choice=1), 11.0)
    writer.abort("a", 12.0)
    writer.abort("a", 13.0)
    writer.event(Event("a", (5,), choice=0), 14.0)
    (line,) = read(file.getvalue(), tmp_path).lines
    assert (line.outputs, line.finish, line.finished) == ((0, 1), ("abort", "stop"), 2.0)


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6 * BLOCK), min_size=2, max_size=6),
    salts=st.lists(st.sampled_from(["", "x"]), min_size=6, max_size=6),
    outputs=st.lists(st.integers(1, 20), min_size=6, max_size=6),
)
def test_replay_shares_the_prefixes_that_were_shared(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], salts: list[str], outputs: list[int]
) -> None:
    asked = [
        request(str(number), tuple(token for token in prompt), arrival=10.0 + number, salt=salt)
        for number, (prompt, salt) in enumerate(zip(prompts, salts, strict=False))
    ]
    text = written(*((each, (9,) * output) for each, output in zip(asked, outputs, strict=False)))
    replayed = replay_requests(read(text, tmp_path_factory.mktemp("trace")), longest=512)
    for first, its_replay in zip(asked, replayed, strict=True):
        for second, other_replay in zip(asked, replayed, strict=True):
            before = (first.prompt_token_ids, second.prompt_token_ids)
            after = (its_replay.request.prompt_token_ids, other_replay.request.prompt_token_ids)
            full = min(map(len, before)) // BLOCK
            shared = 0 if first.cache_salt != second.cache_salt else _shared_blocks(*before, full)
            assert _shared_blocks(*after, full) == shared


def _shared_blocks(first: tuple[int, ...], second: tuple[int, ...], full: int) -> int:
    return next((b for b in range(full) if first[: (b + 1) * BLOCK] != second[: (b + 1) * BLOCK]), full)


def test_replay_next_turn_begins_with_the_last_answer(tmp_path: Path) -> None:
    question, answer = tuple(range(100, 112)), tuple(range(200, 215))
    turn = request("b", (*question, *answer, 300), arrival=20.0)
    first, second = replay_requests(
        read(written((request("a", question), answer), (turn, (1,))), tmp_path), longest=512
    )
    conversation = (*first.request.prompt_token_ids, *first.output_token_ids)
    assert second.request.prompt_token_ids[:24] == conversation[:24]


def lengths(replay: ReplayRequest) -> tuple[int, ...]:
    return replay.output_lengths


def make_trace(**fields: object) -> Trace:
    line = TraceLine(**{"arrival": 6.0, "prompt": 20, "outputs": (5,), "max_tokens": 50, "finished": 9.0, **fields})  # type: ignore[arg-type]  # tests pass fields by name
    return Trace(HEADER, (line,))


def test_replay_requests_keep_what_was_asked() -> None:
    trace = make_trace(outputs=(5, 9), best_of=3, priority=4)
    (replay,) = replay_requests(trace, longest=512, rate_scale=2.0)
    sampling = replay.request.sampling
    assert (replay.request.arrival, replay.request.priority) == (3.0, 4)
    assert (sampling.n, sampling.best_of, sampling.max_tokens) == (2, 3, 50)
    assert lengths(replay) == (5, 9, 5)


def test_replay_requests_of_an_answer_without_tokens_have_one() -> None:
    assert lengths(replay_requests(make_trace(outputs=(0,)), longest=512)[0]) == (1,)


@pytest.mark.parametrize(("longest", "max_tokens"), [(512, 50), (60, 40), (22, 5)])
def test_replay_requests_cut_max_tokens_to_what_fits_but_not_the_answer(longest: int, max_tokens: int) -> None:
    assert replay_requests(make_trace(), longest=longest)[0].request.sampling.max_tokens == max_tokens


GOOD = '{"arrival":1,"prompt":20,"outputs":[5],"max_tokens":50,"finished":2}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 3: Input data was truncated"),
        ('{"arrival":1}', "line 3: Object missing required field `prompt`"),
        (GOOD.replace("20", '"20"'), "line 3: Expected `int`, got `str` - at `$.prompt`"),
        (GOOD.replace("20", "0"), "line 3: Expected `int` >= 1 - at `$.prompt`"),
        (GOOD.replace("[5]", "[]"), "line 3: Expected `array` of length >= 1"),
        (GOOD.replace("[5]", "[51]"), "line 3: an output of 51 tokens, but max_tokens is 50"),
        (GOOD.replace("50", "500"), "together more than the model's 512"),
        (GOOD[:-1] + ',"hashes":["nothex"]}', "line 3: Expected `str` matching regex"),
        (GOOD[:-1] + f',"hashes":{json.dumps(["0" * 16] * 4)}}}', "line 3: 4 hashes, but 25 tokens fill 3 blocks"),
    ],
)
def test_read_trace_names_the_line_that_is_wrong(tmp_path: Path, line: str, said: str) -> None:
    header = written((request("a", (1,)), (2,))).splitlines()[0]
    with pytest.raises(TraceError) as error:
        read(f"{header}\n{GOOD}\n{line}\n{GOOD}\n", tmp_path)
    assert said in str(error.value)
    assert str(tmp_path / "trace.jsonl") in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no header"),
        ("hello\n", "line 1: no header"),
        ('{"octavo_trace": 2}\n', "version 2; this Octavo reads version 1"),
        ('{"octavo_trace": 1, "block_size": 16}\n', "line 1: Object missing required field"),
    ],
)
def test_read_trace_refuses_what_is_no_trace(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError) as error:
        read(text, tmp_path)
    assert said in str(error.value)


def test_read_trace_without_requests_or_file(tmp_path: Path) -> None:
    header = written((request("a", (1,)), (2,))).splitlines()[0]
    with pytest.raises(TraceError, match="no requests"):
        read(header + "\n", tmp_path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")


def test_read_trace_ignores_the_line_in_which_a_server_died(tmp_path: Path) -> None:
    text = written((request("a", (1,)), (2,)), (request("b", (1,)), (2,)))
    assert len(read(text[:-10], tmp_path).lines) == 1
