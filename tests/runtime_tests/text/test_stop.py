"""Stop strings: the same result however the text is cut, and nothing held back without need."""

from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.text.stop import StopMatcher

texts = st.text(alphabet="ab<é", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab<é", min_size=1, max_size=4), min_size=1, max_size=4)


def oracle(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first stop string to be complete; among those, the one that began first."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(texts, stop_lists, st.lists(st.integers(1, 5)))
def test_push_cut_anywhere_gives_the_same(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown, rest = "", text
    for size in [*sizes, len(text) + 1]:
        piece, rest = rest[:size], rest[size:]
        shown += matcher.push(piece)
        if matcher.matched is not None:
            break
    shown += matcher.flush()
    assert (shown, matcher.matched) == oracle(text, stops)


@given(texts, stop_lists)
def test_push_holds_back_only_what_may_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = shown = ""
    for char in text:
        seen += char
        shown += matcher.push(char)
        if matcher.matched is not None:
            return
        held = seen.removeprefix(shown)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_push_stop_inside_a_token() -> None:
    matcher = StopMatcher(["DE"])
    assert matcher.push("DEF") == ""
    assert matcher.matched == "DE"


def test_push_prefix_that_resolves_otherwise_is_shown() -> None:
    matcher = StopMatcher(["</think>"])
    assert [matcher.push(piece) for piece in ("a </th", "ink", "ing")] == ["a ", "", "</thinking"]
    assert matcher.matched is None


def test_flush_shows_what_never_became_a_stop() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("xEN") == "x"
    assert matcher.flush() == "EN"


def test_push_without_stops_passes_all_through() -> None:
    assert StopMatcher([]).push("abc") == "abc"
