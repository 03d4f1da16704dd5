"""Policies that scale replicas, on the same traces. `make bench-autoscaling`, SHORT=1 for two of the seeds

Every policy runs on every trace (traces.py) with each seed and both start-up times, in a simulated cluster
(simulation.py). Seeds 6-10 are held out, and what is reported is theirs: tune on `--seeds 1 2 3 4 5`. What has run
before with the very same code is not run again (runs.py).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple
from pathlib import Path
from statistics import fmean, geometric_mean

from bench.autoscaling.measures import Measures
from bench.autoscaling.plot import draw
from bench.autoscaling.policies import BOUND, OURS, POLICIES
from bench.autoscaling.runs import Case, Outcome, Store, carry_out
from bench.autoscaling.simulation import Setup
from bench.autoscaling.traces import TRACES
from bench.report import report, say

_START_UPS = (180.0, 30.0)
_LEAST = "constant-min"
_PLOTS = Path(__file__).parent.parent / "results" / "autoscaling"
_KEPT_RUNS = _PLOTS / "runs"
_KEPT = 0.01
"""The share of late requests that a policy shall keep to."""

_ALWAYS_MOST = 0.9
"""Who has that share of all replicas of the hour or more, in every place, does not follow the load."""

_EQUAL = 0.001
"""Two policies' shares of late requests within this are taken as equal."""

_TARGETS: dict[str, float] = {
    "not_kept": 0,
    "not_kept_within_reach": 0,
    "not_kept_by_followers": 0,
    "worst_gpu_hours_ratio": 1.05,
    "mean_gpu_hours_vs_best_other": 0.9,
    "worst_late_per_gpu_hour_added_ratio": 1,
    "worst_late_per_gpu_hour_added_ratio_of_followers": 1,
    "step_overshoot": 1,
    "decision_s": 5,
    "scale_downs_from_missing": 0,
}

"""Each figure is to be that at most."""

Where = tuple[str, float]
"""A trace and a start-up time."""

Means = Mapping[tuple[str, str, float], Measures]
"""By trace, policy and start-up time."""

Outcomes = Mapping[Case, Outcome]


def mean(measures: Iterable[Measures]) -> Measures:
    """The mean of each measure; of the seconds to the decision the worst."""
    rows = list(measures)
    columns = [sum(column) / len(rows) for column in zip(*map(astuple, rows), strict=True)]
    found = Measures(*columns)
    return Measures(
        found.violations,
        found.gpu_hours,
        found.overshoot,
        found.flaps,
        max(row.decision_seconds for row in rows),
        sum(row.lost_scale_downs for row in rows),
    )


def table(trace: str, means: Means, start_ups: Sequence[float]) -> str:
    """How each policy did on a trace."""
    lines = [f"\n{trace}", f"{'':20}" + "".join(f"  start-up {start_up:<4.0f}{'':43}" for start_up in start_ups)]
    head = f"{'late %':>8}{'GPU-h':>8}{'over':>7}{'flaps':>7}{'decided s':>11}{'lost':>6}{'':9}"
    lines.append(f"{'':20}" + head * len(start_ups))
    for policy in (*POLICIES, BOUND):
        cells = []
        for start_up in start_ups:
            found = means.get((trace, policy, start_up))
            if found is None:
                continue
            decided = f"{found.decision_seconds:.0f}" if found.decision_seconds >= 0 else "-"
            cells.append(
                f"{100 * found.violations:8.2f}{found.gpu_hours:8.2f}{found.overshoot:7.1f}{found.flaps:7.1f}"
                f"{decided:>11}{found.lost_scale_downs:6.0f}{'':9}"
            )
        if cells:
            lines.append(f"{policy:20}" + "".join(cells))
    return "\n".join(lines)


