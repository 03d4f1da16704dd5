"""What the operator costs and how fast it follows, on a real API server: time, writes, memory, and what it survives.

    make bench-operator              everything: about an hour of a quiet machine
    make bench-operator SHORT=1      the same with fewer objects and shorter waits: ten minutes
    make bench-operator ONLY=edits,steady

The control plane is our cluster's without its node, started afresh in .cluster-bench; kwok plays the nodes, so that every
Deployment has a pod that is ready at once. The operator runs as a process beside it, with the chart's rights.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.reconciling_field import Sizes, new_field
from bench.reconciling_scenarios import ON_A_POPULATION, ceiling, populate
from bench.replays import Target, judge, limits
from bench.report import report, say
from cluster import lifecycle
from cluster.layout import REPOSITORY, Layout
from cluster.progress import Progress

STATE = REPOSITORY / ".cluster-bench"
SCENARIOS = ("create", *ON_A_POPULATION, "large")
SHORT = Sizes(200, 500, 100, 15, 60, 20, 10, 400, 1000)


def targets(sizes: Sizes) -> dict[str, Target]:
    """What is to be reached. The short run has its own names where the number of objects is part of one."""
    at_most = {
        f"reconciled_{sizes.small}_vs_ceiling": 1.4,
        f"reconciled_{sizes.large}_vs_ceiling": 1.4,
        "event_to_apply_p99_s": 0.15,
        "event_to_apply_under_burst_p99_s": 0.15,
        "event_to_apply_under_burst_vs_floor": 1.5,
        "event_to_apply_lost": 0,
        "event_to_apply_under_burst_lost": 0,
        "steady_writes_per_min": 0,
        "rss_mb": 150,
        f"rss_{sizes.large}_mb": 350,
        "idle_cpu_percent": 0.5,
        "failover_s": 18,
        "outage_recovery_s": 300,
        "gap_recovery_s": 300,
        "error_403_recovery_s": 300,
        "error_500_recovery_s": 300,
        "error_503_recovery_s": 300,
        "rss_foreign_objects_delta_mb": 5,
    }
    return {name: ("at most", number) for name, number in at_most.items()}


async def measure(layout: Layout, sizes: Sizes, wanted: list[str], figures: dict[str, float]) -> list[str]:
    """Runs the scenarios; the names of those that could not be finished."""
    failed: list[str] = []
    populated = [name for name in wanted if name in ON_A_POPULATION]
    if populated or "create" in wanted:
        async with new_field(layout) as field:
            recording = await populate(field, sizes.small, figures)
            for name in populated:
                say(f"{name}:")
                try:
                    await ON_A_POPULATION[name](field, sizes, figures)
                except Exception:  # noqa: BLE001 the other scenarios' figures are worth having
                    say(f"{name} was not finished:\n{traceback.format_exc()}")
                    failed.append(name)
            field.operator.stop()
        if "create" in wanted:
            async with new_field(layout) as field:
                await ceiling(field, recording, figures)
    if "large" in wanted:
        async with new_field(layout) as field:
            recording = await populate(field, sizes.large, figures)
            figures[f"rss_{sizes.large}_mb"] = field.process.memory_mb()
            field.operator.stop()
        async with new_field(layout) as field:
            await ceiling(field, recording, figures)
    return failed


@contextmanager
def _one_scheduling_group() -> Iterator[None]:
    """Has the kernel share the processors among processes, not among terminal sessions (`autogroup`).

    That is a heuristic for desktops. The control plane has a session of its own, and on two busy cores a process of
    another one waits for up to 240 ms for its turn, which would be measured as the operator's time.
    """
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    before = switch.read_text() if switch.exists() else "0"
    if before.strip() == "0":
        yield
        return
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text(before)


def main() -> None:
    """Runs what is asked for and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer objects, shorter waits")
    parser.add_argument("--only", metavar="A,B", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    flags = parser.parse_args()
    wanted = flags.only.split(",")
    if unknown := [name for name in wanted if name not in SCENARIOS]:
        parser.error(f"there is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    sizes = SHORT if flags.short else Sizes()
    layout, figures, began = Layout.of(STATE), dict[str, float](), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with _one_scheduling_group():
            failed = asyncio.run(measure(layout, sizes, wanted, figures))
    finally:
        lifecycle.down(layout, purge=True, progress=Progress())
    kept = {name: target for name, target in targets(sizes).items() if name in figures}
    judge(figures, kept)
    load = [round(one, 1) for one in os.getloadavg()]  # of the last minute, five and fifteen: how busy others kept it
    report("operator", figures, limits(kept), seconds=round(time.monotonic() - began), failed=failed, load=load)
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
