"""Decides again what was decided, from the same inputs, with the same settings or with others.

With other settings the number of replicas goes its own way: each decision starts from the number that the one before
it asked for. When someone else set the number in the recording, it is set in the replay. The pods and their load stay
those that were there, whatever the replay asks for: work is counted, and that is the same on more or fewer pods, but a
queue that more pods would have emptied is still in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

from octavo_operator.autoscale.core.decide import State, decide
from octavo_operator.autoscale.core.recording import RecordingInvalid, Round
from octavo_operator.autoscale.core.values import Decision, Settings

__all__ = ["Difference", "Replayed", "first_difference", "replay", "replay_with"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A round, and what was decided this time.

    Attributes:
        recorded: the round.
        desired: replicas before, in the replay.
        decision: what was decided in the replay.
    """

    recorded: Round
    desired: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay differs from its recording.

    Attributes:
        number: of the round, from 1.
        time: of the round.
        field: of the decision, the first that differs.
        recorded: its recorded value.
        replayed: its value now.
    """

    number: int
    time: datetime
    field: str
    recorded: object
    replayed: object


def replay(rounds: Sequence[Round]) -> list[Replayed]:
    """Decides again with the recorded settings.

    Raises:
        RecordingInvalid: the inputs cannot be those of a decision.
    """
    state = _first_state(rounds)
    made: list[Replayed] = []
    for number, one in enumerate(rounds, 1):
        decision, state = _decide(number, one, one.settings, state, one.desired)
        made.append(Replayed(one, one.desired, decision))
    return made


def replay_with(rounds: Sequence[Round], changes: Mapping[str, float]) -> list[Replayed]:
    """Decides again with other settings.

    Args:
        rounds: of a recording.
        changes: fields of Settings, and their other values.

    Raises:
        RecordingInvalid: the inputs cannot be those of a decision.
    """
    state = _first_state(rounds)
    made: list[Replayed] = []
    desired = rounds[0].desired
    for number, one in enumerate(rounds, 1):
        if number > 1:
            desired = _carried_on(made[-1], one.desired)
        settings = replace(one.settings, **changes)  # type: ignore[arg-type] # the fields are checked where they are read
        decision, state = _decide(number, one, settings, state, desired)
        made.append(Replayed(one, desired, decision))
    return made


def first_difference(made: Sequence[Replayed]) -> Difference | None:
    """The first decision that is not, bit for bit, the recorded one."""
    for number, one in enumerate(made, 1):
        for field in fields(one.decision):
            before, after = getattr(one.recorded.decision, field.name), getattr(one.decision, field.name)
            if repr(before) != repr(after):  # 0.0 is equal to -0.0, and not the same
                return Difference(number, one.recorded.time, field.name, before, after)
    return None


def _carried_on(before: Replayed, recorded: int) -> int:
    """Replicas before the next decision: what the last one asked for, unless someone else had a say."""
    last = before.recorded
    if not last.acts or recorded not in {last.decision.replicas, last.desired}:
        return recorded
    return before.decision.replicas


def _first_state(rounds: Sequence[Round]) -> State:
    state = rounds[0].state
    assert state is not None
    return state


def _decide(number: int, one: Round, settings: Settings, state: State, desired: int) -> tuple[Decision, State]:
    try:
        return decide(settings, state, one.pods, desired, one.now)
    except (ArithmeticError, ValueError) as error:
        raise RecordingInvalid(
            f"decision {number}, {one.time:%H:%M:%S}, has inputs that no operator decides on: {error}"
        ) from error
