from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.core.contest import REPAIRS_PER_MINUTE, Contest


@given(st.lists(st.integers(0, 30), max_size=60))
def test_contest_lets_so_many_repairs_pass_in_any_minute_and_no_fewer(steps: list[int]) -> None:
    contest, now, done = Contest(), 0, list[int]()
    for step in steps:
        now += step
        within = [time for time in done if now - time < 60]
        left = contest.seconds_left(now)
        assert (left > 0) == (len(within) >= REPAIRS_PER_MINUTE)
        if not left:
            contest.repaired(now)
            done.append(now)
        else:
            assert contest.seconds_left(now + left) == 0
