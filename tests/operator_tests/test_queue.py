from collections.abc import Callable
from math import inf

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo_operator.core.queue import CALM_SECONDS, WorkQueue

KEYS = st.integers(0, 4)


class QueueMachine(RuleBasedStateMachine):
    """Against the slow truth: for each key, whether news has come since its last look began, and an edit among it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[int] = WorkQueue()
        self.now = 0.0
        self.unseen: set[int] = set()
        self.edited: set[int] = set()
        self.due: dict[int, float] = {}
        self.active: dict[int, float | None] = {}
        self.edited_at = -inf

    @rule(key=KEYS, urgent=st.booleans())
    def add(self, key: int, urgent: bool) -> None:
        self.queue.add(key, urgent=urgent)
        self.unseen.add(key)
        if urgent:
            self.edited.add(key)

    @rule(key=KEYS, delay=st.integers(0, 9))
    def add_at(self, key: int, delay: int) -> None:
        self.queue.add_at(key, self.now + delay)
        self.due[key] = min(self.now + delay, self.due.get(key, float("inf")))

    @rule(key=KEYS)
    def retry(self, key: int) -> None:
        delay = self.queue.retry(key, self.now)
        self.due[key] = min(self.now + delay, self.due.get(key, float("inf")))

    @rule(seconds=st.sampled_from([CALM_SECONDS / 2, 1, 5]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ripe = {key for key, due in self.due.items() if due <= self.now}
        candidates = (self.unseen | ripe) - self.active.keys()
        edits = candidates & self.edited
        if not edits and self.now < self.others_at():
            candidates = set()
        self.unseen |= ripe
        for key in ripe:
            del self.due[key]
        taken = self.queue.take(self.now)
        assert (taken is None) == (not candidates)
        if taken is not None:
            assert taken in (edits or candidates)
            self.unseen.remove(taken)
            self.edited.discard(taken)
            self.due.pop(taken, None)
            self.active[taken] = None if edits else self.now
            if edits:
                self.edited_at = self.now

    def others_at(self) -> float:
        """Another one goes on when the last edit, or the last of the others that is under way, is a second old."""
        others = [since for since in self.active.values() if since is not None]
        return min(self.edited_at, max(others)) + CALM_SECONDS if others else -inf

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.queue.done(key)
        del self.active[key]

    @invariant()
    def next_due_is_the_earliest(self) -> None:
        others_wait = self.now < self.others_at() and self.unseen - self.active.keys() - self.edited
        dues = [*self.due.values(), *([self.others_at()] if others_wait else [])]
        assert self.queue.next_due(self.now) == min(dues, default=None)

    @invariant()
    def structure_holds(self) -> None:
        self.queue.check_invariants()


TestQueueMachine = QueueMachine.TestCase


def test_take_is_first_in_first_out_and_edits_go_first() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c", "d"):
        queue.add(key)
    queue.add("c", urgent=True)
    queue.add("d", urgent=True)
    queue.add("c")
    assert [queue.take(0.0), queue.take(0.0)] == ["c", "d"]
    assert [queue.take(CALM_SECONDS) for _ in range(3)] == ["a", "b", None]


def test_take_hands_out_the_others_one_at_a_time_while_edits_come() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c", "d"):
        queue.add(key)
    assert [queue.take(0.0), queue.take(0.0)] == ["a", "b"]
    queue.add("edited", urgent=True)
    assert [queue.take(0.0), queue.take(0.0)] == ["edited", None]
    queue.done("a")
    assert queue.take(0.0) is None
    queue.done("b")
    assert [queue.take(0.0), queue.take(0.0)] == ["c", None]
    assert queue.next_due(0.0) == CALM_SECONDS
    assert queue.take(CALM_SECONDS) == "d"


def test_take_does_not_wait_for_one_that_hangs_while_edits_come() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("hangs", "a", "b"):
        queue.add(key)
    assert queue.take(0.0) == "hangs"
    queue.add("edited", urgent=True)
    assert [queue.take(0.75), queue.take(0.75)] == ["edited", None]
    assert queue.next_due(0.75) == CALM_SECONDS
    assert [queue.take(CALM_SECONDS), queue.take(CALM_SECONDS)] == ["a", None]


def test_take_urgent_only_leaves_the_others_to_the_next() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add_at("b", 1.0)
    assert queue.take(1.0, urgent_only=True) is None
    queue.add("c", urgent=True)
    assert queue.take(1.0, urgent_only=True) == "c"
    assert [queue.take(1.0 + CALM_SECONDS) for _ in range(3)] == ["a", "b", None]


def test_add_while_active_comes_again_in_its_lane() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.take(0.0) == "a"
    queue.add("b")
    queue.add("a", urgent=True)
    queue.add("a")
    assert queue.take(0.0) == "b"
    assert queue.take(0.0) is None
    queue.add("c")
    queue.done("a")
    queue.done("b")
    assert [queue.take(0.0), queue.take(0.0)] == ["a", "c"]


def test_retry_doubles_up_to_the_limit_and_succeed_resets() -> None:
    queue: WorkQueue[str] = WorkQueue(first_delay=1.0, max_delay=5.0)
    assert _delays(queue, 5) == [1.0, 2.0, 4.0, 5.0, 5.0]
    queue.succeed("a")
    assert queue.retry("a", 0.0, jitter=1.0) == 1.25


def test_retry_before_the_delay_is_over_keeps_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert queue.retry("a", 0.0) == 1.0
    for now in (0.0, 0.25, 0.5, 0.75):
        queue.add("a")
        assert queue.take(now) == "a"
        assert queue.retry("a", now) == 1.0 - now
        queue.done("a")
    assert queue.next_due(0.75) == 1.0
    assert queue.take(1.0) == "a"
    assert queue.retry("a", 1.0) == 2.0


def test_retry_many_times_stays_finite() -> None:
    queue: WorkQueue[str] = WorkQueue(max_delay=300.0)
    assert _delays(queue, 2000)[-1] == 300.0


def _delays(queue: WorkQueue[str], count: int) -> list[float]:
    now, delays = 0.0, []
    for _ in range(count):
        delays.append(queue.retry("a", now))
        now += delays[-1]
    return delays


@pytest.mark.parametrize(
    "news", [lambda queue: queue.add("a"), lambda queue: queue.add("a", urgent=True)], ids=["event", "edit"]
)
def test_news_does_not_wait_for_the_backoff(news: Callable[[WorkQueue[str]], None]) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.retry("a", 0.0)
    news(queue)
    assert queue.take(0.0) == "a"
    queue.done("a")
    assert queue.take(1000.0) is None
