"""One run of one policy, and what is kept of it: whatever has run with the very same code is not run again.

A full comparison takes half an hour, and a change of our own core changes one policy in sixteen. So outcomes are kept
under a digest of the code that they follow from: for ours with its core, for the others without.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.autoscaling.baselines import Seen
from bench.autoscaling.measures import Measures, measure
from bench.autoscaling.policies import BOUND, OURS, POLICIES
from bench.autoscaling.policy import Policy
from bench.autoscaling.replica import Machine
from bench.autoscaling.simulation import Setup, simulate
from bench.autoscaling.traces import HOUR, TRACES
from octavo_operator.autoscale.core import decide

__all__ = ["Case", "Outcome", "Store", "carry_out", "digest"]

_HERE = Path(__file__).parent
_REPORTS = ("__main__.py", "plot.py", "runs.py")
"""What no outcome follows from, but for `carry_out`: who changes that one removes what is kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    trace: str
    policy: str
    seed: int
    start_up: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of a run.

    Attributes:
        measures: How it went.
        steps: The count, and from when on.
        worth: The load of each minute.
    """

    measures: Measures
    steps: tuple[tuple[float, int], ...]
    worth: tuple[float, ...]


def carry_out(case: Case) -> Outcome:
    """Simulates a case."""
    run = simulate(TRACES[case.trace], case.seed, _maker(case), Setup(start_up=case.start_up))
    minutes = range(0, int(HOUR), 60)
    return Outcome(
        measures=measure(run),
        steps=((0.0, run.initial), *((decision.time, decision.after) for decision in run.decisions)),
        worth=tuple(sum(run.worth[minute : minute + 60]) / 60 for minute in minutes),
    )


def _maker(case: Case) -> Callable[[], Policy]:
    if case.policy != BOUND:
        return POLICIES[case.policy]
    worth = TRACES[case.trace].demand(case.seed)[1].tolist()
    return lambda: Seen(worth)


class Store:
    """Outcomes in a folder: a file of JSON lines for each digest.

    Args:
        folder: Where. Nobody else writes there meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, cases: Iterable[Case]) -> dict[Case, Outcome]:
        """Those that are kept."""
        wanted = set(cases)
        found: dict[Case, Outcome] = {}
        for path in {self._path(case) for case in wanted}:
            for line in path.read_text().splitlines() if path.exists() else ():
                case, measures, steps, worth = json.loads(line)
                outcome = Outcome(Measures(**measures), tuple((time, count) for time, count in steps), tuple(worth))
                found[Case(**case)] = outcome
        return {case: outcome for case, outcome in found.items() if case in wanted}

    def keep(self, case: Case, outcome: Outcome) -> None:
        """Adds one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps([asdict(case), asdict(outcome.measures), outcome.steps, outcome.worth])
        with self._path(case).open("a") as file:
            file.write(line + "\n")

    def _path(self, case: Case) -> Path:
        return self._folder / f"{digest(case.policy)}.jsonl"


@functools.cache
def digest(policy: str) -> str:
    """What a policy's outcomes follow from: the simulation and all policies but ours, and ours with its core."""
    ours = _HERE / "ours.py"
    files = [path for path in sorted(_HERE.glob("*.*")) if path.name not in _REPORTS and path != ours]
    if policy == OURS:
        files += [ours, *sorted(Path(decide.__file__).parent.glob("*.py"))]
    whole = hashlib.sha256(f"{np.__version__} {Machine()} {policy == OURS}".encode())
    for path in files:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
