"""The replica that skips from change to change does what one does that goes through every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.autoscaling.replica import Demand, Machine, Replica, capacity
from bench.autoscaling.traces import bimodal, chat
from bench.replays import our_scheduler, run
from octavo_runtime.domain import Request, SamplingParams, SchedulerConfig
from octavo_runtime.replay import FIRST_FREE_TOKEN, ClosedLoop, Measured, ReplayRequest

SMALL = Machine(slots=3, budget=6, kv_tokens=80, reserve=0.1, max_waiting=4, base=4.0, per_token=1.0, per_context=0.5)
HALF_A_BLOCK = 8


def drive(demand: Demand, machine: Machine, scrapes: Sequence[float] = ()) -> tuple[Replica, int, list[float]]:
    """One replica to the end; how many were refused, and the cache usage of each scrape."""
    replica = Replica(demand, machine)
    number = refused = 0
    usage: list[float] = []
    while number < len(demand.arrivals) or replica.next_at < math.inf:
        soonest = min([replica.next_at, *demand.arrivals[number : number + 1]])
        while len(usage) < len(scrapes) and scrapes[len(usage)] < soonest:
            usage.append(replica.scrape(scrapes[len(usage)]).cache_usage)
        if number < len(demand.arrivals) and demand.arrivals[number] <= replica.next_at:
            refused += not replica.arrive(number, demand.arrivals[number])
            number += 1
        else:
            replica.advance()
    return replica, refused, usage


@dataclass(eq=False)
class Decoding:
    number: int
    context: int
    left: int
    order: int  # the step before which it would have started, had it never been preempted


class Stepwise:
    """The slow, obvious machine: a loop over steps."""

    def __init__(self, demand: Demand, machine: Machine) -> None:
        self.demand, self.machine = demand, machine
        self.running: list[Decoding] = []
        self.queue: list[int] = []
        self.partial: tuple[int, int] | None = None
        self.held = 0
        self.resumed: dict[int, int] = {}
        self.preemptions = self.refused = 0

    def memory(self) -> int:
        return self.held + sum(one.context + 1 + HALF_A_BLOCK for one in self.running)

    def length(self, number: int) -> int:
        return self.demand.prompts[number] + self.resumed.get(number, 0)

    def may_start(self, started: int) -> bool:
        if not self.queue or len(self.running) + started >= self.machine.slots:
            return False
        if not self.running and not self.held:
            return True
        return self.memory() + self.length(self.queue[0]) <= self.machine.kv_tokens * (1 - self.machine.reserve)

    def preempt(self) -> None:
        last = max(self.running, key=lambda one: (one.order, one.number))
        self.running.remove(last)
        self.resumed[last.number] = self.demand.outputs[last.number] - last.left
        self.queue.insert(0, last.number)
        self.preemptions += 1

    def run(self) -> None:
        demand, machine = self.demand, self.machine
        now, step, come = 0.0, 0, 0
        while True:
            while come < len(demand.arrivals) and demand.arrivals[come] <= now:
                if len(self.queue) < machine.max_waiting:
                    self.queue.append(come)
                else:
                    self.refused += 1
                come += 1
            while self.memory() > machine.kv_tokens:
                self.preempt()
            if not self.running and not self.queue and self.partial is None:
                if come == len(demand.arrivals):
                    return
                now = demand.arrivals[come]
                continue
            decoding = list(self.running)
            left = machine.budget - len(decoding)
            done: list[int] = []
            while left > 0 and (self.partial is not None or self.may_start(len(done))):
                if self.partial is None:
                    number = self.queue.pop(0)
                    self.partial = (number, self.length(number))
                    self.held += self.length(number)
                number, tokens = self.partial
                chunk = min(left, tokens)
                left -= chunk
                self.partial = (number, tokens - chunk) if chunk < tokens else None
                if self.partial is None:
                    done.append(number)
            tokens = machine.budget - left
            now += (
                machine.base + machine.per_token * tokens + machine.per_context * sum(one.context for one in decoding)
            )
            step += 1
            for one in decoding:
                one.context += 1
                one.left -= 1
            for number in done:
                length, generated = self.length(number), self.resumed.pop(number, 0)
                self.held -= length
                if not generated:
                    demand.first_token[number] = now
                left_over = demand.outputs[number] - generated - 1
                self.running.append(Decoding(number, length, left_over, step + left_over - demand.outputs[number]))
            # What comes while a step runs finds the queue as the step's start left it.
            while come < len(demand.arrivals) and demand.arrivals[come] < now:
                if len(self.queue) < machine.max_waiting:
                    self.queue.append(come)
                else:
                    self.refused += 1
                come += 1
            for one in [one for one in self.running if not one.left]:
                self.running.remove(one)
                demand.ended[one.number] = now


@st.composite
def demands(draw: st.DrawFn) -> tuple[list[float], list[int], list[int]]:
    count = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    # Each has a fraction of its own, so that none comes at the very end of a step.
    arrivals = [float(second) + (number + 1) / 1024 for number, second in enumerate(np.cumsum(gaps).tolist())]
    prompts = draw(st.lists(st.integers(1, 25), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    return arrivals, prompts, outputs


@settings(max_examples=300)
@given(demands())
def test_replica_is_the_stepwise_machine(drawn: tuple[list[float], list[int], list[int]]) -> None:
    fast, slow = Demand(*drawn), Demand(*drawn)
    replica, refused, _ = drive(fast, SMALL)
    stepwise = Stepwise(slow, SMALL)
    stepwise.run()
    assert refused == stepwise.refused
    assert fast.first_token == pytest.approx(slow.first_token)
    assert fast.ended == pytest.approx(slow.ended)
    sample = replica.scrape(1e9)
    assert sample.preemptions == stepwise.preemptions
    assert sample.finished == len(drawn[0]) - refused
    assert (sample.running, sample.waiting, sample.cache_usage) == (0, 0, 0.0)


@settings(max_examples=300)
@given(demands())
def test_every_request_ends_once(drawn: tuple[list[float], list[int], list[int]]) -> None:
    demand = Demand(*drawn)
    replica, refused, _ = drive(demand, SMALL)
    ended = [end for end in demand.ended if end < math.inf]
    assert len(ended) + refused == len(drawn[0])
    assert replica.outstanding == 0
    sample = replica.scrape(1e9)
    tokens = sum(output for output, end in zip(drawn[2], demand.ended, strict=True) if end < math.inf)
    assert sample.generation_tokens == tokens
    assert all(first <= end for first, end in zip(demand.first_token, demand.ended, strict=True))


def test_a_request_alone_takes_its_prompts_step_and_its_decodes() -> None:
    demand = Demand([2.0], [5], [3])
    drive(demand, SMALL)
    assert demand.first_token == [2.0 + 4 + 5]
    # Two decodes that read five and six tokens.
    assert demand.ended == [11.0 + (4 + 1 + 2.5) + (4 + 1 + 3.0)]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    demand = Demand([0.0], [14], [1])
    drive(demand, SMALL)
    assert demand.ended == demand.first_token == [3 * 4 + 14]


def test_scrape_counts_the_steps_that_were_made() -> None:
    demand = Demand([0.0], [5], [30])
    replica = Replica(demand, SMALL)
    replica.arrive(0, 0.0)
    replica.advance()
    # The prompt ends at 9 s; the first decode at 16.5 s, the second at 24.5 s.
    assert replica.scrape(9.0).generation_tokens == 1
    assert replica.scrape(20.0).generation_tokens == 2
    assert replica.scrape(25.0).generation_tokens == 3
    assert replica.scrape(25.0).cache_usage == pytest.approx((5 + 2 + 1 + HALF_A_BLOCK) / SMALL.kv_tokens)
    assert (replica.scrape(25.0).running, replica.scrape(25.0).waiting) == (1, 0)


def test_a_full_queue_refuses() -> None:
    demand = Demand([0.0] * 9, [5] * 9, [30] * 9)
    replica = Replica(demand, SMALL)
    assert [replica.arrive(number, 0.0) for number in range(5)] == [True] * 4 + [False]
    assert replica.scrape(0.0).refused == 1


def real(
    arrivals: list[float], prompts: list[int], outputs: list[int], max_model_len: int, clients: int = 0
) -> Measured:
    """The scheduler that serves, replayed on the same requests."""
    requests = [
        ReplayRequest(
            Request(
                f"r{number}",
                (FIRST_FREE_TOKEN + 32_000 + number, *[FIRST_FREE_TOKEN] * (prompt - 1)),
                SamplingParams(temperature=1.0, seed=number, max_tokens=max_model_len - prompt),
                arrival=arrival,
            ),
            (output,),
        )
        for number, (arrival, prompt, output) in enumerate(zip(arrivals, prompts, outputs, strict=True))
    ]
    core = our_scheduler(SchedulerConfig(max_num_seqs=64), max_model_len=max_model_len)
    return run(core, requests, load=ClosedLoop(requests, clients) if clients else None)


@pytest.mark.parametrize(("lengths", "max_model_len"), [(chat, 2048), (bimodal, 8192)], ids=["chat", "bimodal"])
def test_capacity_is_the_real_schedulers(lengths: object, max_model_len: int) -> None:
    prompts, outputs = (drawn.tolist() for drawn in lengths(np.random.default_rng(11), 500))  # type: ignore[operator]
    theirs = real([0.0] * 500, prompts, outputs, max_model_len, clients=128).steady_rate()
    assert capacity(prompts, outputs, Machine()) == pytest.approx(theirs, rel=0.03)


@pytest.mark.parametrize(("share", "count"), [(0.5, 300), (0.8, 500), (0.95, 1000)])
def test_latencies_and_usage_are_the_real_schedulers(share: float, count: int) -> None:
    rng = np.random.default_rng(12)
    prompts, outputs = (drawn.tolist() for drawn in chat(rng, count))
    arrivals = (np.cumsum(rng.exponential(1.0, count)) / (27.0 * share)).tolist()
    theirs = real(arrivals, prompts, outputs, 2048)
    demand = Demand(arrivals, prompts, outputs)
    end = arrivals[0] + theirs.seconds
    _, _, usage = drive(demand, Machine(), scrapes=np.arange(0.0, end, 0.25).tolist())
    ttft = [first - arrival for first, arrival in zip(demand.first_token, arrivals, strict=True)]
    for percent in (50, 99):
        wanted = float(np.percentile([times.ttft for times in theirs.requests], percent))
        assert float(np.percentile(ttft, percent)) == pytest.approx(wanted, rel=0.15)
    assert max(demand.ended) - arrivals[0] == pytest.approx(theirs.seconds, rel=0.01)
    assert sum(usage) / (4 * end) == pytest.approx(theirs.use.usage_seconds / end, rel=0.08)
