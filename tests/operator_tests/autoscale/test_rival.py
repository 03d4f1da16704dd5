from octavo_operator.autoscale.core.rival import CHANGES, WINDOW_SECONDS, Rival


def fought(times: list[float]) -> Rival:
    """We set 4 and something else sets 2, at each of these times."""
    rival = Rival().see(2, 0.0)
    for time in times:
        rival = rival.wrote(4).see(4, time).see(2, time)
    return rival


def test_rival_person_who_scales_once_is_none() -> None:
    assert not fought([10.0]).is_there
    rival = Rival().wrote(3)
    for number in range(20):  # one after the other, without us in between
        rival = rival.see(number, float(number))
    assert not rival.is_there


def test_rival_who_comes_back_is_one_for_a_while() -> None:
    rival = fought([60.0 * number for number in range(CHANGES)])
    assert rival.is_there
    assert rival.see(2, WINDOW_SECONDS - 1).is_there
    assert not rival.see(2, WINDOW_SECONDS + 1).is_there


def test_rival_seldom_is_none() -> None:
    assert not fought([WINDOW_SECONDS * number for number in range(10)]).is_there


def test_rival_our_own_number_is_no_change() -> None:
    rival = Rival().see(1, 0.0)
    for number in range(10):
        rival = rival.wrote(number).see(number, float(number)).see(number, number + 0.5)
    assert not rival.is_there
