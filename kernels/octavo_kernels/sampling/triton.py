"""One program for each row, which it reads a few times; nothing is sorted."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_kernels.aligned import in_aligned_rows, memory_width
from octavo_kernels.gpu import Configuration, Shipped, launch
from octavo_kernels.sampling.penalties import Penalties
from octavo_kernels.sampling.reference import MIN_TEMPERATURE, NOT_FINITE, best

__all__ = ["best", "greedy", "sample", "shipped"]


@triton.jit
def _logits(row_ptr, seen_ptr, repetition, presence, frequency, tokens, VOCABULARY: tl.constexpr):
    """Of these tokens, in float32, with their penalties; -inf behind the vocabulary.

    What is loaded ends where the row's memory does (octavo_kernels.aligned): a mask that ended at any number would make
    each load one of a single number.
    """
    memory: tl.constexpr = (VOCABULARY + 15) // 16 * 16
    logits = tl.load(row_ptr + tokens, mask=tokens < memory, other=-float("inf")).to(tl.float32)
    if seen_ptr is not None:
        seen = tl.load(seen_ptr + tokens, mask=tokens < memory, other=0)
        times = seen // 2
        logits = tl.where(seen > 0, tl.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits -= tl.where(times > 0, presence + times.to(tl.float32) * frequency, 0.0)
    if memory > VOCABULARY:
        logits = tl.where(tokens < VOCABULARY, logits, -float("inf"))
    return logits


@triton.jit
def _likelihood(
    row_ptr, seen_ptr, repetition, presence, frequency, start, largest, temperature, VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """exp((logit - largest) / temperature) of BLOCK tokens; 0 behind the vocabulary."""
    logits = _logits(row_ptr, seen_ptr, repetition, presence, frequency, start + tl.arange(0, BLOCK), VOCABULARY)
    return tl.exp((logits - largest) / temperature)


@triton.jit
def _bound(
    row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, floor, wanted, BY_MASS: tl.constexpr,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The largest likelihood for which the tokens as likely or likelier are enough, `floor` if it is less or none is.

    Enough is a mass of `wanted` where BY_MASS, else so many of them. Positive floats stand in the order of their
    bits, so bisection finds it; both ends always move on to a likelihood that a token has, and meet in few passes.

        bits of   floor ··· low │ ··· middle ··· │ high ··· 1.0
                        enough for sure     may be enough, the bound lies in between or is one of the two
    """
    low = floor.to(tl.int32, bitcast=True)
    high = tl.full((), 0x3F800000, tl.int32)  # 1.0, the most likely token's
    while low < high:
        middle = (low + (high - low + 1) // 2).to(tl.float32, bitcast=True)
        enough = tl.zeros((BLOCK,), tl.float64)
        above = tl.full((BLOCK,), 1.0, tl.float32)  # the smallest likelihood of at least `middle`
        below = tl.zeros((BLOCK,), tl.float32)  # the largest under it
        for start in range(0, VOCABULARY, BLOCK):
            likelihood = _likelihood(
                row_ptr, seen_ptr, repetition, presence, frequency, start, largest, temperature, VOCABULARY, BLOCK
            )
            counts = likelihood >= middle
            enough += tl.where(counts, likelihood if BY_MASS else 1.0, 0.0)
            above = tl.where(counts, tl.minimum(above, likelihood), above)
            below = tl.where(counts, below, tl.maximum(below, likelihood))
        if tl.sum(enough) >= wanted:
            low = tl.min(above).to(tl.int32, bitcast=True)
        else:
            high = tl.maximum(tl.max(below).to(tl.int32, bitcast=True), low)
    return low.to(tl.float32, bitcast=True)


@triton.jit
def _mass(
    row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, bound, VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """The sum of all likelihoods of at least `bound`."""
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, VOCABULARY, BLOCK):
        likelihood = _likelihood(
            row_ptr, seen_ptr, repetition, presence, frequency, start, largest, temperature, VOCABULARY, BLOCK
        )
        mass += tl.where(likelihood >= bound, likelihood, 0.0)
    return tl.sum(mass)


@triton.jit
def sample_kernel(
    logits_ptr,
    seen_ptr,  # None without penalties, as the next three
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    tokens_ptr,
    row_stride,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    MIN_TEMPERATURE: tl.constexpr,
    NOT_FINITE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    repetition = 1.0
    presence = 0.0
    frequency = 0.0
    if seen_ptr is not None:
        seen_ptr += row * ((VOCABULARY + 15) // 16 * 16)
        repetition = tl.load(repetition_ptr + row)
        presence = tl.load(presence_ptr + row)
        frequency = tl.load(frequency_ptr + row)

    # The largest logit and the first token that has it. Each of the BLOCK lanes keeps its own until the end.
    lane_largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    lane_first = tl.full((BLOCK,), VOCABULARY, tl.int32)
    lane_nan = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        logits = _logits(row_ptr, seen_ptr, repetition, presence, frequency, tokens, VOCABULARY)
        lane_first = tl.where(logits > lane_largest, tokens, lane_first)
        lane_largest = tl.where(logits > lane_largest, logits, lane_largest)
        lane_nan = tl.where(logits != logits, 1, lane_nan)  # noqa: PLR0124  only NaN differs from itself
    largest = tl.max(lane_largest)
    token = tl.min(tl.where(lane_largest == largest, lane_first, VOCABULARY))
    finite = (tl.max(lane_nan) == 0) & (tl.abs(largest) < float("inf"))

    temperature = tl.load(temperature_ptr + row)
    if finite & (temperature > 0):
        temperature = tl.maximum(temperature, MIN_TEMPERATURE)
        bound = tl.load(min_p_ptr + row)
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < VOCABULARY):
            bound = _bound(
                row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, bound, top_k, False,
                VOCABULARY, BLOCK,
            )  # fmt: skip
        mass = _mass(row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, bound, VOCABULARY, BLOCK)
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1:
            # All tokens below that together are less than the share that may go: half of it, to be safe from rounding.
            negligible = ((1 - top_p) * mass / (2 * VOCABULARY)).to(tl.float32)
            floor = tl.maximum(bound, negligible)
            bound = _bound(
                row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, floor, top_p * mass, True,
                VOCABULARY, BLOCK,
            )  # fmt: skip
            mass = _mass(
                row_ptr, seen_ptr, repetition, presence, frequency, largest, temperature, bound, VOCABULARY, BLOCK
            )

        # The first token whose mass, with all before it, is more than the target lies in the first piece of which that
        # is true. Should rounding leave none, the last possible token is taken.
        target = tl.load(uniform_ptr + row) * mass
        before = tl.zeros((), tl.float64)
        until = tl.zeros((), tl.float64)
        lane_last = tl.full((BLOCK,), -1, tl.int32)
        start = 0
        while (start < VOCABULARY) & (until <= target):
            likelihood = _likelihood(
                row_ptr, seen_ptr, repetition, presence, frequency, start, largest, temperature, VOCABULARY, BLOCK
            )
            kept = (likelihood >= bound) & (likelihood > 0)
            lane_last = tl.where(kept, start + tl.arange(0, BLOCK), lane_last)
            before = until
            until = before + tl.sum(tl.where(kept, likelihood, 0.0).to(tl.float64))
            start += BLOCK
        start -= BLOCK
        likelihood = _likelihood(
            row_ptr, seen_ptr, repetition, presence, frequency, start, largest, temperature, VOCABULARY, BLOCK
        )
        kept = (likelihood >= bound) & (likelihood > 0)
        masses = before + tl.cumsum(tl.where(kept, likelihood, 0.0).to(tl.float64))
        found = tl.min(tl.where(kept & (masses > target), start + tl.arange(0, BLOCK), VOCABULARY))
        token = tl.where(found < VOCABULARY, found, tl.max(lane_last))
    tl.store(tokens_ptr + row, tl.where(finite, token, NOT_FINITE).to(tl.int64))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    *,
    penalties: Penalties | None = None,
) -> torch.Tensor:
    """See octavo_kernels.sampling."""
    rows, vocabulary = logits.shape
    assert logits.stride(1) == 1
    assert penalties is None or penalties.seen.stride() == (memory_width(vocabulary), 1)
    logits = in_aligned_rows(logits)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    parameters = [column.contiguous() for column in (temperature, top_k, top_p, min_p, uniform)]
    history = penalties or (None,) * 4
    chosen = configuration(vocabulary, penalties=penalties is not None)
    launch(sample_kernel, (rows,), chosen, logits, *history, *parameters, tokens, logits.stride(0))
    return tokens


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """See octavo_kernels.sampling."""
    unused = torch.zeros(len(logits), device=logits.device)
    return sample(logits, unused, unused.long(), unused, unused, unused.double())


def configuration(vocabulary: int, *, penalties: bool = False) -> Configuration:
    """For rows of so many logits: sixteen numbers a thread, in eight warps; eight with penalties, which take registers."""
    block = min(triton.next_power_of_2(vocabulary), 2048 if penalties else 4096)
    return Configuration(
        {
            "VOCABULARY": vocabulary,
            "BLOCK": block,
            "MIN_TEMPERATURE": MIN_TEMPERATURE,
            "NOT_FINITE": NOT_FINITE,
        },
        num_warps=min(max(block // (256 if penalties else 512), 1), 8),
    )


def shipped() -> list[Shipped]:
    """Qwen3's vocabulary, and what its tokenizer knows of it."""
    return [
        Shipped(
            name=f"{dtype} v{vocabulary}{' penalties' if penalties else ''}",
            kernel=sample_kernel,
            signature={
                "logits_ptr": f"*{dtype}",
                "seen_ptr": "*i32" if penalties else "none",
                "repetition_ptr": "*fp32" if penalties else "none",
                "presence_ptr": "*fp32" if penalties else "none",
                "frequency_ptr": "*fp32" if penalties else "none",
                "temperature_ptr": "*fp32",
                "top_k_ptr": "*i64",
                "top_p_ptr": "*fp32",
                "min_p_ptr": "*fp32",
                "uniform_ptr": "*fp64",
                "tokens_ptr": "*i64",
                "row_stride": "i32",
            },
            configuration=configuration(vocabulary, penalties=penalties),
            divisible=("row_stride",),
            programs=1,
        )
        for dtype in ("bf16", "fp16")
        for vocabulary in (151936, 151669)
        for penalties in (False, True)
        if not penalties or vocabulary == 151936
    ]
