"""`octavo-operator replay`: decides again what the autoscaler has decided, and shows what other settings would have done."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from octavo_operator.autoscale.core.recording import Heading, RecordingInvalid, Round, read_recording
from octavo_operator.autoscale.core.replay import Replayed, first_difference, replay, replay_with
from octavo_operator.autoscale.core.report import because
from octavo_operator.errors import SettingsError
from octavo_operator.plugin.screen import amount, table

__all__ = ["FIELDS", "main", "screen"]

EXIT_SAME = 0
EXIT_DIFFERENT = 1
EXIT_USAGE = 2

WIDTH = 72
HEIGHT = 12
"""Columns and most rows of the plot."""

DESCRIPTION = """\
Decides again what the autoscaler has decided about an InferenceService. FILE is
what the operator keeps of it, an hour of a busy service and five hours of a
quiet one:

  kubectl octavo why NAME --inputs > FILE

It has each decision with all that it was made of: the settings, the pods and
what each told of itself, what was remembered. Needs no cluster.

Without --set every decision must come out as it was recorded, to the last bit.
With --set the same minutes are decided with other settings, and both are shown:
a plot of the replicas over time, and a line for each moment at which one of the
two changed.
"""

EPILOG = """\
settings, as in spec.autoscaling:
  minReplicas, maxReplicas         1 to 10000
  targetCacheUsage                 percent, 1 to 100
  targetQueueLength                requests per pod, 1 to 100000
  scaleDownStabilizationSeconds    0 to 86400
  scaleDownAfterLateSeconds        0 to 21600

The pods and their load stay those of the recording: work is counted, and it is
the same on more or on fewer pods, but a queue that more pods would have emptied
sooner is still there in the replay. What to expect of a setting in the long run
is a question to `make bench-autoscaling`.

examples:
  octavo-operator replay chat.jsonl
  octavo-operator replay chat.jsonl --set targetQueueLength=2
  octavo-operator replay chat.jsonl --set maxReplicas=12 --set minReplicas=2
  kubectl octavo why chat --inputs | octavo-operator replay -

exit code: 0 when all came out as recorded, or with --set; 1 when a decision
came out otherwise; 2 when the file or a setting cannot be used.
"""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of spec.autoscaling that a replay can change.

    Attributes:
        name: of the field of Settings that it becomes.
        least: its least value.
        most: its highest value.
        worth: how much one of it is in Settings.
    """

    name: str
    least: int
    most: int
    worth: Callable[[int], float] = float


FIELDS = {
    "minReplicas": Field("min_replicas", 1, 10000, int),
    "maxReplicas": Field("max_replicas", 1, 10000, int),
    "targetCacheUsage": Field("target_cache", 1, 100, lambda percent: percent / 100),
    "targetQueueLength": Field("target_queue", 1, 100000),
    "scaleDownStabilizationSeconds": Field("stabilization", 0, 86400),
    "scaleDownAfterLateSeconds": Field("after_late", 0, 21600),
}
"""By their names in the spec; the bounds are the CRD's."""


def main(arguments: Sequence[str]) -> int:
    """Runs `octavo-operator replay`; its exit code."""
    given = _parser().parse_args(arguments)
    try:
        changes = _changes(given.set)
        heading, rounds = _read(given.file)
        _check_bounds(changes, rounds)
        same = replay(rounds)
        made = replay_with(rounds, changes) if changes else same
    except (RecordingInvalid, SettingsError) as error:
        where = f"{given.file}: " if isinstance(error, RecordingInvalid) else ""
        sys.stderr.write(f"octavo-operator replay: {where}{error}\n")
        return EXIT_USAGE
    print(_heading(heading, rounds))
    difference = first_difference(same)
    if difference is not None:
        print(
            f"NOT as recorded: decision {difference.number}, {_clock(difference.time)}: {difference.field} was "
            f"{difference.recorded!r}, and is {difference.replayed!r} now, with the recorded settings.\n"
            f"It was decided by octavo-operator {heading.operator}: another version may decide otherwise."
        )
        if not changes:
            return EXIT_DIFFERENT
    print(screen(made, changes, every=given.all))
    return EXIT_SAME


def screen(made: Sequence[Replayed], changes: Mapping[str, float], *, every: bool = False) -> str:
    """What was decided, as a plot and a table; with other settings beside what was recorded.

    Args:
        made: the replayed rounds.
        changes: the fields of Settings that are other than recorded.
        every: whether each decision has a line, and not only those at which a number changes.
    """
    said = _changed(changes, made) or ["each came out as it was recorded, bit for bit"]
    both = bool(changes)
    return "\n".join([*said, "", *_plot(made, both=both), "", *_table(made, both=both, every=every)])


def _read(path: str) -> tuple[Heading, list[Round]]:
    try:
        if path == "-":
            return read_recording(sys.stdin)
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 what a person typed, as it is
            return read_recording(file)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordingInvalid("it is no text: is it packed?") from error


