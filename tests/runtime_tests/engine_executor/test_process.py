"""The engine's side of the socket: what it takes in while a step runs, and what it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import pytest
import zmq

from octavo_runtime.domain import EngineConfig, Event, FinishReason, Request, SamplingParams, StepPlan, StepResult
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.engine.process import _serve
from octavo_runtime.ipc.messages import Abort, Add, FromEngine, FromServer, Resize, Resized, Step
from octavo_runtime.testing import Script, ScriptedExecutor, ids

SAMPLING = SamplingParams(temperature=0, seed=0)
LONG = 20.0  # seconds that nothing here takes


class Over(Exception):
    """Ends the loop, which knows no end."""


class Gated(ScriptedExecutor):
    """Ends a step when it is told to, and the loop when it is told to."""

    def __init__(self) -> None:
        super().__init__(Script(reply=ids("abc"), num_blocks=20), max_num_blocks=30)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.over = False

    def execute(self, plan: StepPlan) -> StepResult:
        self.begun.release()
        assert self.go.acquire(timeout=LONG)
        if self.over:
            raise Over
        return super().execute(plan)


@dataclass
class Served:
    """An engine's loop in a thread, and the server's end of its socket."""

    executor: Gated
    socket: zmq.Socket[bytes]
    decoder: msgspec.msgpack.Decoder[FromEngine] = field(default_factory=lambda: msgspec.msgpack.Decoder(FromEngine))

    def send(self, *messages: FromServer) -> None:
        for message in messages:
            self.socket.send(msgspec.msgpack.encode(message))

    def receive(self) -> FromEngine:
        assert self.socket.poll(int(1000 * LONG)), "the engine says nothing"
        return self.decoder.decode(self.socket.recv())

    def until(self, met: Callable[[FromEngine], bool]) -> FromEngine:
        while not met(message := self.receive()):
            pass
        return message


@pytest.fixture
def served() -> Iterator[Served]:
    executor = Gated()
    core = EngineCore(executor, EngineConfig(""))
    ended: list[BaseException] = []
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://engine")
        theirs.connect("inproc://engine")

        def serve() -> None:
            try:
                _serve(core, theirs)
            except Over as error:
                ended.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        served = Served(executor, ours)
        yield served
        executor.over = True
        executor.go.release(99)
        served.send(Add(Request("last", ids("hi"), SAMPLING)))
        thread.join(LONG)
        assert ended


def add(request_id: str, *, n: int = 1, max_tokens: int = 3) -> Add:
    return Add(Request(request_id, ids("hi"), replace(SAMPLING, n=n, max_tokens=max_tokens)))


def test_serve_takes_in_what_arrives_while_a_step_runs(served: Served) -> None:
    served.send(add("a"))
    assert served.executor.begun.acquire(timeout=LONG)
    served.send(add("b"))
    # It is there when this is answered, and the first step still runs.
    served.send(Resize(25 * served.executor.info.block_bytes))
    assert isinstance(served.receive(), Resized)
    served.executor.go.release(4)
    finals = 0
    while finals < 2:
        message = served.receive()
        assert isinstance(message, Step)
        finals += sum(event.finish_reason is not None for event in message.events)
    assert [[s.request_id for s in plan.sequences] for plan in served.executor.plans] == [
        ["a"],
        ["a", "b"],
        ["a", "b"],
        ["b"],
    ]


def test_serve_refusal_is_one_event_for_each_answer(served: Served) -> None:
    served.send(add("long", n=2, max_tokens=500))
    message = served.receive()
    assert isinstance(message, Step)
    assert [(event.request_id, event.choice, event.finish_reason) for event in message.events] == [
        ("long", 0, FinishReason.ERROR),
        ("long", 1, FinishReason.ERROR),
    ]
    assert all("together more than" in (event.error or "") for event in message.events)


def test_serve_abort_of_one_answer(served: Served) -> None:
    served.send(add("a", n=2, max_tokens=4))
    assert served.executor.begun.acquire(timeout=LONG)
    served.send(Abort("a", 1))
    served.send(Resize(10**9))  # answered when the abort is in
    assert served.receive() == Resized(None, "the KV pool can have 1 to 30 blocks here, not 244140")
    served.executor.go.release(9)
    events: list[Event] = []
    while not events or events[-1].finish_reason is None:
        message = served.receive()
        assert isinstance(message, Step)
        events += message.events
    assert {event.choice for event in events} == {0}
    assert sum(len(event.token_ids) for event in events) == 4


def test_serve_resize_of_an_idle_engine(served: Served) -> None:
    served.executor.go.release()
    served.send(Resize(7 * served.executor.info.block_bytes + 1))
    message = served.receive()
    assert isinstance(message, Resized)
    assert message.info is not None
    assert (message.info.num_blocks, message.info.max_model_len) == (7, 112)
    served.until(lambda step: isinstance(step, Step) and step.stats.num_blocks == 7)
    assert [plan.num_blocks for plan in served.executor.plans] == [7]
