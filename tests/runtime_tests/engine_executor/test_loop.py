"""The loop around scheduler and executor: what overlaps, what is taken in when, and that nothing depends on it."""

from __future__ import annotations

import gc
import select
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest

from octavo_runtime.domain import (
    EngineConfig,
    Event,
    FinishReason,
    Request,
    SamplingParams,
    SchedulerConfig,
    StepPlan,
    StepResult,
)
from octavo_runtime.engine import loop as module
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.errors import BadFlags, InvalidRequest
from octavo_runtime.ipc.messages import Step
from octavo_runtime.testing import EOS, Script, ScriptedExecutor, ids

GREEDY = SamplingParams(temperature=0, seed=0, max_tokens=4)
LONG = 20.0  # seconds that nothing here takes


class Gated(ScriptedExecutor):
    """Ends a step when it is told to."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def execute(self, plan: StepPlan) -> StepResult:
        self.begun.release()
        assert self.go.acquire(timeout=LONG)
        return super().execute(plan)

    def has_begun(self) -> bool:
        """Waits for the next step's beginning."""
        return self.begun.acquire(timeout=LONG)


def engine(executor: ScriptedExecutor, **scheduler: Any) -> EngineCore:
    return EngineCore(executor, EngineConfig("", scheduler=SchedulerConfig(**scheduler)))


def request(request_id: str, prompt: str = "hi", **sampling: Any) -> Request:
    return Request(request_id, ids(prompt), replace(GREEDY, **sampling))


def scripted(**changes: Any) -> ScriptedExecutor:
    return ScriptedExecutor(Script(reply=ids("abcdefgh"), **changes))


def drain(core: EngineCore) -> list[Event]:
    events: list[Event] = []
    while core.has_work:
        events += core.step().events
    return events


def readable(core: EngineCore, seconds: float) -> bool:
    assert core.step_ended is not None
    return bool(select.select([core.step_ended], [], [], seconds)[0])


def text(events: list[Event], request_id: str, choice: int = 0) -> str:
    own = [event for event in events if (event.request_id, event.choice) == (request_id, choice)]
    assert [event.finish_reason is not None for event in own] == [False] * (len(own) - 1) + [True]
    return bytes(token for event in own for token in event.token_ids).decode()


@pytest.mark.parametrize("ahead", [False, True])
def test_step_answers(ahead: bool) -> None:
    core = engine(scripted(choice_shift=1), async_scheduling=ahead)
    core.add(request("one"))
    core.add(request("three", n=3, max_tokens=3))
    core.add(request("short", max_tokens=1))
    events = drain(core)
    assert text(events, "one") == "abcd"
    assert [text(events, "three", choice) for choice in range(3)] == ["abc", "bcd", "cde"]
    assert text(events, "short") == "a"
    assert core.step() == core.idle() == Step([], 0, core.idle().stats)


def test_step_next_runs_before_events_are_out() -> None:
    executor = Gated(Script(reply=ids("abc")))
    core = engine(executor)
    core.add(request("a"))
    executor.go.release()
    first = core.step()
    assert [event.token_ids for event in first.events] == [ids("a")]
    assert executor.has_begun()
    assert executor.has_begun(), "the second step waits for nobody"
    executor.go.release()
    second = core.step()
    assert [event.token_ids for event in second.events] == [ids("b")]
    assert [plan.sequences[0].feeds for plan in executor.plans] == [False, True]
    executor.go.release(9)
    drain(core)
    assert len(executor.plans) == 4, "max_tokens is known beforehand: no step too many"