def _changes(given: Sequence[str]) -> dict[str, float]:
    """Fields of Settings and their values, of `NAME=VALUE` each.

    Raises:
        SettingsError: a name or a value cannot be used.
    """
    changes: dict[str, float] = {}
    for text in given:
        name, is_assigned, value = text.partition("=")
        if not is_assigned:
            raise SettingsError(f"--set {text}: write NAME=VALUE, such as targetQueueLength=2")
        if name == "mode":
            raise SettingsError("--set mode: a replay writes nothing, whatever the mode is; both decide the same")
        field = FIELDS.get(name)
        if field is None:
            raise SettingsError(f"--set {name}: it is none of {', '.join(FIELDS)}")
        if field.name in changes:
            raise SettingsError(f"--set {name}: it is set twice")
        # isdecimal() knows the digits of many scripts, which are no values of the spec.
        if not (value.isascii() and value.isdecimal()) or not field.least <= int(value) <= field.most:
            raise SettingsError(f"--set {text}: {value!r} is not a whole number from {field.least} to {field.most}")
        changes[field.name] = field.worth(int(value))
    return changes


def _check_bounds(changes: Mapping[str, float], rounds: Sequence[Round]) -> None:
    for one in rounds:
        least = changes.get("min_replicas", one.settings.min_replicas)
        most = changes.get("max_replicas", one.settings.max_replicas)
        if changes and least > most:
            hint = "" if {"min_replicas", "max_replicas"} <= changes.keys() else "; set both"
            raise SettingsError(f"minReplicas {least} is above maxReplicas {most}{hint}")


def _heading(heading: Heading, rounds: Sequence[Round]) -> str:
    first, last = rounds[0].time, rounds[-1].time
    return (
        f"{heading.name} in namespace {heading.namespace}: {amount(len(rounds), 'decision')}, "
        f"{first:%Y-%m-%d %H:%M:%S} to {last:{'%H:%M:%S' if last.date() == first.date() else '%Y-%m-%d %H:%M:%S'}} UTC"
    )


def _changed(changes: Mapping[str, float], made: Sequence[Replayed]) -> list[str]:
    """What is decided otherwise: each setting, as it was and as it is."""
    lines = []
    for name, field in FIELDS.items():
        if field.name in changes:
            were = sorted({getattr(one.recorded.settings, field.name) for one in made})
            before = " and ".join(_shown(field, value) for value in were)
            lines.append(f"  {name}: {before} recorded, {_shown(field, changes[field.name])} replayed")
    return lines


def _shown(field: Field, value: float) -> str:
    return f"{value * 100 if field.name == 'target_cache' else value:g}"


def _plot(made: Sequence[Replayed], *, both: bool) -> list[str]:
    """Replicas over time: in each column the most that were asked for while it lasted."""
    began, span = made[0].recorded.now, made[-1].recorded.now - made[0].recorded.now
    recorded, replayed = [0] * WIDTH, [0] * WIDTH
    for one in made:
        column = min(WIDTH - 1, int(WIDTH * ((one.recorded.now - began) / span))) if span > 0 else 0
        recorded[column] = max(recorded[column], one.recorded.decision.replicas)
        replayed[column] = max(replayed[column], one.decision.replicas)
    for column in range(1, WIDTH):
        # A column in which nothing was decided: nothing has changed.
        recorded[column] = recorded[column] or recorded[column - 1]
        replayed[column] = replayed[column] or replayed[column - 1]
    most = max(*recorded, *replayed)
    rows = min(most, HEIGHT)
    lines = ["replicas"]
    for row in range(rows, 0, -1):
        cells = (
            _cell(-(-before * rows // most) == row, -(-now * rows // most) == row and both)
            for before, now in zip(recorded, replayed, strict=True)
        )
        lines.append(f"{row * most // rows:>6} |{''.join(cells)}".rstrip())
    first, last = _clock(made[0].recorded.time), _clock(made[-1].recorded.time)
    lines += [f"       +{'-' * WIDTH}", f"        {first}{last:>{WIDTH - len(first)}}"]
    return [*lines, "        o recorded   x replayed   * both"] if both else lines


def _cell(recorded: bool, replayed: bool) -> str:
    return "*" if recorded and replayed else "o" if recorded else "x" if replayed else " "


def _table(made: Sequence[Replayed], *, both: bool, every: bool) -> list[str]:
    head = ["TIME", "READY", "RUNNING", "WAITING", "CACHE", "RECORDED", *(["REPLAYED"] if both else []), "WHY"]
    rows: list[list[str]] = []
    before: tuple[int, int] | None = None
    for number, one in enumerate(made, 1):
        asked = one.recorded.decision.replicas, one.decision.replicas
        if every or asked != before or number == len(made):
            rows.append(
                [_clock(one.recorded.time), *_load(one.recorded), *map(str, asked[: 1 + both]), because(one.decision)]
            )
        before = asked
    return table(head, rows)


def _load(one: Round) -> list[str]:
    """What the pods told: how many of how many answered, requests that run and wait, and the mean of the cache."""
    serving = [pod for pod in one.pods if pod.ready_at is not None and not pod.leaving]
    samples = [pod.sample for pod in serving if pod.sample is not None]
    if not samples:
        return [f"{len(serving)} of {len(one.pods)}", "-", "-", "-"]
    usage = sum(sample.cache_usage for sample in samples) / len(samples)
    return [
        f"{len(serving)} of {len(one.pods)}",
        f"{sum(sample.running for sample in samples):.0f}",
        f"{sum(sample.waiting for sample in samples):.0f}",
        f"{usage:.0%}",
    ]


def _clock(time: datetime) -> str:
    return f"{time:%H:%M:%S}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo-operator replay",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="a recording; - reads it from the input")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="decide with this setting; may be given again"
    )
    parser.add_argument("--all", action="store_true", help="a line for each decision")
    return parser