def figures(means: Means) -> dict[str, float]:
    """How ours compares; nothing where it did not run, or nobody else did.

    Wherever any other policy keeps the late requests to 1 %, ours shall too (`not_kept`: how often it does not), with
    hardly more GPU time than the cheapest of those (`worst_gpu_hours_ratio`). Over everything it shall take less than
    the cheapest single policy that keeps them wherever any does (`mean_gpu_hours_vs_best_other`). Elsewhere it shall
    have the fewest late requests for each GPU-hour beyond those of constant-min.

    Where `BOUND` does not keep 1 % either, it takes foresight; what is left of `not_kept` is `not_kept_within_reach`.
    Who always has nearly all replicas (`_unmoved`) had them before the load came: beside those that follow the load
    `not_kept_by_followers` of it is left, and the late requests for each GPU-hour are compared with theirs, too.

    A constant count that is ready before the load comes keeps 1 % where no policy can that sees the load first. So
    beside these each is compared with the cheapest other one that was no later, or the least late one.
    """
    at = _places(means)
    bounds = {where: found.pop(BOUND) for where, found in at.items() if BOUND in found}
    if not at or any(len(found) == 1 for found in at.values()):
        return {}
    own = [found[OURS] for found in at.values()]
    no_later = [_no_later(found) for found in at.values()]
    ratios = [ours.gpu_hours / other.gpu_hours for ours, other in zip(own, no_later, strict=True)]
    told = {
        **_kept(at, bounds),
        **_elsewhere(at, "", frozenset()),
        **_elsewhere(at, "_of_followers", _unmoved(at)),
        "worst_gpu_hours_vs_no_later": max(ratios),
        "mean_gpu_hours_vs_no_later": geometric_mean(ratios),
        "late_share": fmean(found.violations for found in own),
        "late_share_no_later": fmean(found.violations for found in no_later),
        "scale_downs_from_missing": sum(found.lost_scale_downs for found in own),
    }
    if ("step", _START_UPS[0]) in at:
        told["step_overshoot"] = at["step", _START_UPS[0]][OURS].overshoot
    if jumps := [found.decision_seconds for found in own if found.decision_seconds >= 0]:
        told["decision_s"] = max(jumps)
    return told


def _kept(at: Mapping[Where, Mapping[str, Measures]], bounds: Mapping[Where, Measures]) -> dict[str, float]:
    """The figures of where some other policy keeps the late requests to 1 %."""
    keepers = {where: _keepers(found) for where, found in at.items()}
    kept = [where for where, names in keepers.items() if names]
    if not kept:
        return {}
    missed = [where for where in kept if at[where][OURS].violations > _KEPT]
    told: dict[str, float] = {"not_kept": len(missed)}
    if bounds.keys() >= set(missed):
        told["not_kept_within_reach"] = sum(bounds[where].violations <= _KEPT for where in missed)
    still = _unmoved(at)
    told["not_kept_by_followers"] = sum(not keepers[where] <= still for where in missed)
    ratios = [
        at[where][OURS].gpu_hours / min(at[where][policy].gpu_hours for policy in keepers[where])
        for where in kept
        if at[where][OURS].violations <= _KEPT
    ]
    if ratios:
        told["worst_gpu_hours_ratio"] = max(ratios)
    everywhere = set.intersection(*(keepers[where] for where in kept))
    if everywhere:
        told["mean_gpu_hours_vs_best_other"] = max(
            geometric_mean(found[OURS].gpu_hours / found[policy].gpu_hours for found in at.values())
            for policy in everywhere
        )
    return told


def _elsewhere(at: Mapping[Where, Mapping[str, Measures]], suffix: str, left_out: frozenset[str]) -> dict[str, float]:
    """The figure of where no other policy keeps them, some policies left out."""
    bests = [(found, _best_elsewhere(found, left_out)) for found in at.values()]
    ratios = [_late_per_hour(found)[OURS] / _late_per_hour(found)[best] for found, best in bests if best]
    return {f"worst_late_per_gpu_hour_added_ratio{suffix}": max(ratios)} if ratios else {}


def _late_per_hour(found: Mapping[str, Measures]) -> dict[str, float]:
    """Late requests for each GPU-hour beyond those of constant-min, of those that have more."""
    added = {policy: one.gpu_hours - found[_LEAST].gpu_hours for policy, one in found.items() if policy != BOUND}
    return {policy: found[policy].violations / hours for policy, hours in added.items() if hours > 0}


