"""What runs: a request, and the sequences that it consists of."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field

from octavo_runtime.core.beams import BeamSearch
from octavo_runtime.core.hashing import chain_hash, root_hash
from octavo_runtime.domain import FinishReason, Request, SamplingParams

__all__ = ["Answer", "RequestState", "Sequence", "State"]


class State(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Answer:
    """A sequence that has ended, of a request whose answers are ranked."""

    score: float
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_token_id: int | None


@dataclass(slots=True, eq=False)
class RequestState:
    """One request. Its prompt is one sequence, which forks into `sampling.width` once it is computed.

    Attributes:
        request_id: Ours.
        sampling: As asked for.
        prompt_len: Tokens of the prompt.
        arrival: Seconds on the monotonic clock.
        priority: Lower runs earlier, under the policy priority.
        max_tokens: Most output tokens of each sequence.
        stops: Tokens that end a sequence.
        root: Hash that the chain of its blocks begins with.
        sequences: Those that have not ended; of a beam search the beams, best first.
        dropped: Answers that nobody waits for any longer.
        ended: Answers whose last event is out.
        answers: What has ended already, where answers are ranked.
        beams: The search, where it is one.
        num_cached_tokens: Prompt tokens found in the cache at first admission; None before it.
        spent: Hashes of blocks that nobody will look up once the request has ended, where requests share nothing.
        predicted: Expected length of an answer and its 90th percentile, at first admission.
    """

    request_id: str
    sampling: SamplingParams
    prompt_len: int
    arrival: float
    priority: int
    max_tokens: int
    stops: frozenset[int]
    root: bytes
    sequences: list[Sequence] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    beams: BeamSearch | None = None
    num_cached_tokens: int | None = None
    spent: list[bytes] = field(default_factory=list)
    predicted: tuple[float, int] | None = None

    @classmethod
    def of(cls, request: Request, *, stops: frozenset[int], salt: str) -> RequestState:
        """A new request without sequences."""
        sampling = request.sampling
        assert sampling.max_tokens is not None, "the door resolves max_tokens"
        beams = None
        if sampling.use_beam_search:
            beams = BeamSearch(
                sampling.width,
                max_tokens=sampling.max_tokens,
                stop_token_ids=stops,
                length_penalty=sampling.length_penalty,
                early_stopping=sampling.early_stopping,
            )
        return cls(
            request_id=request.request_id,
            sampling=sampling,
            prompt_len=len(request.prompt_token_ids),
            arrival=request.arrival,
            priority=request.priority,
            max_tokens=sampling.max_tokens,
            stops=stops,
            root=root_hash(request.cache_salt, salt),
            beams=beams,
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, blocks and progress of one sequence.

        token_ids:    [ prompt … | output … ]                known
        pending:                             [ ? ]    sampled by steps that are not applied yet
        KV:           [ num_computed ][ in such steps ]        the two parts are num_planned
        block_table:  [ b0 ][ b1 ][ b2 ]            empty while waiting

    Attributes:
        number: Unique in the scheduler, never reused.
        request: Whose.
        choice: Which of the request's answers.
        token_ids: Prompt and output so far.
        max_len: Tokens at which it ends at the latest.
        state: Where it is.
        num_computed: Tokens whose KV is in `block_table`, by steps that were applied.
        num_planned: Tokens whose KV is there once all planned steps are through.
        pending: Tokens that such steps sample.
        epoch: Counts the times it lost its blocks: what a step planned before brings for them does not count.
        block_table: Blocks by position; they cover all of `token_ids` once admitted.
        table: The same as a tuple, for plans.
        capacity: Tokens that the blocks hold.
        publish_at: Tokens computed at which another block is full.
        num_published: Leading blocks that the prefix cache knows, or that hold what it knows elsewhere.
        may_share_tail: Whether the block it writes next may be shared: it was forked since.
        awaits_results: Whether what follows a token depends on which it is: a prompt that forks, a beam.
        is_plain: Whether it is its request's only one, from the beginning: what nearly all are.
        slots: Of `max_num_seqs`, how many it takes: as many as it will fork into.
        lost: Tokens that were computed when it last lost its blocks.
        wanted: Hashes of the blocks that it lost, which the host keeps for it.
        since: Output tokens when it was last admitted.
        key: Its place in the order of the policy.
        is_late: Whether its first token cannot come in time any more, under the policy slo.
        logprob: Sum over the output, where answers are ranked.
        candidates: What it brought to its beam search's next step, when the others have not all brought theirs.
    """

    number: int
    request: RequestState
    choice: int
    token_ids: array[int]
    max_len: int
    state: State = State.WAITING
    num_computed: int = 0
    num_planned: int = 0
    pending: int = 0
    epoch: int = 0
    block_table: list[int] = field(default_factory=list)
    table: tuple[int, ...] = ()
    capacity: int = 0
    publish_at: int = 0
    num_published: int = 0
    may_share_tail: bool = False
    awaits_results: bool = False
    is_plain: bool = False
    slots: int = 1
    lost: int = 0
    wanted: list[bytes] = field(default_factory=list)
    since: int = 0
    key: tuple[float, ...] = ()
    is_late: bool = False
    logprob: float = 0.0
    candidates: list[tuple[int, float]] | None = None
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def num_generated(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.request.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled, that of a running step among them."""
        return len(self.token_ids) + self.pending - self.num_planned

    def hashes(self, count: int, block_size: int) -> list[bytes]:
        """The hash chain of the first `count` blocks, all full of known tokens; each is computed once."""
        hashes = self._hashes
        while len(hashes) < count:
            start = len(hashes) * block_size
            parent = hashes[-1] if hashes else self.request.root
            hashes.append(chain_hash(parent, self.token_ids[start : start + block_size]))
        return hashes[:count]

    def fork(self, number: int, choice: int) -> Sequence:
        """Another sequence with the same tokens and blocks. The caller counts its blocks' new owner."""
        return Sequence(
            number=number,
            request=self.request,
            choice=choice,
            token_ids=self.token_ids[:],
            max_len=self.max_len,
            state=self.state,
            num_computed=self.num_computed,
            num_planned=self.num_planned,
            block_table=self.block_table[:],
            table=self.table,
            capacity=self.capacity,
            publish_at=self.publish_at,
            num_published=self.num_published,
            may_share_tail=True,
            awaits_results=self.request.beams is not None,
            since=self.since,
            key=self.key,
            logprob=self.logprob,
            _hashes=self._hashes[:],
        )
