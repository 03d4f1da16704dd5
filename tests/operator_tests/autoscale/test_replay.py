"""Recorded, written down, read again and decided again: whatever came in, each decision is the same to the last bit."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core import ring as ring_module
from octavo_operator.autoscale.core.decide import decide, start
from octavo_operator.autoscale.core.recording import (
    VERSION,
    Heading,
    RecordingInvalid,
    Round,
    line_of,
    read_recording,
)
from octavo_operator.autoscale.core.replay import first_difference, replay, replay_with
from octavo_operator.autoscale.core.ring import GROUP, LOOSE_BYTES, ROUNDS, Ring
from octavo_operator.autoscale.core.values import Pod, Sample, Settings

HEADING = Heading(VERSION, "team-a", "chat", "0.1.0")
SETTINGS = Settings(min_replicas=1, max_replicas=10)
BEGAN = datetime(2026, 12, 1, 12, tzinfo=UTC)
MUCH = 2**30

Inputs = tuple[float, Settings, int, tuple[Pod, ...]]
"""Seconds since the round before, settings, replicas, pods."""


def recorded(inputs: Sequence[Inputs], *, most: int = MUCH, acts: bool = True, began: float = 100.0) -> list[str]:
    """The lines of a recording, made as the autoscaler makes it."""
    ring, now = Ring(), began
    state = start(inputs[0][1], now)
    for seconds, settings, desired, pods in inputs:
        now += seconds
        before = state
        decision, state = decide(settings, before, pods, desired, now)
        made = Round(BEGAN + timedelta(seconds=now), now, acts, desired, settings, pods, decision, None)
        ring.add(made, before, most)
    return [line_of(HEADING).decode(), *b"".join(ring.text()).decode().splitlines(keepends=True)]


def loaded(load: Sequence[float], desired: int | Sequence[int], settings: Settings = SETTINGS) -> list[Inputs]:
    """A round each five seconds; two pods run each so much of their slots, and end as much as they run."""
    inputs, done, now = [], 0.0, 100.0
    for number, x in enumerate(load):
        now += 5.0
        done += x * 50
        sample = Sample(now, x * settings.slots, 0.0, 0.0, done, done * 100, 0.0)
        pods = tuple(Pod(f"uid-{pod}", 0.0, 60.0, sample=sample) for pod in range(2))
        inputs.append((5.0, settings, desired if isinstance(desired, int) else desired[number], pods))
    return inputs


@dataclass(frozen=True)
class Step:
    """What happens to a pod from one round to the next. Counters grow by so much; a pod that restarts begins anew."""

    ready: bool
    leaving: bool
    answers: bool
    restarts: bool
    running: float
    waiting: float
    cache_usage: float
    finished: float
    refused: float


steps = st.builds(
    Step,
    ready=st.integers(0, 5).map(bool),
    leaving=st.integers(0, 5).map(lambda number: number == 0),
    answers=st.integers(0, 5).map(bool),
    restarts=st.integers(0, 9).map(lambda number: number == 0),
    running=st.floats(0, 64),
    waiting=st.floats(0, 100),
    cache_usage=st.floats(0, 1),
    finished=st.floats(0, 300),
    refused=st.floats(0, 50),
)
settings = st.builds(
    Settings,
    min_replicas=st.integers(1, 3),
    max_replicas=st.integers(3, 40),
    target_cache=st.integers(1, 100).map(lambda percent: percent / 100),
    target_queue=st.integers(1, 10).map(float),
    stabilization=st.integers(0, 60).map(float),
    slots=st.sampled_from([4, 64]),
)
rounds = st.tuples(st.floats(0, 20), settings, st.integers(0, 12), st.lists(steps, min_size=1, max_size=3))


def played(moments: Sequence[tuple[float, Settings, int, Sequence[Step]]]) -> list[Inputs]:
    """The inputs that come of it when things happen in this order."""
    inputs: list[Inputs] = []
    known: dict[int, Sample] = {}
    now = 100.0
    for seconds, wanted, desired, happens in moments:
        now += seconds
        for number, step in enumerate(happens):
            last = known.get(number)
            if step.answers:
                more = step.finished, step.finished * 97.3, step.refused
                before = (
                    (0.0, 0.0, 0.0) if last is None or step.restarts else (last.finished, last.generated, last.refused)
                )
                counters = (one + another for one, another in zip(before, more, strict=True))
                known[number] = Sample(now - 0.1 / 3, step.running, step.waiting, step.cache_usage, *counters)
        pods = tuple(
            Pod(f"uid-{number}", 1e9 / 3, 1e9 / 3 + 40.1 if step.ready else None, step.leaving, known.get(number))
            for number, step in enumerate(happens)
        )
        inputs.append((seconds, wanted, desired, pods))
    return inputs


@given(st.lists(rounds, min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 8000))
def test_replay_of_any_inputs_is_the_same_bit_for_bit(
    moments: list[tuple[float, Settings, int, list[Step]]], group: int, most: int
) -> None:
    inputs = played(moments)
    with mock.patch.object(ring_module, "GROUP", group):
        heading, read = read_recording(recorded(inputs, most=most))
    _, whole = read_recording(recorded(inputs))
    assert heading == HEADING
    assert [replace(one, state=None) for one in read] == [replace(one, state=None) for one in whole[-len(read) :]]
    assert first_difference(replay(read)) is None


def test_replay_of_another_decision_names_the_first_difference() -> None:
    _, read = read_recording(recorded(loaded([0.5] * 8, 2)))
    wrong = replace(read[3].decision, demand=read[3].decision.demand * (1 + 2**-52), kept=7)
    read[3:5] = replace(read[3], decision=wrong), replace(read[4], decision=replace(wrong, replicas=9))
    difference = first_difference(replay(read))
    assert difference is not None
    assert (difference.number, difference.time, difference.field) == (4, read[3].time, "demand")
    assert (difference.recorded, difference.replayed) == (wrong.demand, wrong.demand / (1 + 2**-52))


def test_replay_with_goes_on_from_its_own_number() -> None:
    # Half idle for two minutes: less was enough for 30 s at first, and for as long as it lasts with more patience.
    patient = replace(SETTINGS, stabilization=30.0)
    inputs = loaded([0.2] * 24, [2] * 7 + [1] * 17, patient)
    _, read = read_recording(recorded(inputs))
    assert [one.decision.replicas for one in read][5:] == [1] * 19
    made = replay_with(read, {"stabilization": 90.0})
    assert [one.decision.replicas for one in made] == [2] * 17 + [1] * 7
    assert [one.desired for one in made] == [2] * 18 + [1] * 6


def test_replay_with_heeds_who_else_sets_replicas() -> None:
    _, read = read_recording(recorded(loaded([0.9] * 6, [2, 2, 2, 5, 5, 5])))
    made = replay_with(read, {"max_replicas": 2})
    assert [one.desired for one in made][3] == 5
    assert [one.decision.replicas for one in made] == [2] * 6


def test_replay_with_where_nothing_was_written_starts_from_what_was_there() -> None:
    _, read = read_recording(recorded(loaded([1.0] * 6, 1), acts=False))
    made = replay_with(read, {"max_replicas": 8})
    assert all(one.decision.replicas > 1 for one in made)
    assert [one.desired for one in made] == [1] * 6


def test_replay_of_inputs_that_cannot_be_is_refused() -> None:
    _, read = read_recording(recorded(loaded([0.5] * 3, 2)))
    read[1] = replace(read[1], settings=replace(SETTINGS, target_cache=0.0))
    with pytest.raises(RecordingInvalid, match="decision 2, 12:01:50, has inputs that no operator decides on"):
        replay(read)


def test_ring_keeps_the_latest_within_its_bounds() -> None:
    inputs = loaded([0.5] * (GROUP * 5), 2)
    text = recorded(inputs)
    assert len(text) == 1 + len(inputs)
    size = len("".join(text))
    ring = Ring()
    state = start(SETTINGS, 0.0)
    _, read = read_recording(text)
    for one in read:
        ring.add(one, state, 12_000)
        assert ring.size <= max(12_000, LOOSE_BYTES + 12_000)
    kept = b"".join(ring.text())
    assert read[-1] == read_recording([text[0], *kept.decode().splitlines(keepends=True)])[1][-1]
    assert len(kept) < size / 2
    for _ in range(ROUNDS // GROUP):
        for one in read[:GROUP]:
            ring.add(one, state, MUCH)
    assert len(b"".join(ring.text()).splitlines()) == ROUNDS


def test_ring_text_is_of_the_moment_it_was_asked_for() -> None:
    _, read = read_recording(recorded(loaded([0.5] * 70, 2)))
    ring = Ring()
    for one in read[:50]:
        ring.add(one, start(SETTINGS, 0.0), MUCH)
    text = ring.text()
    for one in read[50:]:
        ring.add(one, start(SETTINGS, 0.0), 0)
    assert len(b"".join(text).splitlines()) == 50


@given(st.integers(0, 10**6), st.sampled_from(["0", "-1.0", "1e308", "-1e308", "5e-324", "1e999", "7", "null", "[]"]))
def test_replay_of_a_damaged_number_is_decided_or_refused(at: int, value: str) -> None:
    lines = recorded(loaded([0.5, 0.9, 1.0, 1.0], 2))
    number = 1 + at % 4
    found = list(re.finditer(r"(?<=[:\[,])-?\d+(\.\d+)?(?=[,\]}])", lines[number]))
    token = found[at % len(found)]
    lines[number] = lines[number][: token.start()] + value + lines[number][token.end() :]
    with suppress(RecordingInvalid):
        _, read = read_recording(lines)
        first_difference(replay(read))
        replay_with(read, {"max_replicas": 20})


LINES = recorded(loaded([0.5] * 3, 2))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "it is empty"),
        (["<html>\n"], "its first line is not that of a recording"),
        (LINES[1:], "its first line is not that of a recording"),
        ([LINES[0].replace(":3,", ":4,"), *LINES[1:]], "it is of version 4 and this program reads 3: use"),
        ([LINES[0].replace("team-a", '","x":"'), *LINES[1:]], "line 1: this program knows no field x"),
        (LINES[:1], "it holds no decision yet"),
        ([LINES[0], *LINES[2:]], "line 2 has no state: the lines before it were cut off"),
        ([*LINES[:3], LINES[3][:-40]], "it breaks off in line 4: ask for it again, or delete that line"),
        ([*LINES[:3], LINES[3][:-40] + "\n"], "line 4 is no JSON"),
        ([*LINES[:2], "\n", LINES[3]], "line 3 is no JSON"),
        ([LINES[0], LINES[1], LINES[3], LINES[2]], "line 4 is earlier than the line before it"),
        ([*LINES[:3], LINES[3].replace('"uid":"uid-0",', "", 1)], "line 4: pods.0.uid: Field required"),
        ([*LINES[:3], LINES[3].replace('"leaving"', '"colour":1,"leaving"', 1)], "knows no field pods.0.colour: use"),
        ([*LINES[:3], LINES[3].replace('"Enough"', '"Because"')], "line 4: decision.verdict: Input should be"),
        ([*LINES[:3], LINES[3].replace('"desired":2', '"desired":2.5')], "line 4: desired: Input should be a valid integer"),
        ([*LINES[:3], LINES[3].replace('"desired":2', '"desired":"2"')], "line 4: desired: Input should be a valid integer"),
        ([*LINES[:3], "7\n"], "line 4: the line: Input should be"),
    ],
)  # fmt: skip
def test_read_recording_of_what_is_none_says_why(lines: list[str], told: str) -> None:
    with pytest.raises(RecordingInvalid) as refused:
        read_recording(lines)
    assert told in str(refused.value)