def test_step_in_line_is_in_this_thread() -> None:
    class InLine(ScriptedExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            assert threading.current_thread() is threading.main_thread()
            assert not any(sequence.feeds for sequence in plan.sequences)
            return super().execute(plan)

    before = threading.active_count()
    core = engine(InLine(Script(reply=ids("ab"))), async_scheduling=False)
    core.add(request("a"))
    core.begin()
    assert core.seconds_to_plan() == 0
    assert core.step_ended is None
    assert len(drain(core)) == 4
    assert threading.active_count() == before


def test_add_while_a_step_runs_is_part_of_the_next() -> None:
    executor = Gated(Script(reply=ids("abc")))
    core = engine(executor)
    core.add(request("a"))
    core.begin()
    assert executor.has_begun()
    core.add(request("b", "later"))
    executor.go.release(9)
    assert text(drain(core), "b") == "abca"
    second = executor.plans[1].sequences
    assert [(each.request_id, each.feeds) for each in second] == [("a", True), ("b", False)]


def test_abort_while_a_step_runs_brings_no_event() -> None:
    executor = Gated(Script(reply=ids("abc")))
    core = engine(executor)
    core.add(request("a", max_tokens=50))
    core.add(request("b", n=2, max_tokens=3))
    executor.go.release()
    core.step()
    assert executor.has_begun()
    core.abort("a")
    core.abort("b", 1)
    executor.go.release(9)
    events = drain(core)
    assert {(event.request_id, event.choice) for event in events} == {("b", 0)}
    assert core.idle().stats.num_running == 0
    assert core.idle().stats.kv_cache_usage == 0


def test_abort_frees_the_blocks_within_two_steps() -> None:
    """The step that runs, and the one that is planned ahead, may still hold them."""
    executor = Gated(Script(reply=ids("abc")))
    executor.go.release(99)
    core = engine(executor)
    core.add(request("a", max_tokens=50))
    core.add(request("b", n=3, max_tokens=50))
    core.add(request("c", max_tokens=50))
    core.step()
    core.abort("a")
    core.abort("b")
    steps = [core.step() for _ in range(2)]
    assert {event.request_id for step in steps for event in step.events} == {"c"}
    core.abort("c")
    assert not core.step().events
    assert not core.step().events
    assert core.idle().stats.kv_cache_usage == 0


def test_has_work_until_the_last_step_has_ended() -> None:
    executor = Gated(Script(reply=ids("abc")))
    core = engine(executor)
    assert not core.has_work
    core.add(request("a", max_tokens=50))
    core.begin()
    core.abort("a")
    assert core.has_work
    executor.go.release()
    assert core.step().events == []
    assert not core.has_work


def test_step_ended_tells() -> None:
    executor = Gated(Script(reply=ids("abc")))
    core = engine(executor)
    core.add(request("a"))
    assert not readable(core, 0)
    core.begin()
    assert not readable(core, 0)
    executor.go.release()
    assert readable(core, LONG)
    core.step()
    assert not readable(core, 0), "the second step runs"
    executor.go.release(9)
    drain(core)


def test_seconds_to_plan_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("octavo_runtime.engine.loop.time.monotonic", lambda: now[0])

    class Timed(Gated):
        def execute(self, plan: StepPlan) -> StepResult:
            return replace(super().execute(plan), seconds=2.0 if plan.num_tokens > 1 else 0.5)

    executor = Timed(Script(reply=ids("abc")))
    core = engine(executor)
    core.add(request("a", max_tokens=9))
    assert core.seconds_to_plan() == 0, "nothing runs"
    core.begin()
    assert core.seconds_to_plan() == float("inf"), "nothing is known"
    executor.go.release(2)
    core.step()
    core.step()
    # The third runs, a decode of one token as the second was.
    assert core.seconds_to_plan() == pytest.approx(0.45)
    now[0] += 0.2
    assert core.seconds_to_plan() == pytest.approx(0.25)
    now[0] += 0.3
    assert core.seconds_to_plan() < 0
    executor.go.release(99)
    drain(core)
    core.add(request("b", "hi"))
    core.begin()
    assert core.seconds_to_plan() == pytest.approx(1.8), "a prefill of two tokens"
    drain(core)


@pytest.mark.parametrize("ahead", [False, True])
def test_step_raises_what_the_executor_raises_and_tries_again(ahead: bool) -> None:
    class Failing(ScriptedExecutor):
        attempts = 0

        def execute(self, plan: StepPlan) -> StepResult:
            self.attempts += 1
            if self.attempts in {2, 3}:
                raise RuntimeError("a fault")
            return super().execute(plan)

    executor = Failing(Script(reply=ids("abcdef")))
    core = engine(executor, async_scheduling=ahead)
    core.add(request("a"))
    events = core.step().events
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a fault"):
            core.step()
    events += drain(core)
    assert text(events, "a") == "abcd"
    assert len(executor.plans) == 4


def test_step_interrupted_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = scripted()
    core = engine(executor)
    core.add(request("a"))
    assert core._thread is not None
    result = core._thread.result

    def interrupted() -> Any:
        monkeypatch.setattr(core._thread, "result", result)
        raise KeyboardInterrupt

    monkeypatch.setattr(core._thread, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert text(drain(core), "a") == "abcd"
    assert len(executor.plans) == 4, "no step twice"


def test_step_end_of_sequence_costs_one_step() -> None:
    executor = ScriptedExecutor(Script(reply=(*ids("ab"), EOS)))
    core = engine(executor)
    core.add(request("a", max_tokens=50))
    events = drain(core)
    assert events[-1].finish_reason is FinishReason.STOP
    assert len(executor.plans) == 3 + 1


def test_step_that_fails_takes_the_next_one_with_it() -> None:
    class Failing(Gated):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            if len(self.plans) == 2:
                raise RuntimeError("a fault")
            return result

    executor = Failing(Script(reply=ids("abcdef")))
    core = engine(executor)
    core.add(request("a"))
    executor.go.release(99)
    events = core.step().events
    with pytest.raises(RuntimeError, match="a fault"):
        core.step()
    events += drain(core)
    assert text(events, "a") == "abcd"
    first, failed, again, *rest = executor.plans
    assert failed is again, "the one that was planned after it has not run in its stead"
    assert [plan.sequences[0].num_computed for plan in (first, again, *rest)] == [0, 2, 3, 4]


def test_thread_ends_with_the_engine() -> None:
    executor = scripted()
    core = engine(executor)
    core.add(request("a"))
    drain(core)
    gone = weakref.ref(executor)
    thread = next(thread for thread in threading.enumerate() if thread.name == "executor")
    del core, executor
    gc.collect()
    thread.join(LONG)
    assert not thread.is_alive()
    assert gone() is None, "a thread that lives on would keep the model"


def test_engine_refuses_contradictions() -> None:
    with pytest.raises(BadFlags, match="max_num_batched_tokens"):
        engine(scripted(), max_num_batched_tokens=8)


def test_add_refuses() -> None:
    core = engine(scripted())
    with pytest.raises(InvalidRequest, match="more than the 512"):
        core.add(request("a", max_tokens=511))
    assert not core.has_work


@pytest.mark.parametrize("ahead", [False, True])
def test_resize(ahead: bool) -> None:
    executor = ScriptedExecutor(Script(reply=ids("abc"), num_blocks=40), max_num_blocks=60)
    core = engine(executor, async_scheduling=ahead)
    info = core.resize(8)
    assert (info.num_blocks, info.max_model_len) == (8, 128)
    assert core.has_work, "an idle engine gives its memory back, too"
    drain(core)
    assert [plan.num_blocks for plan in executor.plans] == [8]
    assert core.idle().stats.num_blocks == 8
    with pytest.raises(InvalidRequest, match="more than the 128"):
        core.add(request("a", max_tokens=200))
    assert core.resize(60).max_model_len == 512
    core.add(request("a", max_tokens=5))
    assert text(drain(core), "a") == "abcab"
    for wrong in (0, 61):
        with pytest.raises(ValueError, match="1 to 60 blocks"):
            core.resize(wrong)
    assert core.info.num_blocks == 60


def test_resize_beyond_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    core = engine(ScriptedExecutor(Script(reply=ids("abc"), num_blocks=10), max_num_blocks=60))
    block = core.info.block_bytes
    monkeypatch.setattr(module, "available_memory", lambda: 5 * block)
    with pytest.raises(ValueError, match=f"would take {6 * block} bytes more, and {5 * block} are available"):
        core.resize(16)
    assert core.resize(15).num_blocks == 15
