"""The last decisions about one InferenceService, kept packed.

    group (60 rounds; the first has its state)     group                      the last group
    [ zlib ][ zlib ][ zlib ]                       [ zlib ][ zlib ][ zlib ]   [ zlib ] line line line

Whole groups are dropped, so that what is left always begins with a state. Lines are packed some at a time: one alone
packs badly, and a stream that stays open costs more memory than it saves.
"""

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from octavo_operator.autoscale.core.decide import State
from octavo_operator.autoscale.core.recording import Round, line_of

__all__ = ["GROUP", "ROUNDS", "Ring"]

ROUNDS = 3600
"""Most decisions that are kept: an hour where pods are asked each second, five where every five."""

GROUP = 60
LOOSE_BYTES = 16 * 1024
"""So much text is packed at a time."""


@dataclass(slots=True)
class _Group:
    rounds: int = 0
    packed: list[bytes] = field(default_factory=list)
    loose: list[bytes] = field(default_factory=list)
    size: int = 0

    def pack(self) -> None:
        self.packed.append(zlib.compress(b"".join(self.loose)))
        self.size += len(self.packed[-1]) - sum(map(len, self.loose))
        self.loose = []


class Ring:
    """Takes rounds in, and gives back the text of the latest."""

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(group.size for group in self._groups)

    def add(self, made: Round, state: State, most: int) -> None:
        """Takes in a round.

        Args:
            made: the round; its own state does not count.
            state: what was remembered before it.
            most: bytes to keep at most. One group is kept in any case.
        """
        if not self._groups or self._groups[-1].rounds == GROUP:
            if self._groups and self._groups[-1].loose:
                self._groups[-1].pack()
            self._groups.append(_Group())
        group = self._groups[-1]
        line = line_of(replace(made, state=None if group.rounds else state))
        group.rounds += 1
        group.loose.append(line)
        group.size += len(line)
        if sum(map(len, group.loose)) >= LOOSE_BYTES:
            group.pack()
        while len(self._groups) > 1 and (self.size > most or len(self._groups) > ROUNDS // GROUP):
            self._groups.popleft()

    def text(self) -> Iterator[bytes]:
        """The lines of all rounds that are kept, some at a time, as of this moment."""
        packed = [part for group in self._groups for part in group.packed]
        loose = [line for group in self._groups for line in group.loose]
        return chain(map(zlib.decompress, packed), loose)
