"""Octavo beside vLLM on a CPU and llama.cpp, in turns: `make bench-peers`; SHORT=1 for one turn, INSTALL=1 installs only.

Every side has the same two processors and the same prompts; the others are held (SIGSTOP) while one works. Offline
first, then through each side's own server, streaming. A side that fails is told, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from bench.peers import install
from bench.peers.ratios import GOALS, RATIOS, Goal, lines, ratios, speeds
from bench.peers.running import Server, Worker
from bench.peers.sides import KV_GIB, ROWS, Side, sides
from bench.peers.turns import Found, take_turns
from bench.report import report, say
from bench.serving import find_model

_LOGS = Path(__file__).parent.parent / "results" / "peers"
_IDS = range(3, 48_000)

# Turns of each row. 32 streams take as long as all the others together.
_OFFLINE = dict.fromkeys(ROWS, 3)
_HTTP = {**_OFFLINE, "decode_32": 1}
_OFFLINE_SECONDS, _HTTP_SECONDS = 360, 230
_SHORT_OFFLINE = dict.fromkeys(ROWS, 1)
_SHORT_HTTP = {"decode_1": 1, "decode_8": 1, "prefill_1024": 1}


def main() -> None:
    """Runs everything and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--short", action="store_true", help="one turn, of the sides that a goal names; 32 streams offline alone"
    )
    parser.add_argument("--install", action="store_true", help="install the peers, and run nothing")
    parser.add_argument("--only", help="names of sides, with commas between them")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we started is ended
    missing = install.install()
    if flags.install:
        sys.exit(1 if missing else 0)
    began = time.perf_counter()
    processors = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, processors)
    load = os.getloadavg()[0]
    if load > 1:
        say(f"others keep this machine busy (load {load:.1f}): only the ratios tell something, and they little")
    chosen = _chosen(sides(processors), flags.only, short=flags.short)
    tokenizer = Tokenizer.from_file(str(find_model() / "tokenizer.json"))
    weights: dict[str, int] = {}

    def worker(side: Side) -> Worker:
        return Worker(side, _LOGS / f"{side.name}-offline.log", weights)

    def server(side: Side) -> Server:
        return Server(side, _LOGS / f"{side.name}-http.log", lambda ids: str(tokenizer.decode(list(ids))))

    say("offline")
    rng = random.Random(0)
    offline = take_turns(chosen, worker, _SHORT_OFFLINE if flags.short else _OFFLINE, _IDS, rng, _OFFLINE_SECONDS)
    say("through HTTP, streaming")
    served = [side for side in chosen if side.server]
    http = take_turns(served, server, _SHORT_HTTP if flags.short else _HTTP, _words(tokenizer), rng, _HTTP_SECONDS)
    figures = {**_figures(offline, ""), **_figures(http, "http_"), **_shares(offline, http, chosen)}
    goals = {**GOALS, **_goals(figures, [side for side in chosen if side.ours], weights)}
    told = [prefix + ratio.figure for prefix in ("", "http_") for ratio in RATIOS]
    for line in lines(figures, goals, [name for name in told if name in figures or name in goals]):
        say(line)
    failed = {
        **missing,
        **{f"{name} offline": why for name, why in offline.failed.items()},
        **{f"{name} through HTTP": why for name, why in http.failed.items()},
    }
    for name, why in failed.items():
        say(f"{name} FAILED: {why}")
    say(f"done in {time.perf_counter() - began:.0f} s")
    report(
        "peers",
        figures,
        {name: goal.bound for name, goal in goals.items()},
        met={name: goal.met(figures[name]) for name, goal in goals.items() if name in figures},
        failed=failed,
        peers=install.versions(),
        load_average_before=round(load, 2),
    )


def _chosen(known: Sequence[Side], only: str | None, *, short: bool) -> list[Side]:
    names = [side.name for side in known]
    with_goals = {side for ratio in RATIOS if ratio.goal is not None for side in (ratio.ours, ratio.peer)}
    wanted = only.split(",") if only else [name for name in names if not short or name in with_goals]
    if unknown := set(wanted) - set(names):
        raise SystemExit(f"there is no side {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return [side for side in known if side.name in wanted]


def _words(tokenizer: Tokenizer) -> list[int]:
    """The ids of whole words with a space before. A text of them is read as the same ids again, whoever reads it."""
    texts = tokenizer.decode_batch([[number] for number in _IDS])
    words = [(number, text) for number, text in zip(_IDS, texts, strict=True) if re.fullmatch(" [A-Za-z]+", text)]
    read = tokenizer.encode_batch([text for _, text in words])
    return [number for (number, _), encoding in zip(words, read, strict=True) if encoding.ids == [number]]


def _figures(found: Found, prefix: str) -> dict[str, float]:
    return {
        **ratios(found.speeds, prefix),
        **speeds(found.speeds, prefix),
        **{f"{prefix}{name}_start_s": seconds for name, seconds in found.start.items()},
        **{f"{prefix}{name}_peak_memory_mb": peak / 1e6 for name, peak in found.memory.items()},
        **{f"{prefix}{name}_itl_p99_vs_median_8": pace for name, pace in found.pace.items()},
    }


def _shares(offline: Found, http: Found, sides: Sequence[Side]) -> dict[str, float]:
    """What is left of a side's offline speed through its server."""
    of, through = speeds(offline.speeds, ""), speeds(http.speeds, "")
    return {
        f"http_share_of_offline_{side.name}_{row}": through[name] / of[name]
        for side in sides
        for row in ROWS
        if (name := f"{side.name}_{row}_tok_s") in of and name in through
    }


def _goals(figures: Mapping[str, float], ours: Sequence[Side], weights: Mapping[str, int]) -> dict[str, Goal]:
    """The goals of our own sides, of figures that are no ratios to a peer."""
    goals: dict[str, Goal] = {}
    for side in ours:
        goals |= {f"http_share_of_offline_{side.name}_{row}": Goal(0.9) for row in side.rows}
        goals[f"http_{side.name}_itl_p99_vs_median_8"] = Goal(2, at_most=True)
        for prefix in ("", "http_"):
            goals[f"{prefix}{side.name}_start_s"] = Goal(8, at_most=True)
            if side.name in weights:
                bound = weights[side.name] * 1.3 + KV_GIB * 2**30 + 300e6
                goals[f"{prefix}{side.name}_peak_memory_mb"] = Goal(bound / 1e6, at_most=True)
    return {name: goal for name, goal in goals.items() if name in figures}


if __name__ == "__main__":
    main()
