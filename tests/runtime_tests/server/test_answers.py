"""The events of a stream as bytes, beside the bodies that they are made of."""

from __future__ import annotations

import json

import pytest

from octavo_runtime.domain import FinishReason
from octavo_runtime.server.answers import ChatAnswers, CompletionAnswers, Events, event
from octavo_runtime.text.output import Delta

DELTAS = [
    (0, Delta("a", (1,))),
    (1, Delta("", (1,))),
    (0, Delta('"\\\n\ue000 ü', (2,))),
    (0, Delta("", (3,))),
    (1, Delta("b", (4,))),
    (1, Delta("c", (5,), FinishReason.STOP, "!")),
    (0, Delta("", (6,), FinishReason.LENGTH)),
]


@pytest.mark.parametrize("kind", [CompletionAnswers, ChatAnswers])
@pytest.mark.parametrize("usage", [False, True])
def test_events_are_the_chunks(kind: type[CompletionAnswers | ChatAnswers], usage: bool) -> None:
    answers = kind('a "model" \ue000', usage)
    events = Events(answers)
    begun: set[int] = set()
    for index, delta in DELTAS:
        chunks = answers.chunks(index, delta, first=index not in begun)
        begun.add(index)
        assert events.of(index, delta) == b"".join(event(chunk) for chunk in chunks)


def test_event_is_one_line_of_json() -> None:
    data, end, rest = event({"text": "a\nb"}).partition(b"\n\n")
    assert (json.loads(data.removeprefix(b"data: ")), end, rest) == ({"text": "a\nb"}, b"\n\n", b"")
