"""The program: plays each promise in a world of its own and prints which held."""

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_operator.selftest.clock import Standstill, VirtualLoop
from octavo_operator.selftest.promises.catalogue import PROMISES
from octavo_operator.selftest.promises.model import Promise
from octavo_operator.selftest.world import World

__all__ = ["Verdict", "main", "play"]

DESCRIPTION = """\
Puts the operator's promises to the test: the real controller, reconciler and
store run against an API server in memory while requests fail, watches lose
events, pods crash and processes die. Needs no cluster and no network, and
touches none. Time is virtual: an hour of outage costs a second.
"""

CUT_SHORT = "it was not played to the end"

SHOWN = 5
"""How many faults are shown of a promise that is broken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a promise.

    Attributes:
        promise: which.
        done: what was done to it, in words.
        broken: what did not hold; empty when it held.
        seconds: how long it took, by the clock on the wall.
    """

    promise: Promise
    done: str
    broken: tuple[str, ...]
    seconds: float


class _Faults(logging.Handler):
    """Hears of exceptions that a look of the operator ended in: it survives them, but they are faults."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__()
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        """Takes in one line of the log."""
        if record.exc_info is not None:
            self._fail(f"{record.getMessage()}: {record.exc_info[1]!r}")


def play(promise: Promise, seed: int) -> Verdict:
    """Plays one promise in a new world. The same seed gives the same run."""
    began = time.perf_counter()
    random.seed(seed)  # the operator spreads its retries by the module's own generator
    done, broken = CUT_SHORT, list[str]()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            done, broken = runner.run(_play(promise, seed))
    except Standstill as error:
        broken = [str(error)]
    return Verdict(promise, done, tuple(broken), time.perf_counter() - began)


async def _play(promise: Promise, seed: int) -> tuple[str, list[str]]:
    world = World(random.Random(f"{promise.name} {seed}"))  # noqa: S311 not a secret
    handler = _Faults(world.judge.fail)
    logger = logging.getLogger("octavo_operator")
    logger.addHandler(handler)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: world.judge.fail(f"{context['message']}: {context.get('exception')!r}")
    )
    done = CUT_SHORT
    try:
        done = await promise.play(world)
    except Exception as error:  # noqa: BLE001 a world that went to pieces is a verdict too
        world.judge.fail(f"ended by {error!r}")
    finally:
        await world.stop()
        logger.removeHandler(handler)
    return done, world.judge.broken


def main(arguments: Sequence[str]) -> int:
    """Runs `octavo-operator selftest`.

    Returns:
        The exit code: 0 when every promise held, 1 when one did not.
    """
    given = _parser().parse_args(arguments)
    if given.list:
        for promise in PROMISES.values():
            print(f"{promise.name:<{_WIDTH}}  {promise.sentence}")
        return 0
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    began = time.perf_counter()
    verdicts = []
    for name in given.only or PROMISES:
        verdict = play(PROMISES[name], seed)
        verdicts.append(verdict)
        _show(verdict)
    broken = [verdict.promise.name for verdict in verdicts if verdict.broken]
    count = f"{len(broken)} of {len(verdicts)} promises are broken" if broken else f"{len(verdicts)} promises held"
    again = "".join(f" --only {name}" for name in broken or given.only or ())
    print(
        f"\n{count}, {time.perf_counter() - began:.1f} s. The same again: octavo-operator selftest --seed {seed}{again}"
    )
    return 1 if broken else 0


_WIDTH = max(map(len, PROMISES))


def _show(verdict: Verdict) -> None:
    mark = "✗" if verdict.broken else "✓"
    print(f"{mark} {verdict.promise.name:<{_WIDTH}}  {verdict.seconds:4.1f} s  {verdict.done}", flush=True)
    if verdict.broken:
        print(f"    promised: {verdict.promise.sentence}")
        for sentence in verdict.broken[:SHOWN]:
            print(f"    {sentence}")
        if len(verdict.broken) > SHOWN:
            print(f"    and {len(verdict.broken) - SHOWN} more")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo-operator selftest",
        description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the run of this seed (default: a new one)")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(PROMISES),
        metavar="NAME",
        help="this promise alone; can be given more than once",
    )
    parser.add_argument("--list", action="store_true", help="name the promises and end")
    return parser
