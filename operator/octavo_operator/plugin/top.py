"""`kubectl octavo top`: load and latency of each pod, from two looks at its metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.plugin.screen import Paint, plain, table

__all__ = ["Row", "Sample", "as_json", "quantile", "read_metrics", "rows", "screen"]

CACHE = "vllm:kv_cache_usage_perc"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
TOKENS = "vllm:generation_tokens_total"
TTFT = "vllm:time_to_first_token_seconds_bucket"
HIGH, FULL = 0.8, 0.95
"""From which cache usage on a pod is shown as busy, and as full."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a pod's metrics said at one moment.

    Attributes:
        at: when, in seconds.
        numbers: gauges and counters.
        first_tokens: how many requests had their first token within so many seconds, for each bound.
    """

    at: float
    numbers: Mapping[str, float]
    first_tokens: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; None where nothing is known.

    Attributes:
        name: of the pod.
        state: what it is doing.
        cache: usage of its KV cache, from 0 to 1.
        running: requests that run.
        waiting: requests that wait.
        tokens_per_second: that it generated between both looks.
        first_tokens: requests that had their first token between both looks, for each bound of seconds.
    """

    name: str
    state: str
    cache: float | None = None
    running: float | None = None
    waiting: float | None = None
    tokens_per_second: float | None = None
    first_tokens: Mapping[float, float] = field(default_factory=dict)


def read_metrics(text: str, at: float) -> Sample:
    """Reads an exposition; labels are summed over.

    Raises:
        ValueError: it is none.
    """
    from prometheus_client.parser import text_string_to_metric_families

    numbers: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == TTFT:
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name in {CACHE, RUNNING, WAITING, TOKENS}:
                numbers[sample.name] = numbers.get(sample.name, 0.0) + sample.value
    return Sample(at, numbers, buckets)


def rows(states: Mapping[str, str], before: Mapping[str, Sample], after: Mapping[str, Sample]) -> list[Row]:
    """The table.

    Args:
        states: each pod, and what it is doing.
        before: the metrics of those that answered the first look.
        after: of those that answered the second.
    """
    return [_row(name, state, before.get(name), after.get(name)) for name, state in states.items()]


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which this share of the observations lies, as Prometheus reckons it from a histogram.

    Args:
        share: between 0 and 1.
        buckets: observations up to each bound, infinity included.

    Returns:
        None without observations; infinity when it is beyond the last bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > below:
            return bound if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low


def screen(lines: Sequence[Row], missing: Iterable[str], paint: Paint = plain) -> str:
    """The table as text, with a line for all when there are several.

    Args:
        lines: the rows.
        missing: what could not be read, a sentence each.
        paint: colours, where there are some.
    """
    head = ("POD", "CACHE", "RUNNING", "WAITING", "TOKENS/S", "TTFT P50", "TTFT P99", "STATE")
    shown = [*lines, _total(lines)] if len(lines) > 1 else lines
    cells, colours = [], []
    for row in shown:
        first = (quantile(share, row.first_tokens) for share in (0.5, 0.99))
        cells.append(
            (
                row.name,
                "-" if row.cache is None else f"{row.cache:.0%}",
                _number(row.running),
                _number(row.waiting),
                _number(row.tokens_per_second),
                *(_time(value, row.first_tokens) for value in first),
                row.state,
            )
        )
        full = "" if row.cache is None or row.cache < HIGH else "red" if row.cache >= FULL else "yellow"
        colours.append(("", full, "", "yellow" if row.waiting else ""))
    text = table(head, cells, colours, paint) if lines else ["There are no pods."]
    return "\n".join([*text, *(f"not shown: {sentence}" for sentence in missing)])


def as_json(lines: Sequence[Row], missing: Sequence[str]) -> dict[str, Any]:
    """The same for programs; times in seconds, null where nothing is known or it is beyond the last bound."""

    def seconds(row: Row, share: float) -> float | None:
        value = quantile(share, row.first_tokens)
        return None if value is None or math.isinf(value) else value

    return {
        "pods": [
            {
                "name": row.name,
                "state": row.state,
                "cacheUsage": row.cache,
                "running": row.running,
                "waiting": row.waiting,
                "tokensPerSecond": row.tokens_per_second,
                "ttftP50": seconds(row, 0.5),
                "ttftP99": seconds(row, 0.99),
            }
            for row in lines
        ],
        "missing": list(missing),
    }


def _row(name: str, state: str, before: Sample | None, after: Sample | None) -> Row:
    if after is None:
        return Row(name, state)
    numbers = after.numbers
    row = Row(name, state, numbers.get(CACHE), numbers.get(RUNNING), numbers.get(WAITING))
    if before is None or after.at <= before.at or TOKENS not in numbers:
        return row
    made = numbers[TOKENS] - before.numbers.get(TOKENS, 0.0)
    first = {bound: count - before.first_tokens.get(bound, 0.0) for bound, count in after.first_tokens.items()}
    if made < 0 or any(count < 0 for count in first.values()):
        return row  # its server was started again between both looks
    return Row(name, state, row.cache, row.running, row.waiting, made / (after.at - before.at), first)


def _total(lines: Sequence[Row]) -> Row:
    caches = [row.cache for row in lines if row.cache is not None]
    bounds = {bound for row in lines for bound in row.first_tokens}
    return Row(
        "all",
        f"{len(caches)} of {len(lines)} answer",
        sum(caches) / len(caches) if caches else None,
        _sum(row.running for row in lines),
        _sum(row.waiting for row in lines),
        _sum(row.tokens_per_second for row in lines),
        {bound: sum(row.first_tokens.get(bound, 0.0) for row in lines) for bound in bounds},
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _time(value: float | None, buckets: Mapping[float, float]) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return f">{max(bound for bound in buckets if not math.isinf(bound)):g} s"
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"
