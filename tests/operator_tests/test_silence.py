"""Silent watches, against a model of one kind's objects, its watch, and our own lists."""

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import DEPLOYMENT, POD
from octavo_operator.core.silence import Silence

PODS = (POD, None)
OTHERS = (DEPLOYMENT, "team-a")


def test_listed_what_the_watch_owes_for_long_makes_it_silent() -> None:
    silence = Silence()
    silence.delivered(PODS, 5)
    silence.listed(PODS, 5, now=0.0)
    silence.listed(OTHERS, 0, now=0.0)
    assert silence.due() is None
    silence.listed(PODS, 6, now=100.0)
    silence.listed(PODS, 6, now=189.0)
    assert silence.silent() == []
    assert silence.due() == 190.0
    silence.listed(PODS, 6, now=190.0)
    assert silence.silent() == [PODS]
    assert silence.due() is None


def test_listed_again_and_again_with_newer_versions_does_not_excuse_it() -> None:
    """An object that changes all the time shows another version in each list."""
    silence = Silence()
    for number in range(1, 11):
        silence.listed(PODS, number, now=10.0 * number)
    assert silence.silent() == [PODS]


def test_delivered_before_the_next_list_is_in_time() -> None:
    silence = Silence()
    silence.listed(PODS, 6, now=0.0)
    silence.delivered(PODS, 6)
    silence.listed(PODS, 7, now=500.0)
    assert silence.silent() == []


def test_delivered_ends_the_silence() -> None:
    silence = Silence()
    silence.listed(PODS, 6, now=0.0)
    silence.listed(PODS, 6, now=90.0)
    silence.delivered(PODS, 3)
    assert silence.silent() == []


def test_listed_without_what_vanished_is_no_silence() -> None:
    """After 410 Gone kopf does not tell what was deleted in the gap."""
    silence = Silence()
    silence.delivered(PODS, 5)
    silence.listed(PODS, 6, now=0.0)
    silence.listed(PODS, 5, now=90.0)
    assert silence.silent() == []


def test_interrupted_owes_nothing() -> None:
    silence = Silence()
    silence.listed(PODS, 6, now=0.0)
    silence.interrupted((None, "team-b"))
    silence.listed(PODS, 6, now=600.0)
    assert silence.silent() == []
    assert silence.due() == 690.0


def test_interrupted_in_one_namespace_leaves_the_others() -> None:
    silence = Silence()
    silence.listed(PODS, 6, now=0.0)
    silence.listed(OTHERS, 6, now=10.0)
    silence.interrupted((OTHERS[1],))
    assert silence.due() == 90.0
    silence.listed(PODS, 6, now=90.0)
    assert silence.silent() == [PODS]


steps = st.lists(st.sampled_from(["change", "delete", "list", "wait", "catch up"]), max_size=60)


@given(steps=steps)
def test_silent_only_with_a_reason_and_always_with_one(steps: list[str]) -> None:
    """The watch delivers only at `catch up`; a list follows whenever `due` asks for it."""
    silence, now, version = Silence(), 0.0, 0
    present: list[int] = []
    backlog: list[int] = []
    quiet_since = 0.0
    for step in steps:
        if step == "change":
            version += 1
            present.append(version)
            backlog.append(version)
        elif step == "delete" and present:
            # In a gap: the watch never tells of it.
            gone = present.pop()
            backlog = [one for one in backlog if one != gone]
        elif step == "wait":
            now += 30.0
        elif step == "catch up" and backlog:
            for one in backlog:
                silence.delivered(PODS, one)
            backlog, quiet_since = [], now
        due = silence.due()
        if step == "list" or (due is not None and now >= due):
            silence.listed(PODS, max(present, default=0), now)
        if silence.silent():
            assert now - quiet_since >= 90.0
    if backlog:
        silence.listed(PODS, max(present), now)
        silence.listed(PODS, max(present), now + 90.0)
        assert silence.silent() == [PODS]
        for one in backlog:
            silence.delivered(PODS, one)
    silence.listed(PODS, max(present, default=0), now + 180.0)
    assert silence.silent() == []
