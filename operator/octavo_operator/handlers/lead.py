"""The election's edge: reads and writes the Lease, and keeps those from writing who do not lead.

core/election.py decides; this file only carries out. It asks no watch: a look every two seconds is enough, and a
watch that is silent would be one more thing to doubt.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from octavo_operator.api.names import LEASE, Key, Kind, Manifest
from octavo_operator.cluster.port import ClusterPort, Page
from octavo_operator.core.election import Durations, Election
from octavo_operator.errors import ClusterError, Gone, NotLeading, Stale

__all__ = ["Elector", "Fenced", "new_identity", "seconds_since_boot"]

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 2.0
"""How long a stop waits for the API server to take the Lease back."""


def seconds_since_boot() -> float:
    """A clock that never goes back and does not stand still while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def new_identity() -> str:
    """This process and no other one: a pod that is started again has the same host name."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


class Elector:
    """One candidate for a Lease.

    Args:
        port: the cluster.
        name: (namespace, name) of the Lease.
        identity: who this process is.
        clock: seconds on a clock that never goes back; asked before each write that the Lease protects.
        durations: the same for all candidates.

    Attributes:
        elected: set when this process leads; it ends when it does not any more.
    """

    def __init__(
        self,
        port: ClusterPort,
        name: Key,
        identity: str,
        *,
        clock: Callable[[], float] = seconds_since_boot,
        durations: Durations = Durations(),  # noqa: B008 an immutable value
    ) -> None:
        self._port = port
        self._clock = clock
        self._election = Election(identity, name, durations)
        self._lease_name = "/".join(name)
        self._last_holder = ""
        self._last_error = ""
        self.elected = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether this process may write, as of now."""
        return self._election.leads(self._clock())

    @property
    def is_ready(self) -> bool:
        """Whether it knows the Lease, so that it can take over."""
        return self._election.seen_at is not None

    async def run(self) -> None:
        """Waits for the Lease, then renews it, until cancelled.

        Raises:
            NotLeading: it led, and another one may lead now: nothing more may be written.
        """
        while True:
            if self._election.is_deposed(self._clock()):
                raise NotLeading(self._why_deposed())
            try:
                async with asyncio.timeout(self._round_seconds()):
                    await self._round()
            except (ClusterError, TimeoutError) as error:
                self._complain(str(error) or "no answer")
            else:
                self._last_error = ""
            if self.leads and not self.elected.is_set():
                logger.info("leading: holds Lease %s as %s", self._lease_name, self._election.identity)
                self.elected.set()
            await asyncio.sleep(self._election.pause(self._clock()))

    async def release(self) -> None:
        """Gives the Lease back, so that another one leads at once. Nothing may be written any more."""
        self._election = self._election.resigned(self._clock())
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._release()
        except (ClusterError, TimeoutError) as error:
            logger.warning("Lease %s is not given back, the next leader waits for it: %s", self._lease_name, error)

    async def _round(self) -> None:
        """A renewal, a takeover, or a look at who leads."""
        if not self.leads:
            await self._read()
        for is_last in (False, True):
            claim = self._election.claim(self._clock(), datetime.now(UTC))
            if claim is None:
                return
            sent_at = self._clock()
            try:
                answer = await self._port.update(claim)
            except (Stale, Gone):
                if is_last:
                    raise
                # Someone was quicker; or it was an earlier write of ours whose answer was lost, and the next one counts.
                await self._read()
            else:
                self._election = self._election.written(answer, sent_at, self._clock())
                return

    async def _read(self) -> None:
        namespace, name = self._election.name
        lease = await self._port.get(LEASE, namespace, name)
        self._election = self._election.read(lease, self._clock())
        holder = self._election.holder
        if holder and holder not in {self._last_holder, self._election.identity}:
            logger.info("standing by: Lease %s is held by %s", self._lease_name, holder)
        self._last_holder = holder

    async def _release(self) -> None:
        for _ in range(2):
            given_back = self._election.release(datetime.now(UTC))
            if given_back is None:
                return
            try:
                await self._port.update(given_back)
            except Stale:
                await self._read()  # a renewal was under way
            else:
                logger.info("gave Lease %s back", self._lease_name)
                return

    def _complain(self, error: str) -> None:
        """Says once what goes on for a while."""
        if error != self._last_error:
            logger.warning("Lease %s: %s", self._lease_name, error)
        self._last_error = error

    def _round_seconds(self) -> float:
        """How long a round may take. Two fit into the deadline: an answer that does not come must not be waited for."""
        election, now = self._election, self._clock()
        most = election.durations.deadline / 2
        return min(most, election.leads_until - now) if election.leads_until is not None else most

    def _why_deposed(self) -> str:
        holder = self._election.holder
        if holder != self._election.identity:
            return f"stops: Lease {self._lease_name} is held by {holder or 'nobody'} now"
        seconds = round(self._election.durations.deadline)
        reason = self._last_error or "this process did not run"
        return (
            f"stops: Lease {self._lease_name} could not be renewed within {seconds} s ({reason}), another one may lead"
        )


class Fenced:
    """A ClusterPort that lets nothing be written unless the Lease is held at that moment.

    The loop that renews the Lease ends the process when it is lost. A process that was paused may first run whatever
    else is due: it is stopped here. What was sent before the pause may still arrive; server-side apply and its
    preconditions make that harmless.
    """

    def __init__(self, port: ClusterPort, elector: Elector) -> None:
        self._port = port
        self._elector = elector

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        """See ClusterPort."""
        return await self._port.list_page(kind, namespace, token, owner=owner)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See ClusterPort."""
        return await self._port.get(kind, namespace, name)

    async def apply(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._leading().apply(manifest, manager=manager)

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._leading().apply_status(manifest, manager=manager)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._leading().merge(kind, namespace, name, patch, manager=manager)

    async def remove(self, kind: Kind, manifest: Manifest) -> None:
        """See ClusterPort."""
        await self._leading().remove(kind, manifest)

    async def scale(self, kind: Kind, manifest: Manifest, replicas: int, *, manager: str) -> None:
        """See ClusterPort."""
        await self._leading().scale(kind, manifest, replicas, manager=manager)

    async def update(self, manifest: Manifest) -> Manifest:
        """See ClusterPort."""
        return await self._leading().update(manifest)

    async def record(self, event: Manifest) -> None:
        """See ClusterPort."""
        await self._leading().record(event)

    def _leading(self) -> ClusterPort:
        """The port.

        Raises:
            NotLeading: it must not be used to write.
        """
        if not self._elector.leads:
            raise NotLeading("not written: this operator does not hold the Lease")
        return self._port
