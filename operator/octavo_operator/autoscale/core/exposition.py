"""From the text of a pod's /metrics to a sample, or to the reason why it is none.

Only the few names that a decision needs are read: a general parser takes thirty times as long, and 500 pods are read
every few seconds. What makes no sense is refused whole: a zero that was made up would remove replicas at the peak.
"""

import math
from dataclasses import replace

from octavo_operator.autoscale.core.values import Sample
from octavo_operator.errors import OperatorError

__all__ = ["SampleRefused", "read_sample"]

USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The same gauge under its present and its older name; the first that is there counts."""

FIELDS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:request_success_total": "finished",
    "vllm:generation_tokens_total": "generated",
    "octavo:requests_refused_total": "refused",
}
OPTIONAL = ("vllm:request_success_total", "octavo:requests_refused_total")
"""Counters with labels are not there before their first event."""

LIMIT = "octavo:max_num_queued_reqs"
"""Older runtimes do not tell it."""

NAMES = (*FIELDS, *USAGE, LIMIT)

ROUNDING = 1e-6


class SampleRefused(OperatorError):
    """What a pod answered is no sample."""


def read_sample(text: str, time: float) -> Sample:
    """Reads one exposition. Series of one name that differ in labels are added up.

    Args:
        text: in Prometheus' text format.
        time: when it was asked for.

    Raises:
        SampleRefused: a name is missing, or a value makes no sense.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(("vllm:", "octavo:")):
            continue
        name = line[: min(end for end in (line.find("{"), line.find(" "), len(line)) if end >= 0)]
        if name not in NAMES:
            continue
        # The value follows the labels, in which a quoted brace may stand; a time stamp may follow the value.
        words = line[len(name) :].rpartition("}")[2].split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            raise SampleRefused(f"{name} has no number: {line!r}") from None
        if not math.isfinite(value) or value < 0:
            raise SampleRefused(f"{name} is {value}")
        sums[name] = sums.get(name, 0.0) + value
    usage = next((sums[name] for name in USAGE if name in sums), None)
    missing = [name for name in FIELDS if name not in sums and name not in OPTIONAL]
    if usage is None or missing:
        raise SampleRefused(f"no {', '.join([*missing, *([] if usage is not None else [USAGE[0]])])} in the answer")
    if usage > 1 + ROUNDING:
        raise SampleRefused(f"{USAGE[0]} is {usage}: it must be a share from 0 to 1, not a percentage")
    sample = Sample(time, cache_usage=min(usage, 1.0), **{field: sums.get(name, 0.0) for name, field in FIELDS.items()})
    return replace(sample, queue_limit=sums[LIMIT]) if LIMIT in sums else sample
