"""What was late, and what those minutes were worth."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.autoscale.core.budget import BURST, LEAST_SECONDS, MINUTE, SHARE, Budget, Came, Minute, came
from octavo_operator.autoscale.core.values import Sample

HOUR = 3600.0


def sample(time: float, running: float, waiting: float, finished: float, refused: float = 0.0) -> Sample:
    return Sample(time, running, waiting, 0.5, finished, 100 * finished, refused)


def seen(*minutes: tuple[float, float, float], window: float = HOUR) -> Budget:
    """(demand, requests, late) of minutes, looked at every five seconds."""
    budget = Budget()
    for number, (demand, requests, late) in enumerate(minutes):
        for look in range(12):
            now = 60 * number + 5 * look
            budget = budget.see(now, 5.0, demand, Came(requests / 12, late / 12), window)
    return budget


@pytest.mark.parametrize(
    ("rate", "queue", "late"),
    [
        (10.0, 19, 5),  # two seconds' worth of a full replica, and no more: who was refused
        (10.0, 21, 45),
        (0.0, 500, 5),  # nobody knows what a replica ends
    ],
)
def test_came_is_late_behind_a_queue_of_two_seconds_or_refused(rate: float, queue: float, late: float) -> None:
    # Of those that came 30 have ended, 4 more run, 6 more wait.
    pair = (sample(0, 60, queue - 3, 100, 20), sample(5, 64, queue + 3, 130, 25))
    assert came([pair], rate) == Came(45, late)


def test_came_to_several_pods_is_their_sum_and_never_less_than_none() -> None:
    idle = (sample(0, 5, 0, 100), sample(5, 4, 0, 100))
    one = (sample(0, 5, 0, 100), sample(5, 5, 0, 120))
    assert came([idle, one], 10.0) == Came(20, 0)
    assert came([], 10.0) == Came()


def test_budget_counts_demand_by_the_time_that_it_lasted() -> None:
    budget = Budget().see(0.0, 5.0, 1.0, Came(), HOUR).see(30.0, 30.0, 4.0, Came(10, 1), HOUR)
    assert budget.minutes == (Minute(0.0, 35.0, 125.0, 10.0, 1.0),)
    assert budget.worth() == 125 / 35


def test_budget_of_a_young_service_is_that_of_an_hour() -> None:
    assert seen((1, 100, 30)).late(HOUR) == pytest.approx(30 / 6000)
    assert seen(*[(1, 100, 0)] * 59, (1, 100, 30)).late(HOUR) == pytest.approx(30 / 6000)
    assert Budget().late(HOUR) == 0


@pytest.mark.parametrize(
    ("minutes", "worth"),
    [
        ([(4, 1200, 0), (8, 1200, 24), (9, 1200, 0), (10, 1200, 0)], 9),
        ([(2, 1200, 0), (9, 1200, 12)], 0),  # one in a hundred may be late
        ([(4, 1200, 0), (7.9, 1200, 24)], 0),  # no burst
        ([(4, 1200, 0), (7, 1200, 24), (8, 1200, 24)], 8),
        ([(4, 1200, 24), (2, 1200, 1200)], 4),  # whatever came before the first minute
        ([], 0),
    ],
)
def test_budget_worth_is_that_of_a_bursts_late_minutes_and_the_next(
    minutes: list[tuple[float, float, float]], worth: float
) -> None:
    assert seen(*minutes).worth() == pytest.approx(worth)


def test_budget_worth_is_no_moments() -> None:
    budget = Budget().see(0.0, LEAST_SECONDS - 1, 100.0, Came(10, 10), HOUR)
    assert budget.worth() == 0
    assert budget.see(30.0, 30.0, 0.0, Came(), HOUR).worth() == pytest.approx(100 * 29 / 59)


def test_budget_forgets_what_was_before_its_window() -> None:
    budget = seen(*[(5, 100, 50)] * 3)
    for now, left in ((HOUR - 1, 3), (HOUR, 2), (HOUR + 59, 2), (HOUR + 60, 1), (2 * HOUR, 0)):
        assert sum(one.late > 0 for one in budget.see(now, 5.0, 1.0, Came(), HOUR).minutes) == left


def test_budget_for_no_time_is_none() -> None:
    budget = seen((5, 100, 50), window=0.0)
    assert (budget, budget.late(0.0), budget.worth()) == (Budget(), 0.0, 0.0)


rounds = st.lists(
    st.tuples(
        st.floats(0, 400),  # since the one before
        st.floats(0, 20),  # demand
        st.integers(0, 100),  # requests
        st.floats(0, 1),  # share that was late
    ),
    max_size=60,
)


@given(rounds, st.floats(60, 7200))
def test_budget_is_what_a_list_of_all_rounds_says(
    given_rounds: list[tuple[float, float, int, float]], window: float
) -> None:
    """The oracle keeps every round, in minutes that begin with the first round that is not in the one before."""
    budget, now = Budget(), 0.0
    kept: list[tuple[float, float, float, Came]] = []  # begin of its minute, seconds, demand, what came
    for elapsed, demand, requests, share in given_rounds:
        now += elapsed
        fresh, seconds = Came(requests, share * requests), min(elapsed, 30.0)
        kept = [one for one in kept if now - one[0] < window]
        begin = kept[-1][0] if kept and now - kept[-1][0] < MINUTE else now
        kept.append((begin, seconds, demand, fresh))
        budget = budget.see(now, seconds, demand, fresh, window)
        assert 0 <= budget.late(window) <= 1
        assert budget.worth() <= max(one[2] for one in kept) * (1 + 1e-9)
    begins = sorted({one[0] for one in kept})
    minutes = [[one for one in kept if one[0] == begin] for begin in begins]
    assert [one.requests for one in budget.minutes] == [sum(one[3].requests for one in rows) for rows in minutes]
    late = [
        sum(one[3].late for one in rows) > SHARE * sum(one[3].requests for one in rows) * (1 + 1e-9) for rows in minutes
    ]
    demands = [sum(one[1] * one[2] for one in rows) / (sum(one[1] for one in rows) or math.inf) for rows in minutes]
    found = 0.0
    for number, rows in enumerate(minutes):
        usual = next((demands[one] for one in reversed(range(number)) if not late[one]), 0.0)
        if (
            any(late[max(0, number - 1) : number + 1])
            and demands[number] > BURST * usual * (1 + 1e-9)
            and sum(one[1] for one in rows) > LEAST_SECONDS
        ):
            found = max(found, demands[number])
    assert budget.worth() >= found * (1 - 1e-9)
