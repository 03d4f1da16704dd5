"""How many times as fast we are as the peers, and the goals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["GOALS", "RATIOS", "Goal", "Ratio", "Speeds", "lines", "ratios", "speeds"]

Speeds = Mapping[tuple[str, str], Sequence[float]]
"""By side and row: tokens per second in each turn; short where the side failed."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One side's speed by another's in the same turn.

    Attributes:
        figure: Its name.
        ours: Our side.
        peer: The other.
        row: The work.
        goal: What it shall be at least; None: only told.
    """

    figure: str
    ours: str
    peer: str
    row: str
    goal: float | None = None


RATIOS = (
    Ratio("decode_1_vs_llamacpp", "w8a16", "llamacpp-q4_1", "decode_1", 1.5),
    Ratio("decode_1_vs_llamacpp_q8_0", "w8a16", "llamacpp-q8_0", "decode_1"),
    Ratio("decode_1_4bit_vs_llamacpp", "w4a16", "llamacpp-q4_1", "decode_1", 2),
    Ratio("decode_1_vs_vllm", "w8a16", "vllm", "decode_1"),
    Ratio("decode_8_vs_vllm", "w8a16", "vllm", "decode_8", 5.5),
    Ratio("decode_32_vs_vllm", "w8a16", "vllm", "decode_32", 4.5),
    Ratio("prefill_1024_vs_vllm", "w8a16", "vllm", "prefill_1024", 2.2),
    Ratio("prefill_1024_vs_llamacpp", "w8a16", "llamacpp-q4_1", "prefill_1024", 5),
    Ratio("prefill_1024_vs_llamacpp_q8_0", "w8a16", "llamacpp-q8_0", "prefill_1024"),
    Ratio("decode_8_vs_vllm_bfloat16", "w8a16", "vllm-bfloat16", "decode_8"),
    Ratio("prefill_1024_vs_vllm_bfloat16", "w8a16", "vllm-bfloat16", "prefill_1024"),
    Ratio("none_decode_1_vs_llamacpp", "none", "llamacpp-q4_1", "decode_1"),
    Ratio("none_decode_1_vs_vllm", "none", "vllm", "decode_1", 3),
    Ratio("none_decode_8_vs_vllm", "none", "vllm", "decode_8", 2.5),
    Ratio("none_decode_32_vs_vllm", "none", "vllm", "decode_32", 2),
    Ratio("none_prefill_1024_vs_vllm", "none", "vllm", "prefill_1024", 1.3),
    Ratio("none_prefill_1024_vs_llamacpp", "none", "llamacpp-q4_1", "prefill_1024"),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure shall be.

    Attributes:
        bound: The number.
        at_most: That it shall not exceed; else what it shall reach.
    """

    bound: float
    at_most: bool = False

    def met(self, figure: float) -> bool:
        return figure <= self.bound if self.at_most else figure >= self.bound


GOALS: Mapping[str, Goal] = {
    prefix + ratio.figure: Goal(ratio.goal) for prefix in ("", "http_") for ratio in RATIOS if ratio.goal is not None
}


def speeds(found: Speeds, prefix: str) -> dict[str, float]:
    """Figures PREFIX_SIDE_ROW_tok_s: the median of the turns."""
    return {f"{prefix}{side}_{row}_tok_s": median(turns) for (side, row), turns in found.items() if turns}


def ratios(found: Speeds, prefix: str) -> dict[str, float]:
    """Each ratio of which both sides ran: the median over the turns in which they did."""
    figures = {}
    for ratio in RATIOS:
        pairs = zip(found.get((ratio.ours, ratio.row), ()), found.get((ratio.peer, ratio.row), ()), strict=False)
        if values := [ours / peer for ours, peer in pairs]:
            figures[prefix + ratio.figure] = median(values)
    return figures


def lines(figures: Mapping[str, float], goals: Mapping[str, Goal], told: Iterable[str]) -> list[str]:
    """A line for each figure that has a goal or is in `told`: its value, the goal, whether it is met or what lacks."""
    rows = []
    for name in dict.fromkeys((*told, *goals)):
        goal = goals.get(name)
        value = figures.get(name)
        bound = "" if goal is None else f"{'≤' if goal.at_most else '≥'} {goal.bound:g}"
        if value is None:
            verdict = "not measured"
        elif goal is None:
            verdict = ""
        else:
            verdict = "met" if goal.met(value) else "MISSED"
        rows.append(f"{name:44}{'-' if value is None else f'{value:.4g}':>10}  {bound:10}{verdict}".rstrip())
    return rows