def _best_elsewhere(found: Mapping[str, Measures], left_out: frozenset[str]) -> str:
    """Who has the fewest of them where no other policy keeps them, some left out; empty where one keeps them."""
    if _LEAST not in found or _keepers(found) - left_out:
        return ""
    late = _late_per_hour(found)
    others = late.keys() - left_out - {OURS}
    return min(others, key=lambda policy: (late[policy], policy)) if OURS in late and others else ""


def elsewhere(means: Means) -> str:
    """Where no policy that follows the load keeps the late requests to 1 %: ours beside the best of these.

    That is the one with the fewest late requests for each GPU-hour beyond those of constant-min. `x` is ours by its
    figure; `for 1` what ours would have to have for 1: so many GPU-hours with its late requests, or so many late ones
    with its GPU-hours. `avoided` is the same of the requests that constant-min had late and it has not, where more is
    better. The worst first; empty where there is none.
    """
    rows = []
    places = _places(means)
    still = _unmoved(places)
    for where, found in places.items():
        best = _best_elsewhere(found, still)
        if not best:
            continue
        late, least = _late_per_hour(found), found[_LEAST]
        ours, other = found[OURS], found[best]
        ratio = late[OURS] / late[best]
        avoided = [(least.violations - one.violations) / (one.gpu_hours - least.gpu_hours) for one in (ours, other)]
        row = (
            f"{where[0]:12}{where[1]:9.0f}{100 * ours.violations:8.2f}{ours.gpu_hours:7.2f}{ratio:7.2f}"
            f"{least.gpu_hours + ours.violations / late[best]:9.2f}{100 * ours.violations / ratio:8.2f}"
            f"{avoided[0] / avoided[1]:9.2f}  {best:20}{100 * other.violations:8.2f}{other.gpu_hours:7.2f}"
        )
        rows.append((-ratio, row))
    head = (
        f"{'late %':12}{'start-up':>9}{OURS:>8}{'GPU-h':>7}{'x':>7}{'for 1':>9}{'or':>8}{'avoided':>9}"
        f"  {'best':20}{'late':>8}{'GPU-h':>7}"
    )
    return "\n".join([head, *(row for _, row in sorted(rows))]) if rows else ""


def _unmoved(at: Mapping[Where, Mapping[str, Measures]]) -> frozenset[str]:
    """The other policies that have nearly all replicas everywhere, whatever the load."""
    others = {policy for found in at.values() for policy in found if policy not in (OURS, BOUND)}
    moved = {
        policy
        for found in at.values()
        for policy, one in found.items()
        if one.gpu_hours < _ALWAYS_MOST * Setup().maximum
    }
    return frozenset(others - moved)


def _no_later(found: Mapping[str, Measures]) -> Measures:
    """The cheapest other policy that has no more late requests than ours; where all have more, than the least late."""
    others = [measures for policy, measures in found.items() if policy != OURS]
    allowed = max(found[OURS].violations, min(measures.violations for measures in others)) + _EQUAL
    return min((one for one in others if one.violations <= allowed), key=lambda one: one.gpu_hours)


def not_kept(means: Means) -> str:
    """Where another policy keeps the late requests to 1 % and ours does not, beside what is possible there (`BOUND`).

    A row for each, with the cheapest of the others that keep them, and whose miss it is: ours, if a policy that follows
    the load keeps them or `BOUND` does; else nobody could who has to see the load first. Empty where there is none.
    """
    lines = [f"{'late %':12}{'start-up':>9}{OURS:>8}{BOUND:>8}{'kept':>8}"]
    places = _places(means)
    still = _unmoved(places)
    for where, found in places.items():
        bound = found.pop(BOUND, None)
        keepers = _keepers(found)
        if not keepers or found[OURS].violations <= _KEPT:
            continue
        cheapest = min(keepers, key=lambda policy: found[policy].gpu_hours)
        shares = [found[OURS], bound, found[cheapest]]
        cells = "".join(f"{100 * share.violations:8.2f}" if share else f"{'-':>8}" for share in shares)
        hours = f"{found[cheapest].gpu_hours:.2f} GPU-h; ours {found[OURS].gpu_hours:.2f}"
        is_ours = not keepers <= still or (bound is not None and bound.violations <= _KEPT)
        whose = "OURS" if is_ours else f"nobody's who sees the load first, by {BOUND}"
        lines.append(f"{where[0]:12}{where[1]:9.0f}{cells}  by {cheapest}, {hours}; the miss is {whose}")
    if len(lines) == 1:
        return ""
    names = ", ".join(sorted(still)) or "none"
    lines.append(f"have {_ALWAYS_MOST:.0%} of all replicas or more everywhere, whatever the load: {names}")
    return "\n".join(lines)


