"""The sides at work in turns, on the same prompts, never two at once."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

from bench.peers.processes import Failed
from bench.peers.running import Running
from bench.peers.sides import ROWS, Side
from bench.report import say

__all__ = ["Found", "take_turns"]

_PACED = "decode_8"
"""The row of which the pace of streams is kept."""


@dataclass(slots=True)
class Found:
    """What was measured; each by side, of those that did not fail.

    Attributes:
        speeds: Tokens per second of each turn, by side and row.
        start: Seconds from the start of the process to its first token.
        memory: Bytes resident at their peak.
        pace: p99 of the time between two tokens of eight streams, by its median; of servers alone.
        failed: Why a side did not do its work.
    """

    speeds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    start: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def fail(self, side: Side, why: Failed) -> None:
        say(f"  {side.name} FAILED: {why}")
        self.failed[side.name] = str(why)


def take_turns(
    sides: Sequence[Side],
    begin: Callable[[Side], Running],
    turns: Mapping[str, int],
    ids: Sequence[int],
    rng: random.Random,
    seconds: float,
) -> Found:
    """Starts each side, then gives all of them the same work.

    Args:
        sides: Who takes part.
        begin: Starts one.
        turns: How often each row is run.
        ids: Token ids to draw prompts from. No two prompts share a prefix.
        rng: Draws them.
        seconds: How long all this may take; no turn after the first is begun that would take longer.
    """
    start = time.perf_counter()
    found = Found()
    gaps: dict[str, list[float]] = defaultdict(list)
    working: dict[str, Running] = {}
    with ExitStack() as stack:
        first, *warm = ([rng.choice(ids) for _ in range(length)] for length in (32, *8 * [128]))
        for side in sides:
            began = time.perf_counter()
            try:
                with ExitStack() as attempt:
                    running = begin(side)
                    attempt.callback(running.end)
                    running.start(first)
                    found.start[side.name] = time.perf_counter() - began
                    say(f"  {side.name}: first token after {found.start[side.name]:.1f} s")
                    running.run(warm if _PACED in side.rows else warm[:1], 8)
                    running.hold()
                    stack.enter_context(attempt.pop_all())
            except Failed as error:
                found.fail(side, error)
            else:
                working[side.name] = running
        for turn in range(max(turns.values())):
            turn_start = time.perf_counter()
            # Back and forth: a machine that gets slower favours nobody.
            order = sides if turn % 2 == 0 else sides[::-1]
            for name in (name for name in ROWS if turn < turns.get(name, 0)):
                row = ROWS[name]
                prompts = [[rng.choice(ids) for _ in range(row.prompt)] for _ in range(row.streams)]
                for side in (side for side in order if side.name in working and name in side.rows):
                    running = working[side.name]
                    running.resume()
                    try:
                        run = running.run(prompts, row.output)
                    except Failed as error:
                        found.fail(side, error)
                        working.pop(side.name).end()
                        continue
                    running.hold()
                    tokens = row.streams * row.prompt if row.prefill else run.tokens
                    found.speeds[side.name, name].append(tokens / run.seconds)
                    if name == _PACED:
                        gaps[side.name] += run.itl
                    say(f"  turn {turn + 1}, {name}, {side.name}: {tokens} tokens in {run.seconds:.1f} s")
            now = time.perf_counter()
            if turn + 1 < max(turns.values()) and now - start + (now - turn_start) > seconds:
                say(f"  no more than {turn + 1} turns: another would end after {seconds:.0f} s")
                break
        found.memory = {name: running.peak_memory() for name, running in working.items()}
    for name, itl in gaps.items():
        if itl:
            found.pace[name] = sorted(itl)[int(0.99 * len(itl))] / median(itl)
    return found
