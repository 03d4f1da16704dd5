"""Who leads: one candidate's knowledge of the Lease, and what it may do with it.

Time is a clock of this machine's own that never goes back; clocks of different machines are never compared. The times
written into the Lease are for people. A candidate holds the Lease by writing its identity into it, and every write
names the version that it replaces, so that of two writers one is refused. What holds at any time
(tests/operator_tests/test_election.py), if nobody but candidates writes the Lease and no clock runs 20 % faster than
another:

- At most one candidate `leads`. A leader does until `deadline` after it *sent* its last write that was confirmed; the
  others leave it alone until `lease` after they first *saw* that write. Whatever was lost or late in between makes the
  first moment earlier and the second one later.
- A candidate that led and does not any more, `is_deposed`, never leads again: its process must end.
- While the API server answers, someone leads within `lease` after the last write of a leader that died was seen, and
  that is seen within `retry`. A Lease that was given back is taken within `retry`.
- A Lease that vanishes is waited for like one that is held: its holder may not know yet.

A process that was paused finds out by the clock: whoever acts for the leader asks `leads` before it does. What it had
sent before the pause may still arrive.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from octavo_operator.api.names import LEASE, Key, Manifest

__all__ = ["Durations", "Election"]


@dataclass(frozen=True, slots=True)
class Durations:
    """In seconds; each is far below the one before.

    Attributes:
        lease: how long the others wait for a leader that says nothing.
        deadline: how long a leader that cannot renew goes on.
        retry: time between two attempts.
    """

    lease: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True)
class Election:
    """What one candidate knows. Each method that learns something gives the next state.

    Attributes:
        identity: who it is; no two candidates share it.
        name: (namespace, name) of the Lease.
        durations: of all candidates.
        lease: the Lease as it was last read or written; None when there was none.
        seen_at: when the Lease first said what it says; None before it was read.
        leads_until: when leading ends; None when it never began.
    """

    identity: str
    name: Key
    durations: Durations = Durations()
    lease: Manifest | None = None
    seen_at: float | None = None
    leads_until: float | None = None

    @property
    def holder(self) -> str:
        """Who holds the Lease; empty for nobody."""
        return str(self._spec.get("holderIdentity") or "")

    def leads(self, now: float) -> bool:
        """Whether this candidate may act."""
        return self.leads_until is not None and now < self.leads_until

    def is_deposed(self, now: float) -> bool:
        """Whether it led and must not act any more."""
        return self.leads_until is not None and now >= self.leads_until

    def read(self, lease: Manifest | None, now: float) -> Self:
        """The state after the Lease was read.

        Args:
            lease: what was read; None when there is none.
            now: the time after the answer came.
        """
        # Others may annotate the Lease: only a new spec is a sign of life.
        is_news = self.seen_at is None or (lease or {}).get("spec") != (self.lease or {}).get("spec")
        state = replace(self, lease=lease, seen_at=now if is_news else self.seen_at)
        if state.leads(now) and lease is not None and state.holder != self.identity:
            return replace(state, leads_until=now)
        if self.seen_at is None and lease is None:
            # A new installation. Nobody can have held it, so that there is nothing to wait for.
            return replace(state, seen_at=now - self.durations.lease)
        return state

    def written(self, lease: Manifest, sent_at: float, now: float) -> Self:
        """The state after the API server confirmed a claim.

        Args:
            lease: its answer.
            sent_at: the time before the claim was sent.
            now: the time after the answer came.
        """
        if self.is_deposed(now):
            return self
        return replace(self, lease=lease, seen_at=now, leads_until=sent_at + self.durations.deadline)

    def claim(self, now: float, moment: datetime) -> Manifest | None:
        """The Lease to write: a renewal, or the takeover of one that is free.

        None while someone else may lead, and for one that is deposed.

        Args:
            now: the time.
            moment: the time of day, for people.
        """
        is_mine = self.leads(now) or self.holder == self.identity
        if self.seen_at is None or self.is_deposed(now) or not (is_mine or self._is_free(now)):
            return None
        stamp = _stamp(moment)
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self.durations.lease),
            "acquireTime": self._spec.get("acquireTime", stamp) if is_mine else stamp,
            "renewTime": stamp,
            "leaseTransitions": int(self._spec.get("leaseTransitions") or 0) + (not is_mine and self.lease is not None),
        }
        return self._manifest(spec)

    def resigned(self, now: float) -> Self:
        """The state after this candidate has decided to act no more."""
        return self if self.leads_until is None else replace(self, leads_until=min(now, self.leads_until))

    def release(self, moment: datetime) -> Manifest | None:
        """The Lease to write so that someone else can lead at once; None when this candidate does not hold it."""
        if self.lease is None or self.holder != self.identity:
            return None
        return self._manifest(self._spec | {"holderIdentity": "", "renewTime": _stamp(moment)})

    def pause(self, now: float) -> float:
        """How long to wait before the next attempt."""
        if self.leads_until is not None:
            return max(0.0, min(self.durations.retry, self.leads_until - now))
        expires_in = self.durations.retry if self.seen_at is None else self.seen_at + self._patience - now
        return expires_in if 0 < expires_in < self.durations.retry else self.durations.retry

    def _is_free(self, now: float) -> bool:
        if self.lease is not None and not self.holder:
            return True
        return self.seen_at is not None and now - self.seen_at >= self._patience

    @property
    def _patience(self) -> float:
        """How long the holder asked to be waited for: it may be of another version, with other durations."""
        return float(self._spec.get("leaseDurationSeconds") or self.durations.lease)

    @property
    def _spec(self) -> Manifest:
        spec: Manifest = (self.lease or {}).get("spec") or {}
        return spec

    def _manifest(self, spec: Manifest) -> Manifest:
        """The Lease with another spec; what others wrote beside it stays."""
        namespace, name = self.name
        metadata = {"namespace": namespace, "name": name} if self.lease is None else self.lease["metadata"]
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def _stamp(moment: datetime) -> str:
    """A MicroTime of the API."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
