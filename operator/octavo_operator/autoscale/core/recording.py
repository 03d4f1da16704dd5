"""Decisions and all that they were made of, as text: what is written here can be decided again anywhere.

A recording is JSON lines. The first says what it is, each other one is a decision with its arguments. What the core
remembered before a decision follows from those before it; the first one has it, and so has one in sixty, so that the
oldest lines can be dropped.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from octavo_operator.autoscale.core.decide import State
from octavo_operator.autoscale.core.values import Decision, Pod, Settings
from octavo_operator.errors import OperatorError

__all__ = ["VERSION", "Heading", "RecordingInvalid", "Round", "line_of", "read_recording"]

VERSION: Final = 3
"""Of the format. A field more, or another meaning, is another version."""

EXACT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, ser_json_inf_nan="constants")
"""Holds for the classes inside, too. A number that is not finite is no JSON: better refused than read as nothing."""

T = TypeVar("T")


class RecordingInvalid(OperatorError):
    """A file is no recording, or not a whole one; the message says which line is wrong, and how."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The first line.

    Attributes:
        version: of the format.
        namespace: of the InferenceService.
        name: of the InferenceService.
        operator: the version of the operator that decided.
    """

    __pydantic_config__: ClassVar[ConfigDict] = EXACT
    version: Literal[3]
    namespace: str
    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class Round:
    """One decision, and everything that it was made of.

    Attributes:
        time: when, UTC, for people.
        now: the same on the clock that all other times are of.
        acts: whether the decision was to be carried out: mode is Auto, and nothing else sets replicas.
        desired: replicas before.
        settings: what the user wants.
        pods: those that existed.
        decision: what was decided.
        state: what was remembered before; None where it follows from the round before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = EXACT
    time: datetime
    now: float
    acts: bool
    desired: int
    settings: Settings
    pods: tuple[Pod, ...]
    decision: Decision
    state: State | None


HEADING, ROUND = TypeAdapter(Heading), TypeAdapter(Round)


def line_of(part: Heading | Round) -> bytes:
    """One line, with its end."""
    return (HEADING.dump_json(part) if isinstance(part, Heading) else ROUND.dump_json(part)) + b"\n"


def read_recording(lines: Iterable[str]) -> tuple[Heading, list[Round]]:
    """Reads a recording.

    Args:
        lines: with their ends.

    Raises:
        RecordingInvalid: it is none, or not whole.
    """
    numbered = enumerate(lines, 1)
    heading = _heading(numbered)
    rounds: list[Round] = []
    for number, line in numbered:
        one = _parsed(ROUND, number, line)
        if not rounds and one.state is None:
            raise RecordingInvalid(f"line {number} has no state: the lines before it were cut off; ask for it again")
        if rounds and one.now < rounds[-1].now:
            raise RecordingInvalid(f"line {number} is earlier than the line before it: they are out of order")
        rounds.append(one)
    if not rounds:
        raise RecordingInvalid("it holds no decision yet: the first is made some seconds after a pod is ready")
    return heading, rounds


def _heading(numbered: Iterator[tuple[int, str]]) -> Heading:
    number, line = next(numbered, (1, ""))
    if not line.strip():
        raise RecordingInvalid("it is empty")
    try:
        given: Any = json.loads(line)
    except ValueError:
        given = None
    if not isinstance(given, dict) or "version" not in given:
        raise RecordingInvalid(
            "its first line is not that of a recording: `kubectl octavo why NAME --inputs` makes one"
        )
    if given["version"] != VERSION:
        raise RecordingInvalid(
            f"it is of version {given['version']!r} and this program reads {VERSION}: use the octavo-operator that made it"
        )
    return _parsed(HEADING, number, line)


def _parsed(adapter: TypeAdapter[T], number: int, line: str) -> T:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if fault["type"] == "json_invalid":
        if not line.endswith("\n"):
            raise RecordingInvalid(f"it breaks off in line {number}: ask for it again, or delete that line")
        raise RecordingInvalid(f"line {number} is no JSON: {fault['msg']}")
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "unexpected_keyword_argument":
        raise RecordingInvalid(
            f"line {number}: this program knows no field {field}: use the octavo-operator that made it"
        )
    raise RecordingInvalid(f"line {number}: {field or 'the line'}: {fault['msg']}")
