"""A slow, obvious oracle for the scheduler: a KV store made of tuples, and a model that is a hash.

`OracleExecutor` stands where a real executor stands. Its "KV" of a token is the whole prefix up to that token, so
whatever block a sequence reads, the oracle sees at once whether that block holds that sequence's prefix: also after
block copies, between tiers and in a pool that changes its size. Its "model" maps a prefix to likelihoods of the next
token, so what a request must get can be computed alone, without any scheduler.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from octavo_runtime.core.beams import BeamSearch
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import (
    BlockCopy,
    CopyKind,
    Event,
    FinishReason,
    Request,
    SamplingParams,
    ScheduledSequence,
    StepPlan,
    StepResult,
)

__all__ = ["OracleError", "OracleExecutor", "OracleRun", "expected_answers", "logprobs", "next_token"]

Prefix = tuple[str, tuple[int, ...]]  # salt, tokens
Answer = tuple[list[int], FinishReason]


class OracleError(AssertionError):
    """A plan reads a wrong block, writes a shared one, or breaks a budget."""


def next_token(token_ids: Sequence[int], vocab_size: int, choice: int = 0) -> int:
    """What the oracle's model samples for an answer: a function of the whole prefix."""
    digest = blake2b(repr((tuple(token_ids), choice)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % vocab_size


def logprobs(token_ids: Sequence[int], vocab_size: int) -> list[float]:
    """The likelihoods of the tokens after a prefix: their logarithms, no two alike."""
    digest = blake2b(repr(tuple(token_ids)).encode(), digest_size=32).digest()
    weights = [1 + digest[2 * token] + digest[2 * token + 1] / 256 + token / 2**20 for token in range(vocab_size)]
    return [math.log(weight / sum(weights)) for weight in weights]


def candidates(token_ids: Sequence[int], vocab_size: int, count: int) -> list[tuple[int, float]]:
    """The most likely tokens after a prefix, best first."""
    likelihoods = logprobs(token_ids, vocab_size)
    order = sorted(range(vocab_size), key=lambda token: -likelihoods[token])
    order += [0] * (count - vocab_size)  # no model has so few tokens
    return [(token, likelihoods[token] if n < vocab_size else -1e9) for n, token in enumerate(order[:count])]


def expected_answers(request: Request, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> list[Answer]:
    """What `request` must get, computed on its own: its answers in order."""
    sampling = request.sampling
    stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos_token_ids))
    prompt = list(request.prompt_token_ids)
    if sampling.use_beam_search:
        return _expected_beams(prompt, sampling, stops, vocab_size)
    answers: list[tuple[float, Answer]] = []
    for choice in range(sampling.width):
        output: list[int] = []
        score = 0.0
        reason = None
        while reason is None:
            token = next_token([*prompt, *output], vocab_size, choice)
            score += logprobs([*prompt, *output], vocab_size)[token]
            output.append(token)
            if token in stops:
                reason = FinishReason.STOP
            elif len(output) == sampling.max_tokens:
                reason = FinishReason.LENGTH
        answers.append((score / len(output), (output, reason)))
    if sampling.ranks:
        answers.sort(key=lambda answer: -answer[0])
    return [answer for _, answer in answers[: sampling.n]]


def _expected_beams(
    prompt: list[int], sampling: SamplingParams, stops: frozenset[int], vocab_size: int
) -> list[Answer]:
    assert sampling.max_tokens is not None
    search = BeamSearch(
        sampling.width,
        max_tokens=sampling.max_tokens,
        stop_token_ids=stops,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
    )
    outputs: list[list[int]] = [[]]
    while outputs:
        rows = [candidates([*prompt, *output], vocab_size, search.num_candidates) for output in outputs]
        step = search.step(rows, outputs)
        outputs = [[*outputs[parent], token] for parent, token in zip(step.parents, step.tokens, strict=True)]
    return [(list(one.token_ids), one.finish_reason) for one in search.results(sampling.n)]


class OracleExecutor:
    """Executes plans on the tuple KV store and raises OracleError at the first that is wrong.

    Args:
        scheduler: Whose plans these are; its limits are checked, its state is not looked at.
        num_blocks: Of the pool, at first.
        vocab_size: Of the hash model.
        num_host_blocks: Of the host tier.
    """

    def __init__(self, scheduler: Scheduler, num_blocks: int, vocab_size: int, num_host_blocks: int = 0) -> None:
        self.scheduler = scheduler
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.vocab_size = vocab_size
        self.requests: dict[str, Request] = {}
        self.fail_next: set[str] = set()
        self.num_copies = dict.fromkeys(CopyKind, 0)
        self._device: dict[int, list[Prefix | None]] = {}
        self._host: dict[int, list[Prefix | None]] = {}
        self._last: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Tells the oracle of a request that the scheduler has accepted."""
        self.requests[request.request_id] = request

    def execute(self, plan: StepPlan) -> StepResult:
        """One step: copy blocks, write all KV, then read all KV, as a real step does layer by layer."""
        self._check_budget(plan)
        self.num_blocks = max(self.num_blocks, plan.num_blocks or 0)
        for copy in plan.copies:
            self._copy(copy)
        if plan.num_blocks is not None:
            self.num_blocks = plan.num_blocks
            self._device = {block: kv for block, kv in self._device.items() if block < plan.num_blocks}
        tokens = [self._tokens(sequence) for sequence in plan.sequences]
        written: dict[tuple[int, int], int] = {}
        for sequence, prefix in zip(plan.sequences, tokens, strict=True):
            self._write(sequence, prefix, written)
        for sequence, prefix in zip(plan.sequences, tokens, strict=True):
            self._read(sequence, prefix)
        return self._sample(plan, tokens)

    def _block(self, block: int) -> list[Prefix | None]:
        if not 0 <= block < self.num_blocks:
            raise OracleError(f"there is no block {block}")
        return self._device.setdefault(block, [None] * self.scheduler.block_size)

    def _copy(self, copy: BlockCopy) -> None:
        self.num_copies[copy.kind] += 1
        if copy.kind is not CopyKind.DEVICE:
            host = copy.target if copy.kind is CopyKind.OUT else copy.source
            if not 0 <= host < self.num_host_blocks:
                raise OracleError(f"there is no host block {host}")
        if copy.kind is CopyKind.IN:
            if copy.source not in self._host:
                raise OracleError(f"host block {copy.source} holds nothing")
            self._block(copy.target)[:] = self._host[copy.source]
            return
        content = list(self._device.get(copy.source, [None] * self.scheduler.block_size))
        if copy.kind is CopyKind.OUT:
            self._host[copy.target] = content
        else:
            self._block(copy.target)[:] = content

    def _slot(self, sequence: ScheduledSequence, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.scheduler.block_size)
        if index >= len(sequence.block_table):
            raise OracleError(f"{sequence.request_id}: position {position} has no block")
        self._block(sequence.block_table[index])
        return sequence.block_table[index], offset

    def _check_budget(self, plan: StepPlan) -> None:
        config = self.scheduler.config
        if plan.num_tokens > config.max_num_batched_tokens:
            raise OracleError(f"{plan.num_tokens} tokens in a step, over the budget")
        if len(plan.sequences) > config.max_num_seqs:
            raise OracleError(f"{len(plan.sequences)} sequences in a step, over the limit")
        numbers = [sequence.number for sequence in plan.sequences]
        if len(set(numbers)) != len(numbers):
            raise OracleError("a sequence stands twice in a step")

    def _tokens(self, sequence: ScheduledSequence) -> tuple[int, ...]:
        """The sequence up to the end of this step: what its blocks hold, and the tokens that are computed now."""
        request = self.requests[sequence.request_id]
        if not sequence.token_ids:
            raise OracleError(f"{sequence.request_id}: no token to compute")
        before: tuple[int, ...] = ()
        if sequence.num_computed:
            block, offset = self._slot(sequence, sequence.num_computed - 1)
            held = self._block(block)[offset]
            if held is None:
                raise OracleError(f"{sequence.request_id}: block {block} holds nothing at {offset}")
            before = held[1]
        if len(before) != sequence.num_computed:
            raise OracleError(f"{sequence.request_id}: num_computed is {sequence.num_computed}, KV is {before}")
        now = tuple(sequence.token_ids)
        if sequence.feeds:
            if len(now) != 1 or sequence.number not in self._last:
                raise OracleError(f"{sequence.request_id}: nothing to feed")
            now = (self._last[sequence.number],)
        tokens = before + now
        prompt = request.prompt_token_ids
        if tokens[: len(prompt)] != prompt[: len(tokens)]:
            raise OracleError(f"{sequence.request_id}: {tokens} is not its own prompt")
        if sequence.num_samples and len(tokens) != len(prompt) + sequence.num_generated:
            raise OracleError(f"{sequence.request_id}: samples at {len(tokens)}, num_generated is wrong")
        return tokens

    def _write(self, sequence: ScheduledSequence, tokens: tuple[int, ...], written: dict[tuple[int, int], int]) -> None:
        salt = self.requests[sequence.request_id].cache_salt
        for position in range(sequence.num_computed, len(tokens)):
            block, offset = self._slot(sequence, position)
            if (block, offset) in written:
                raise OracleError(f"{sequence.number} and {written[block, offset]} write block {block} in one step")
            written[block, offset] = sequence.number
            self._block(block)[offset] = (salt, tokens[: position + 1])

    def _read(self, sequence: ScheduledSequence, tokens: tuple[int, ...]) -> None:
        salt = self.requests[sequence.request_id].cache_salt
        for position in range(len(tokens)):
            block, offset = self._slot(sequence, position)
            if self._block(block)[offset] != (salt, tokens[: position + 1]):
                raise OracleError(f"{sequence.request_id}: block {block} does not hold its prefix at {position}")

    def _sample(self, plan: StepPlan, tokens: list[tuple[int, ...]]) -> StepResult:
        sampled: list[int] = []
        likelihoods: list[float] = []
        failed: dict[int, str] = {}
        last: dict[int, int] = {}
        for position, (sequence, prefix) in enumerate(zip(plan.sequences, tokens, strict=True)):
            count = sequence.num_samples
            if not count:
                continue
            if sequence.request_id in self.fail_next:
                failed[position] = "the logits are not finite"
            if sequence.sampling.use_beam_search:
                best = candidates(prefix, self.vocab_size, count)
                sampled += [token for token, _ in best]
                likelihoods += [likelihood for _, likelihood in best]
                continue
            for choice in range(sequence.choice, sequence.choice + count):
                sampled.append(next_token(prefix, self.vocab_size, choice))
                likelihoods.append(logprobs(prefix, self.vocab_size)[sampled[-1]])
            last[sequence.number] = sampled[-count]
        self._last = last  # only the step just before may be fed from
        wants = any(sequence.sampling.needs_logprobs for sequence in plan.sequences)
        return StepResult(sampled, likelihoods if wants else (), failed)


@dataclass
class OracleRun:
    """A scheduler with its oracle, driven step by step, and what each answer got.

    With asynchronous scheduling a plan is made before the one before it is executed, as in the engine.

    Attributes:
        outputs: Tokens so far, by request and answer.
        reasons: How the answers ended that have.
        gone: Aborted answers.
    """

    scheduler: Scheduler
    oracle: OracleExecutor
    eos_token_ids: tuple[int, ...] = ()
    outputs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    gone: set[tuple[str, int]] = field(default_factory=set)
    num_steps: int = 0
    _planned: deque[StepPlan] = field(default_factory=deque)

    def add(self, request: Request) -> None:
        """Hands over a request."""
        self.scheduler.add(request)
        self.oracle.add(request)
        for choice in range(request.sampling.n):
            self.outputs[request.request_id, choice] = []

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Aborts a request or one answer."""
        self.scheduler.abort(request_id, choice)
        choices = range(self.oracle.requests[request_id].sampling.n) if choice is None else (choice,)
        self.gone |= {(request_id, each) for each in choices if (request_id, each) not in self.reasons}

    def step(self) -> StepPlan | None:
        """Plans a step and executes the one before it, or the same one where none may be planned ahead.

        Returns:
            The step that was executed; None when there was none.
        """
        self.num_steps += 1
        ahead = self.scheduler.config.async_scheduling
        if not self._planned or (ahead and self.scheduler.can_plan_ahead):
            plan = self.scheduler.schedule(float(self.num_steps))
            self.scheduler.check_invariants()
            if plan.has_work or not self._planned:
                self._planned.append(plan)
            if len(self._planned) == 1 and plan.has_work and ahead and self.scheduler.can_plan_ahead:
                return None
        plan = self._planned.popleft()
        result = self.oracle.execute(plan) if plan.has_work else StepResult()
        for event in self.scheduler.apply(plan, result):
            self._take(event)
        self.scheduler.check_invariants()
        return plan

    def drain(self) -> None:
        """Steps until there is no work, and not much longer than that can take."""
        requests = self.oracle.requests.values()
        tokens = sum(r.sampling.width * (len(r.prompt_token_ids) + (r.sampling.max_tokens or 0)) for r in requests)
        steps = 0
        while self.scheduler.has_work or self._planned:
            self.step()
            steps += 1
            # Whoever is first in the policy's order advances in each step.
            if steps > 4 * tokens + 10:
                raise OracleError("the scheduler makes no progress")

    def check(self) -> None:
        """Compares everything with what each request must get alone; the scheduler must be drained."""
        for request_id, request in self.oracle.requests.items():
            expected = expected_answers(request, self.oracle.vocab_size, self.eos_token_ids)
            for choice, (output, reason) in enumerate(expected):
                key = (request_id, choice)
                got = self.outputs[key]
                if key in self.gone or self.reasons.get(key) is FinishReason.ERROR:
                    if got != output[: len(got)]:
                        raise OracleError(f"{key} began with {got}, not {output}")
                elif (got, self.reasons.get(key)) != (output, reason):
                    raise OracleError(f"{key} got {got} {self.reasons.get(key)}, not {output} {reason}")
        stats = self.scheduler.stats()
        if stats.num_running or stats.num_waiting or stats.kv_cache_usage:
            raise OracleError(f"something is left: {stats}")

    def _take(self, event: Event) -> None:
        key = (event.request_id, event.choice)
        if key in self.reasons or key in self.gone:
            raise OracleError(f"{key}: news after the end: {event}")
        self.outputs[key] += event.token_ids
        if event.finish_reason is not None:
            self.reasons[key] = event.finish_reason
