"""What a replay measures: latencies of the requests, and what the engine was busy with.

TTFT is from arrival to the first token, ITL the time between two tokens of an answer, TPOT an answer's mean ITL, e2e
from arrival to the end. Percentiles are numpy's, interpolated.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["EngineUse", "Measured", "Objectives", "RequestTimes", "latencies"]

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a good request keeps.

    Attributes:
        ttft: Seconds to its first token, at most.
        itl: Seconds that 99 % of its inter-token times keep to.
    """

    ttft: float = 0.5
    itl: float = 0.05


@dataclass(slots=True)
class RequestTimes:
    """When a request got what, in seconds since the start.

    Attributes:
        label: Its class.
        arrival: When it came.
        first_token: When its first token came; None before.
        finished: When its last answer ended; None before.
        num_tokens: Output tokens, of all answers.
        gaps: Between the tokens of each answer.
    """

    label: str
    arrival: float
    first_token: float | None = None
    finished: float | None = None
    num_tokens: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token."""
        assert self.first_token is not None, "it has no token yet"
        return self.first_token - self.arrival

    @property
    def e2e(self) -> float:
        """Seconds from arrival to the end."""
        assert self.finished is not None, "it has not ended"
        return self.finished - self.arrival

    def meets(self, objectives: Objectives) -> bool:
        """Whether the request was answered in time."""
        late = sum(gap > objectives.itl for gap in self.gaps)
        return self.ttft <= objectives.ttft and late <= 0.01 * len(self.gaps)


@dataclass(slots=True)
class EngineUse:
    """Sums over the steps.

    Attributes:
        steps: Steps that computed something.
        seconds: Virtual time spent in them.
        tokens: Output tokens.
        waiting_steps: Steps during which a request waited, and with them
        waiting_tokens: the output tokens they brought,
        waiting_sequences: the sum of sequences that ran.
        sequence_seconds: Sequences that ran times the seconds of the step.
        usage_seconds: Share of the KV blocks in use times the seconds of the step.
        peak_usage: Largest share of the KV blocks in use.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    waiting_steps: int = 0
    waiting_tokens: int = 0
    waiting_sequences: int = 0
    sequence_seconds: float = 0.0
    usage_seconds: float = 0.0
    peak_usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a replay measured.

    Attributes:
        requests: In order of arrival.
        use: What the engine was busy with.
        num_preemptions: Sequences whose blocks were taken.
        recomputed_tokens: Tokens computed again after a preemption.
        swapped_blocks: Blocks copied between the tiers.
        prefix_hit_rate: Share of the prompt tokens that were found in the prefix cache; 0 without one.
    """

    requests: tuple[RequestTimes, ...]
    use: EngineUse
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_blocks: int = 0
    prefix_hit_rate: float = 0.0

    @property
    def seconds(self) -> float:
        """From the first arrival to the last answer."""
        ended = (times.finished for times in self.requests if times.finished is not None)
        return max(ended) - self.requests[0].arrival

    def with_label(self, label: str) -> list[RequestTimes]:
        """The requests of one class."""
        return [times for times in self.requests if times.label == label]

    def goodput(self, objectives: Objectives) -> float:
        """Requests answered in time, per second."""
        return sum(times.meets(objectives) for times in self.requests) / self.seconds

    def steady_rate(self) -> float:
        """Answers per second between the first and the last tenth of them: without filling up and running empty."""
        ended = sorted(times.finished for times in self.requests if times.finished is not None)
        first, last = len(ended) // 10, len(ended) - 1 - len(ended) // 10
        return (last - first) / (ended[last] - ended[first])

    def slot_utilisation(self, max_num_seqs: int) -> float:
        """Output tokens for each slot of each step, while a request waited for a slot; 1 when none ever waited."""
        return self.use.waiting_tokens / (self.use.waiting_steps * max_num_seqs) if self.use.waiting_steps else 1.0

    def concurrency_while_waiting(self) -> float:
        """Mean number of sequences that ran in a step while a request waited; 0 when none ever waited."""
        return self.use.waiting_sequences / self.use.waiting_steps if self.use.waiting_steps else 0.0

    def figures(self, objectives: Objectives, max_num_seqs: int) -> dict[str, float]:
        """Everything, flat, by name; with the latencies of each class where there are several."""
        use = self.use
        good = sum(times.meets(objectives) for times in self.requests)
        figures = {
            "requests": len(self.requests),
            "seconds": self.seconds,
            "request_rate": len(self.requests) / self.seconds,
            "output_tokens_per_second": use.tokens / self.seconds,
            "goodput": good / self.seconds,
            "good_share": good / len(self.requests),
            **latencies(self.requests),
            "slot_utilisation": self.slot_utilisation(max_num_seqs),
            "mean_concurrency": use.sequence_seconds / use.seconds,
            "mean_kv_usage": use.usage_seconds / use.seconds,
            "peak_kv_usage": use.peak_usage,
            "steps": use.steps,
            "preemptions": self.num_preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "swapped_blocks": self.swapped_blocks,
            "prefix_hit_rate": self.prefix_hit_rate,
        }
        for label in sorted({times.label for times in self.requests} - {""}):
            figures |= {f"{label}_{name}": value for name, value in latencies(self.with_label(label)).items()}
        return figures


def latencies(requests: Sequence[RequestTimes]) -> dict[str, float]:
    """Percentiles of TTFT, ITL, TPOT and e2e in milliseconds, as ttft_p50_ms and so on; none of what nobody has."""
    ended = [times for times in requests if times.finished is not None]
    gaps = [np.frombuffer(times.gaps) for times in ended if times.gaps]
    samples = {
        "ttft": np.array([times.ttft for times in ended]),
        "itl": np.concatenate(gaps) if gaps else np.empty(0),
        "tpot": np.array([each.mean() for each in gaps]),
        "e2e": np.array([times.e2e for times in ended]),
    }
    figures = {}
    for kind, seconds in samples.items():
        if len(seconds):
            for percent, value in zip(_PERCENTILES, np.percentile(seconds, _PERCENTILES), strict=True):
                figures[f"{kind}_p{percent}_ms"] = 1000 * float(value)
    return figures
