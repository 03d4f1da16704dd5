"""One request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_runtime.core.block_pool import chain_hash, root_hash
from octavo_runtime.domain import Request

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, blocks and progress of one request.

        token_ids:    [ prompt … | output … ]
        KV present:   [ num_computed ][ remaining ]
        block_table:  [ b0 ][ b1 ][ b2 ]            empty while waiting

    Attributes:
        request: What was asked.
        token_ids: Prompt and output so far.
        num_computed: Tokens whose KV is in `block_table`.
        block_table: Blocks by position; they cover all of `token_ids` once admitted.
        num_published: Leading blocks that the prefix cache knows, or that hold what it knows elsewhere.
        num_cached_tokens: Prompt tokens found in the cache at first admission; None before it.
    """

    request: Request
    token_ids: list[int]
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    num_published: int = 0
    num_cached_tokens: int | None = None
    _hashes: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> Sequence:
        """A new sequence, waiting."""
        return cls(request=request, token_ids=list(request.prompt_token_ids))

    @property
    def num_generated(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    def hashes(self, count: int, block_size: int) -> list[bytes]:
        """The hash chain of the first `count` blocks, all full of known tokens; each is computed once."""
        while len(self._hashes) < count:
            parent = self._hashes[-1] if self._hashes else root_hash(self.request.cache_salt)
            start = len(self._hashes) * block_size
            self._hashes.append(chain_hash(parent, self.token_ids[start : start + block_size]))
        return self._hashes[:count]