def _places(means: Means) -> dict[Where, dict[str, Measures]]:
    """By place what each policy did there, where ours ran."""
    places: dict[Where, dict[str, Measures]] = {}
    for (trace, policy, start_up), found in sorted(means.items(), key=lambda item: item[0]):
        places.setdefault((trace, start_up), {})[policy] = found
    return {where: found for where, found in places.items() if OURS in found}


def _keepers(found: Mapping[str, Measures]) -> set[str]:
    """The other policies that keep the late requests to 1 %."""
    return {policy for policy, one in found.items() if policy not in (OURS, BOUND) and one.violations <= _KEPT}


def verdicts(found: Mapping[str, float]) -> str:
    """Each target, what was found, and whether it is met."""
    lines = []
    for name, target in _TARGETS.items():
        if name not in found:
            lines.append(f"{name:40}{'-':>8}  target <= {target:g}: not measured")
            continue
        word = "met" if found[name] <= target else "NOT met"
        lines.append(f"{name:40}{found[name]:8.4g}  target <= {target:g}: {word}")
    return "\n".join(lines)


def main() -> None:
    """Runs everything and reports."""
    options = _options()
    cases = list(
        itertools.starmap(Case, itertools.product(options.traces, options.policies, options.seeds, options.start_ups))
    )
    store = Store(_KEPT_RUNS)
    outcomes = store.find(cases)
    say(f"{len(cases)} runs, {len(outcomes)} of them kept in {_KEPT_RUNS}")
    began = time.monotonic()
    with ProcessPoolExecutor(options.workers) as pool:
        futures = {pool.submit(carry_out, case): case for case in cases if case not in outcomes}
        for future in as_completed(futures):
            outcomes[futures[future]] = future.result()
            store.keep(futures[future], future.result())
            if len(outcomes) % 20 == 0:
                say(f"{len(outcomes)} of {len(cases)} runs, {time.monotonic() - began:.0f} s")
    means = {
        (trace, policy, start_up): mean(
            outcome.measures
            for case, outcome in outcomes.items()
            if (case.trace, case.policy, case.start_up) == (trace, policy, start_up)
        )
        for trace, policy, start_up in itertools.product(options.traces, options.policies, options.start_ups)
    }
    for trace in options.traces:
        say(table(trace, means, options.start_ups))
    _plot(outcomes, options)
    found = figures(means)
    for rows in (not_kept(means), elsewhere(means)):
        if rows:
            say("\n" + rows)
    say("\n" + verdicts(found))
    report("autoscaling", found, _TARGETS, seeds=options.seeds, start_ups=options.start_ups)


def _plot(outcomes: Outcomes, options: argparse.Namespace) -> None:
    """One picture for each trace and start-up time, of the first seed."""
    _PLOTS.mkdir(parents=True, exist_ok=True)
    for trace, start_up in itertools.product(options.traces, options.start_ups):
        found = {policy: outcomes[Case(trace, policy, options.seeds[0], start_up)] for policy in options.policies}
        steps = {policy: outcome.steps for policy, outcome in found.items()}
        title = f"{trace}, start-up {start_up:.0f} s: replicas asked for, and the load in replicas' worth (grey)"
        picture = draw(title, next(iter(found.values())).worth, steps, Setup().maximum)
        (_PLOTS / f"{trace}-{start_up:.0f}.svg").write_text(picture)
    say(f"pictures are in {_PLOTS}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="seeds 6 and 7")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6, 11)))
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=list(TRACES))
    parser.add_argument("--policies", nargs="+", choices=(*POLICIES, BOUND), default=[*POLICIES, BOUND])
    parser.add_argument("--start-ups", type=float, nargs="+", default=list(_START_UPS), metavar="SECONDS")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.short:
        options.seeds = [6, 7]
    return options


if __name__ == "__main__":
    main()
