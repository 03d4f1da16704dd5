"""The queue at the door: what it counts, and when it tells the refused to come back."""

from __future__ import annotations

import pytest

from octavo_runtime.domain import Request, SamplingParams
from octavo_runtime.server.queue import Queue


def requests(*lengths: int) -> list[Request]:
    return [Request(f"r{number}", (1,) * length, SamplingParams()) for number, length in enumerate(lengths)]


def test_holding_counts_what_has_no_token_yet() -> None:
    queue = Queue()
    with queue.holding(requests(5, 7)):
        assert (len(queue), queue.num_tokens) == (2, 12)
        queue.started("r0", 1.0)
        assert (len(queue), queue.num_tokens) == (1, 7)
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_holding_forgets_when_the_call_fails() -> None:
    queue = Queue()
    with pytest.raises(KeyError), queue.holding(requests(5)):
        raise KeyError
    assert (len(queue), queue.num_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("starts", "waiting", "now", "seconds"),
    [
        ([], 9, 100.0, 5),  # nothing is known
        ([90.0, 95.0], 4, 100.0, 20),  # one every five seconds
        ([90.0, 95.0], 1, 100.0, 5),
        ([99.9, 99.95], 7, 100.0, 1),  # never less than a second
        ([90.0, 95.0], 1000, 100.0, 60),  # never more than a minute
        ([1.0, 2.0, 95.0], 4, 100.0, 20),  # what was before the last minute says nothing
        ([1.0], 4, 100.0, 5),
    ],
)
def test_retry_after_is_when_all_that_waits_has_started(
    starts: list[float], waiting: int, now: float, seconds: int
) -> None:
    queue = Queue()
    for at in starts:
        queue.started("other", at)
    with queue.holding(requests(*[1] * waiting)):
        assert queue.retry_after(now) == seconds


def test_retry_after_grows_while_nothing_starts() -> None:
    queue = Queue()
    queue.started("other", 0.0)
    with queue.holding(requests(1, 1)):
        assert [queue.retry_after(now) for now in (1.0, 10.0, 40.0)] == [2, 20, 60]
