"""A slow, obvious oracle for the scheduler: a KV store made of tuples, and a model that is a hash.

`OracleExecutor` stands where a real executor stands. Its "KV" of a token is the whole prefix up to that token, so
whatever block a sequence reads, the oracle sees at once whether that block holds that sequence's prefix. Its "model"
maps a prefix to the next token, so what a request must get can be computed alone, without any scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import FinishReason, Request, ScheduledSequence, StepPlan, StepResult

__all__ = ["OracleError", "OracleExecutor", "expected_output", "next_token"]

Prefix = tuple[str, tuple[int, ...]]  # salt, tokens


class OracleError(AssertionError):
    """A plan reads a wrong block, writes a shared one, or breaks a budget."""


def next_token(token_ids: Sequence[int], vocab_size: int) -> int:
    """The oracle's model: a function of the whole prefix."""
    digest = blake2b(repr(tuple(token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % vocab_size


def expected_output(
    request: Request, vocab_size: int, eos_token_ids: Sequence[int] = ()
) -> tuple[list[int], FinishReason]:
    """What `request` must get, computed on its own."""
    tokens = list(request.prompt_token_ids)
    output: list[int] = []
    sampling = request.sampling
    while True:
        token = next_token(tokens, vocab_size)
        tokens.append(token)
        output.append(token)
        if token in sampling.stop_token_ids or (token in eos_token_ids and not sampling.ignore_eos):
            return output, FinishReason.STOP
        if len(output) == sampling.max_tokens:
            return output, FinishReason.LENGTH


class OracleExecutor:
    """Executes plans on the tuple KV store and raises OracleError at the first that is wrong.

    Args:
        scheduler: Whose plans these are; its limits are checked, its state is not looked at.
        num_blocks: Of the pool.
        vocab_size: Of the hash model.
    """

    def __init__(self, scheduler: Scheduler, num_blocks: int, vocab_size: int) -> None:
        self.scheduler = scheduler
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.fail_next: set[str] = set()
        self._kv: dict[tuple[int, int], Prefix] = {}

    def add(self, request: Request) -> None:
        """Tells the oracle of a request that the scheduler has accepted."""
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []

    def execute(self, plan: StepPlan) -> StepResult:
        """One step: write all KV, then read all KV, as a real step does layer by layer."""
        self._check_budget(plan)
        written: dict[tuple[int, int], str] = {}
        for sequence in plan.sequences:
            self._write(sequence, written)
        for sequence in plan.sequences:
            self._read(sequence)
        return self._sample(plan)

    def _tokens(self, request_id: str) -> tuple[int, ...]:
        return (*self.requests[request_id].prompt_token_ids, *self.outputs[request_id])

    def _slot(self, sequence: ScheduledSequence, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.scheduler.block_size)
        if index >= len(sequence.block_table):
            raise OracleError(f"{sequence.request_id}: position {position} has no block")
        block = sequence.block_table[index]
        if not 0 <= block < self.num_blocks:
            raise OracleError(f"{sequence.request_id}: there is no block {block}")
        return block, offset

    def _check_budget(self, plan: StepPlan) -> None:
        if plan.num_tokens > self.scheduler.max_num_batched_tokens:
            raise OracleError(f"{plan.num_tokens} tokens in a step, over the budget")
        if len(plan.sequences) > self.scheduler.max_num_seqs:
            raise OracleError(f"{len(plan.sequences)} sequences in a step, over the limit")
        ids = [sequence.request_id for sequence in plan.sequences]
        if len(set(ids)) != len(ids):
            raise OracleError("a sequence stands twice in a step")
        for sequence in plan.sequences:
            tokens = self._tokens(sequence.request_id)
            start, end = sequence.num_computed, sequence.num_computed + len(sequence.token_ids)
            if start == end:
                raise OracleError(f"{sequence.request_id}: no token to compute")
            if sequence.token_ids != tokens[start:end]:
                raise OracleError(f"{sequence.request_id}: tokens {start} to {end} are not its own")
            if sequence.samples != (end == len(tokens)):
                raise OracleError(f"{sequence.request_id}: samples={sequence.samples} at {end} of {len(tokens)}")
            if sequence.num_generated != len(self.outputs[sequence.request_id]):
                raise OracleError(f"{sequence.request_id}: num_generated is wrong")

    def _write(self, sequence: ScheduledSequence, written: dict[tuple[int, int], str]) -> None:
        tokens = self._tokens(sequence.request_id)
        salt = self.requests[sequence.request_id].cache_salt
        for position in range(sequence.num_computed, sequence.num_computed + len(sequence.token_ids)):
            slot = self._slot(sequence, position)
            if slot in written:
                raise OracleError(f"{sequence.request_id} and {written[slot]} write block {slot[0]} in one step")
            written[slot] = sequence.request_id
            self._kv[slot] = (salt, tokens[: position + 1])

    def _read(self, sequence: ScheduledSequence) -> None:
        tokens = self._tokens(sequence.request_id)
        salt = self.requests[sequence.request_id].cache_salt
        for position in range(sequence.num_computed + len(sequence.token_ids)):
            slot = self._slot(sequence, position)
            if self._kv.get(slot) != (salt, tokens[: position + 1]):
                raise OracleError(f"{sequence.request_id}: block {slot[0]} does not hold its prefix at {position}")

    def _sample(self, plan: StepPlan) -> StepResult:
        sampled: dict[str, int] = {}
        failed: dict[str, str] = {}
        for sequence in plan.sequences:
            if not sequence.samples:
                continue
            request_id = sequence.request_id
            if request_id in self.fail_next:
                failed[request_id] = "the logits are not finite"
                continue
            token = next_token(self._tokens(request_id), self.vocab_size)
            sampled[request_id] = token
            self.outputs[request_id].append(token)
        return StepResult(sampled=sampled, failed=failed)
