"""The scheduler against the oracle: random loads and settings, and a state machine over everything that can happen."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.core.testing import OracleExecutor, OracleRun
from octavo_runtime.domain import CopyKind, FinishReason, Request, SamplingParams, SchedulerConfig
from octavo_runtime.errors import InvalidRequest

VOCAB = 5  # small, so that random prompts share prefixes and the end of sequence comes up
EOS = (4,)


@dataclass(frozen=True)
class Setting:
    block_size: int
    num_blocks: int
    num_host_blocks: int
    config: SchedulerConfig

    def run(self) -> OracleRun:
        scheduler = Scheduler(
            self.config,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_model_len=10_000,
            eos_token_ids=EOS,
            num_host_blocks=self.num_host_blocks,
            max_num_blocks=self.num_blocks + 4,
        )
        return OracleRun(scheduler, OracleExecutor(scheduler, self.num_blocks, VOCAB, self.num_host_blocks), EOS)

    @property
    def room(self) -> int:
        return self.num_blocks * self.block_size


@st.composite
def any_setting(draw: st.DrawFn) -> Setting:
    seqs = draw(st.integers(1, 6))
    policy = draw(st.sampled_from(["fcfs", "shortest-first", "priority", "slo"]))
    return Setting(
        block_size=draw(st.sampled_from([1, 2, 4])),
        num_blocks=draw(st.integers(3, 16)),
        num_host_blocks=draw(st.sampled_from([0, 3, 8])),
        config=SchedulerConfig(
            max_num_seqs=seqs,
            max_num_batched_tokens=seqs + draw(st.integers(0, 12)),
            enable_prefix_caching=draw(st.booleans()),
            policy=policy,  # type: ignore[arg-type]  # one of the four above
            admission=draw(st.sampled_from(["expected", "never-evict", "max-utilization"])),
            async_scheduling=draw(st.booleans()),
            time_slice_tokens=draw(st.sampled_from([0, 2])) if policy == "shortest-first" else 0,
            check_invariants=True,
        ),
    )


def random_sampling(rng: random.Random, max_tokens: int) -> SamplingParams:
    kind = rng.random()
    n = rng.randint(1, 2)
    common = {
        "temperature": 0,
        "seed": 0,
        "max_tokens": max_tokens,
        "ignore_eos": rng.random() < 0.5,
        "stop_token_ids": (3,) if rng.random() < 0.2 else (),
    }
    if kind < 0.25:
        return SamplingParams(**common, n=rng.randint(2, 4))  # type: ignore[arg-type]  # fields by name
    if kind < 0.35:
        return SamplingParams(**common, n=n, best_of=n + rng.randint(1, 2))  # type: ignore[arg-type]
    if kind < 0.55:
        return SamplingParams(
            **common,  # type: ignore[arg-type]
            n=n,
            best_of=rng.randint(2, 4),
            use_beam_search=True,
            length_penalty=rng.choice([0.0, 1.0, -1.0]),
            early_stopping=rng.choice([True, False, "never"]),
        )
    return SamplingParams(**common)  # type: ignore[arg-type]


def random_request(rng: random.Random, number: int, room: int) -> Request:
    max_tokens = rng.randint(1, max(1, min(10, room - 1)))
    length = rng.randint(1, max(1, room - max_tokens))
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=tuple(rng.randrange(2) for _ in range(length)),
        sampling=random_sampling(rng, max_tokens),
        arrival=float(number),
        cache_salt=rng.choice(["", "", "tenant"]),
        priority=rng.randint(0, 2),
    )


def random_run(setting: Setting, seed: int) -> OracleRun:
    """Requests arrive, are aborted and fail, the pool is resized while steps go on; then all is drained and compared."""
    rng = random.Random(seed)
    run = setting.run()
    for number in range(rng.randint(1, 14)):
        add(run, random_request(rng, number, setting.room))
        for _ in range(rng.randint(0, 4)):
            if run.scheduler.has_work:
                run.step()
        if run.outputs and rng.random() < 0.15:
            request_id, choice = rng.choice(list(run.outputs))
            run.abort(request_id, rng.choice([None, choice]))
        if run.outputs and rng.random() < 0.1:
            run.oracle.fail_next.add(rng.choice(list(run.outputs))[0])
        if rng.random() < 0.1:
            resize(run, rng.randint(1, setting.num_blocks + 4))
    run.drain()
    run.check()
    return run


def add(run: OracleRun, request: Request) -> bool:
    """Whether the request was taken; a refusal is a matter of `add`'s own tests."""
    try:
        run.add(request)
    except InvalidRequest:
        return False
    return True


def resize(run: OracleRun, num_blocks: int) -> None:
    # A pool that would become too small for what it holds stays as it is.
    with contextlib.suppress(ValueError):
        run.scheduler.resize(num_blocks)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setting=any_setting(), seed=st.integers(0, 2**32))
def test_schedule_random_load_gives_each_request_its_own_tokens(setting: Setting, seed: int) -> None:
    random_run(setting, seed)


def random_runs(setting: Setting, seeds: Iterable[int]) -> list[OracleRun]:
    return [random_run(setting, seed) for seed in seeds]


TIGHT = Setting(
    block_size=2,
    num_blocks=10,
    num_host_blocks=4,
    config=SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=10, admission="max-utilization", check_invariants=True
    ),
)


def test_random_run_tight_pool_exercises_what_hurts() -> None:
    # Otherwise the property above might hold for want of the cases that hurt.
    runs = random_runs(TIGHT, range(120))
    stats = [run.scheduler.stats() for run in runs]
    assert sum(each.num_preemptions for each in stats) > 40
    assert sum(each.prefix_hits for each in stats) > 50
    assert sum(each.num_swapped_in for each in stats) > 20
    assert sum(each.num_recomputed_tokens for each in stats) > 50
    assert sum(run.oracle.num_copies[CopyKind.DEVICE] for run in runs) > 20
    assert any(FinishReason.ERROR in run.reasons.values() for run in runs)
    assert any(run.gone for run in runs)


class SchedulerMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens next: it finds short stories that break, where random loads are long."""

    @initialize(setting=any_setting())
    def start(self, setting: Setting) -> None:
        self.setting = setting
        self.run = setting.run()
        self.number = 0

    @rule(seed=st.integers(0, 2**16))
    def add(self, seed: int) -> None:
        self.number += add(self.run, random_request(random.Random(seed), self.number, self.setting.room))

    @precondition(lambda self: self.run.scheduler.has_work)
    @rule()
    def step(self) -> None:
        self.run.step()

    @precondition(lambda self: self.run.outputs)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request_id, choice = data.draw(st.sampled_from(sorted(self.run.outputs)))
        self.run.abort(request_id, None if whole else choice)

    @precondition(lambda self: self.run.outputs)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.run.oracle.fail_next.add(data.draw(st.sampled_from(sorted(self.run.outputs)))[0])

    @rule(num_blocks=st.integers(1, 20))
    def resize(self, num_blocks: int) -> None:
        resize(self.run, min(num_blocks, self.run.scheduler.max_num_blocks))

    @precondition(lambda self: self.run.scheduler.stats().num_running > 1)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        # The scheduler does this by itself when blocks are short; here at any moment.
        victim = data.draw(st.sampled_from([s.number for s in self.run.scheduler._running]))
        sequence = next(s for s in self.run.scheduler._running if s.number == victim)
        self.run.scheduler._policy.preempt(sequence.request.sequences if sequence.request.beams else [sequence])

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()
            self.run.check()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
