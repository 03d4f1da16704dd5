"""What waits, and how many replicas work it off."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.backlog import Backlog, Growth, backlog_of, ends_of, growth_of
from octavo_operator.autoscale.core.values import Sample, Settings

SETTINGS = Settings(min_replicas=1, max_replicas=20, target_queue=5.0)
STEADY = Growth(whole=0.0, queued=0.0, chance=1.0)


def sample(time: float, waiting: float, finished: float = 0.0, refused: float = 0.0) -> Sample:
    return Sample(time, 64, waiting, 0.5, finished, 100 * finished, refused)


def queue(waiting: float, limit: float = 1024.0) -> Sample:
    return replace(sample(0, waiting), queue_limit=limit)


def test_growth_of_pods_is_their_sum_and_who_was_refused_does_not_wait() -> None:
    one = (sample(0, 10), sample(5, 30, finished=50))
    other = (sample(0, 1024), sample(5, 1024, finished=50, refused=25))
    found = growth_of([one, other, (sample(5, 100),)], 5.0)
    assert (found.whole, found.queued) == (9, 4)
    assert found.chance == pytest.approx(((20 + 100 + 25 + 100) / 25) ** 0.5)


@pytest.mark.parametrize(
    ("times", "first"), [((0, 5, 9, 14), 5), ((0, 2), 0), ((0, 25), 0), ((0, 1, 25), 1), ((7,), 7)]
)
def test_ends_of_samples_are_those_of_the_last_seconds_or_the_last_two(times: tuple[int, ...], first: int) -> None:
    ends = ends_of([sample(time, 0) for time in times], 10.0)
    assert [one.time for one in ends] == [first, times[-1]]


def test_growth_over_a_longer_time_is_less_by_chance() -> None:
    samples = [sample(time, 10 * time, finished=10 * time) for time in (0, 5, 10, 15)]
    short, long = (growth_of([samples], seconds) for seconds in (5.0, 15.0))
    assert (short.whole, long.whole) == (10, 10)
    assert long.chance == pytest.approx(short.chance / 3**0.5)
    assert short.sure < long.sure < 10


def test_backlog_of_what_may_wait_is_none() -> None:
    found = backlog_of(SETTINGS, [queue(4), queue(5)], 3, STEADY, 30.0)
    assert found == Backlog(now=0, later=0, pods=0)
    assert found.replicas(10.0, 30.0) == 0


@pytest.mark.parametrize(("queued", "later"), [(2.0, 285), (4.0, 405), (100.0, 2048), (-4.0, 285)])
def test_backlog_of_queues_that_grow_is_that_of_when_the_next_pod_serves(queued: float, later: float) -> None:
    """Growth within three deviations may be chance; no pod has more waiting than it takes."""
    found = backlog_of(SETTINGS, [queue(100), queue(200)], 3, Growth(queued, queued, chance=1.0), 30.0)
    assert found == Backlog(now=285, later=later, pods=2)


@pytest.mark.parametrize(("limits", "later"), [((150, 250), 400), ((150, 5000), 3285), ((0, 0), 285)])
def test_backlog_of_queues_that_grow_is_no_more_than_each_pod_takes(limits: tuple[float, float], later: float) -> None:
    newest = [queue(100, limits[0]), queue(200, limits[1])]
    assert backlog_of(SETTINGS, newest, 3, Growth(100.0, 100.0, chance=1.0), 30.0).later == later


@pytest.mark.parametrize(
    ("later", "startup", "replicas"),
    [
        (900.0, 10.0, 3.0),  # in half a minute at least
        (900.0, 90.0, 1.0),
        (2400.0, 600.0, 2.0),  # in two at most
        (9000.0, 30.0, 4.0),  # no more than there are pods with a queue
        (101.0, 30.0, 1.0),  # one while it grows
        (100.0, 30.0, 1 / 3),
    ],
)
def test_backlog_is_worked_off_while_a_pod_starts(later: float, startup: float, replicas: float) -> None:
    assert Backlog(100.0, later, pods=4).replicas(10.0, startup) == pytest.approx(replicas)


def test_backlog_may_be_anything_while_nobody_knows_what_a_replica_ends() -> None:
    assert Backlog(1.0, 1.0, pods=4).replicas(0.0, 30.0) == 4


queues = st.lists(st.builds(queue, st.integers(0, 2000), st.integers(0, 2000)), min_size=1, max_size=8)


@given(queues, st.floats(-100, 100), st.floats(0, 300), st.floats(0, 100), st.floats(0, 300), st.data())
def test_backlog_with_a_silent_pod_has_room_for_what_it_may_have(
    newest: list[Sample], queued: float, seconds: float, rate: float, startup: float, data: st.DataObject
) -> None:
    growth = Growth(queued, queued, chance=1.0)
    whole = backlog_of(SETTINGS, newest, len(newest), growth, seconds)
    lost = data.draw(st.integers(0, len(newest) - 1))
    partly = backlog_of(SETTINGS, newest[:lost] + newest[lost + 1 :], len(newest), STEADY, seconds)
    assert whole.now <= whole.later
    assert partly.most(silent=1) >= whole.replicas(rate, startup)
