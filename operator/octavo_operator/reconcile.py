"""Looking at one InferenceService: observe → desired → plan → apply → status."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import (
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    OPERATOR,
    POD,
    REVISION,
    SERVICE_ACCOUNT,
    STATUS_MANAGER,
    UPDATE_ANNOTATION,
    Key,
    Manifest,
    key_of,
)
from octavo_operator.api.privileges import Privilege
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.autoscaler import Autoscaler
from octavo_operator.autoscale.core.report import Scaled
from octavo_operator.children import Children, Known
from octavo_operator.cluster.port import ClusterPort
from octavo_operator.core.containers import Cause
from octavo_operator.core.contest import Contest
from octavo_operator.core.decisions import Decision, deployment_decisions, record, scale_decision, unpinned
from octavo_operator.core.desired import desired_children, pod_template
from octavo_operator.core.digest import digest
from octavo_operator.core.events import contest_event, ready_event, scale_event
from octavo_operator.core.observed import ClaimPhase, Observed
from octavo_operator.core.plan import recall
from octavo_operator.core.pods import told_plan
from octavo_operator.core.privileges import account_refusal, refusal
from octavo_operator.core.revision import Pinned, label_of, pin
from octavo_operator.core.rollout import Replica, Stall, Step, costs_pods, next_step, replicas_of, surge_of
from octavo_operator.core.setup import seconds_until_overdue
from octavo_operator.core.status import desired_status, is_written, refused_status, refuses_pods
from octavo_operator.core.store import Store
from octavo_operator.errors import ClusterError, Gone, Rejected, SpecInvalid
from octavo_operator.metrics import Metrics

__all__ = ["Outcome", "Reconciler"]

logger = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""How long a bound claim is taken to be bound, and an allowed service account to be allowed."""

POLL_SECONDS = (2.0, 30.0)
"""How often is read again, at first and at most, what is waited for but not watched: a claim that is missing or
unbound, a service account that may not be used, and an object of someone else that bears a child's name. A watch would
show all of their kind."""

RETOLD_SECONDS = 600.0
"""How often it is told that something else writes the status."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a look.

    Attributes:
        failed: whether something was refused; look again after a backoff.
        edited: whether an answer brought an edit, whose event will be no news any more; look again at once.
        look_again_after: seconds after which to look again all the same, or None.
    """

    failed: bool = False
    edited: bool = False
    look_again_after: float | None = None


@dataclass(slots=True)
class _Memory:
    """What is remembered about one InferenceService between looks."""

    children: Known
    status: str = ""
    """What the last status that was written says."""
    contest: Contest = field(default_factory=Contest)
    """Who else writes it."""
    contest_told: float = -inf
    account: tuple[str, Cause | None, float] | None = None
    waiting_since: float | None = None
    stall: Stall | None = None
    decisions: list[tuple[datetime, Decision]] = field(default_factory=list)
    """Those that are carried out and not on record yet."""
    scaled: Scaled | None = None


class Reconciler:
    """Makes the cluster follow one InferenceService at a time. At most one look at a key may run."""

    def __init__(
        self,
        port: ClusterPort,
        store: Store,
        metrics: Metrics,
        *,
        autoscaler: Autoscaler,
        runtime_image: str,
        allowed: Collection[Privilege] = (),
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._port = port
        self._store = store
        self._metrics = metrics
        self._autoscaler = autoscaler
        self._children = Children(port, store, metrics, monotonic=monotonic)
        self._render = partial(pod_template, runtime_image=runtime_image)
        self._allowed = allowed
        self._now = now
        self._monotonic = monotonic
        self._memories: dict[Key, _Memory] = {}
        self._claims: dict[Key, tuple[ClaimPhase, float]] = {}
        """By (namespace, name): the phase, and until when it is taken to be that."""

    async def reconcile(self, key: Key) -> Outcome:
        """Looks at one InferenceService and does what is missing.

        Raises:
            Unavailable: the API server did not answer; look again.
            Stale: an object changed meanwhile; look again.
        """
        observed = self._store.observe(key)
        if observed is None or "deletionTimestamp" in observed.service["metadata"]:
            # The garbage collector removes the children by their ownerReferences.
            self._memories.pop(key, None)
            self._autoscaler.forget(key)
            return Outcome()
        try:
            if key not in self._memories:
                self._memories[key] = _Memory(Known(recall(observed.service)))
            return await self._follow(key, observed, self._memories[key])
        except Gone:
            # Deleted under us, or its namespace is terminating: the watch will tell, if it has not yet.
            return Outcome()

    async def _follow(self, key: Key, observed: Observed, memory: _Memory) -> Outcome:
        try:
            service = InferenceService.parse(observed.service)
        except SpecInvalid as error:
            return await self._refuse(observed, memory, Cause(Reason.SPEC_INVALID, str(error)))
        refused = await self._refusal(service, memory)
        if refused is not None:
            # An account is read again, since it is not watched.
            patience = self._patience(memory, waits=memory.account is not None)
            return await self._refuse(observed, memory, refused, patience)
        self._autoscaler.follow(service)
        pinned = pin(service, observed, self._render)
        label = label_of(pinned.template)
        pods = replicas_of(observed.pods, label, self._now())
        step = self._step(service, pods, observed, memory)
        if costs_pods(step, surge_of(observed.children.get(DEPLOYMENT))):
            pods = replicas_of(await self._pods_now(key), label, self._now())
            step = self._step(service, pods, observed, memory)
        weights = (told_plan(observed.pods, label) or {}).get("weightsBytes", 0)
        desired = desired_children(service, pinned.template, step, weights_bytes=weights)
        decisions = deployment_decisions(service, observed, pinned, step, pods)
        problems = await self._pin(pinned, memory)
        problems += await self._children.apply(
            desired,
            observed,
            memory.children,
            {DEPLOYMENT: decisions},
            lambda one: memory.decisions.append((self._now(), one)),
        )
        claim = await self._claim_phase(service)
        present = self._store.observe(key)
        if present is None or present.service["metadata"]["uid"] != service.uid:
            return Outcome()
        status = desired_status(
            service,
            present,
            desired=desired,
            applied=memory.children.applied,
            problems=problems,
            pending=pinned.pending,
            claim=claim,
            scaling=self._autoscaler.report(key),
            now=self._now(),
        )
        written = await self._write_status(present, status, memory)
        memory.decisions += [(self._now(), one) for one in self._scaled(key, memory)]
        await self._record(service, present, memory)
        is_taken = any(problem.reason is Reason.NAME_TAKEN for problem in problems)
        dues = (
            self._patience(memory, waits=is_taken or claim not in {None, ClaimPhase.BOUND}),
            seconds_until_overdue(present.pods, self._now()),
            step.look_again_after,
            written.look_again_after,
        )
        return Outcome(
            failed=any(problem.reason is not Reason.NAME_TAKEN for problem in problems),
            edited=written.edited,
            look_again_after=_earliest(dues),
        )

    def _step(self, service: InferenceService, pods: Sequence[Replica], observed: Observed, memory: _Memory) -> Step:
        """Where a rollout of type Auto is."""
        if service.spec.rollout.type != "Auto":
            return Step()
        deployment = observed.children.get(DEPLOYMENT)
        step = next_step(
            service.wanted,
            pods,
            refused=refuses_pods(deployment) is not None,
            current=surge_of(deployment),
            stall=memory.stall,
            now=self._now().timestamp(),
        )
        memory.stall = step.stall
        return step

    async def _pods_now(self, key: Key) -> list[Manifest]:
        """The pods of one InferenceService as the API server has them; watches may be late."""
        pods: list[Manifest] = []
        token = ""
        while True:
            page = await self._port.list_page(POD, key[0], token, owner=key[1])
            pods += [one.manifest() for one in page.items]
            token = page.more
            if not token:
                return pods

    def _scaled(self, key: Key, memory: _Memory) -> tuple[Decision, ...]:
        """The autoscaler's last decision, if it was carried out since the last look."""
        report = self._autoscaler.report(key)
        if report is None or report.scaled is None or report.scaled == memory.scaled:
            return ()
        memory.scaled = report.scaled
        return (scale_decision(report.scaled),)

    async def _pin(self, pinned: Pinned, memory: _Memory) -> list[Cause]:
        """Creates the revision of the template that is applied next, and deletes those that nobody needs any more."""
        if pinned.create is not None:
            name = pinned.create["metadata"]["name"]
            try:
                answer = await self._port.apply(pinned.create, manager=OPERATOR)
            except Rejected as error:
                # The service comes first: what is not pinned now is pinned by the next look, unless there is an upgrade.
                logger.warning("%s %s was refused: %s", REVISION.kind, name, error)
                return [Cause(Reason.APPLY_REJECTED, f"{REVISION.kind} {name}: {error}")]
            self._metrics.writes.labels(REVISION.kind).inc()
            self._store.upsert(REVISION, answer)
        for manifest in pinned.obsolete:
            try:
                with suppress(Gone):
                    await self._port.remove(REVISION, manifest)
            except Rejected as error:
                # One too many harms nobody, and the next look tries again.
                logger.warning("%s %s was not deleted: %s", REVISION.kind, manifest["metadata"]["name"], error)
                continue
            self._metrics.writes.labels(REVISION.kind).inc()
            memory.decisions.append((self._now(), unpinned(manifest)))
        return []

    async def _record(self, service: InferenceService, observed: Observed, memory: _Memory) -> None:
        """Writes down what was decided, as far as it can be written: nothing depends on it."""
        if not memory.decisions:
            return
        manifest = record(service, observed.revisions, memory.decisions)
        if manifest is not None:
            try:
                self._store.upsert(REVISION, await self._port.apply(manifest, manager=OPERATOR))
            except Rejected as error:
                logger.warning("no record of decisions about %s/%s: %s", service.namespace, service.name, error)
            else:
                self._metrics.writes.labels(REVISION.kind).inc()
        memory.decisions.clear()

    async def _refuse(
        self, observed: Observed, memory: _Memory, cause: Cause, look_again_after: float | None = None
    ) -> Outcome:
        """Applies nothing of an object, not even what would be allowed: what runs goes on as it is."""
        written = await self._write_status(observed, refused_status(observed.service, cause, self._now()), memory)
        return replace(written, look_again_after=_earliest((look_again_after, written.look_again_after)))

    async def _refusal(self, service: InferenceService, memory: _Memory) -> Cause | None:
        """Why nothing of an object may be applied; None when it may."""
        cause, name = refusal(service, self._allowed), service.spec.pod_template.spec.service_account_name
        if cause is not None or not name:
            memory.account = None
            return cause
        now = self._monotonic()
        if memory.account is not None:
            known, cause, read_at = memory.account
            fresh = FRESH_SECONDS if cause is None else POLL_SECONDS[0] / 2
            if known == name and now - read_at < fresh:
                return cause
        account = await self._port.get(SERVICE_ACCOUNT, service.namespace, name)
        cause = account_refusal(service.namespace, name, account)
        memory.account = (name, cause, now)
        return cause

    async def _claim_phase(self, service: InferenceService) -> ClaimPhase | None:
        """The state of the claim that holds the model, read once for all objects that share it."""
        if service.claim is None:
            return None
        now, key = self._monotonic(), (service.namespace, service.claim)
        phase, fresh_until = self._claims.get(key, (ClaimPhase.MISSING, now))
        if now >= fresh_until:
            claim = await self._port.get(CLAIM, *key)
            phase = (
                ClaimPhase(claim.get("status", {}).get("phase", ClaimPhase.PENDING)) if claim else ClaimPhase.MISSING
            )
            fresh = FRESH_SECONDS if phase is ClaimPhase.BOUND else POLL_SECONDS[0] / 2
            known = {one: told for one, told in self._claims.items() if now < told[1]}
            self._claims = known | {key: (phase, now + fresh)}
        return phase

    def _patience(self, memory: _Memory, *, waits: bool) -> float | None:
        """When to read again what is not watched: the longer it is awaited, the later."""
        if not waits:
            memory.waiting_since = None
            return None
        now = self._monotonic()
        if memory.waiting_since is None:
            memory.waiting_since = now
        first, most = POLL_SECONDS
        return min(most, first + (now - memory.waiting_since) / 10)

    async def _write_status(self, observed: Observed, status: Manifest, memory: _Memory) -> Outcome:
        """Writes a status that differs, unless something else keeps writing against it."""
        if is_written(status, observed.service):
            return Outcome()
        said = _said(status)
        if said == memory.status and (pause := memory.contest.seconds_left(self._monotonic())):
            await self._tell_of_contest(observed, memory)
            return Outcome(look_again_after=pause)
        metadata = observed.service["metadata"]
        manifest = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            # The uid is a precondition: the status of a deleted object is not written onto its successor.
            "metadata": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
            "status": status,
        }
        answer = await self._port.apply_status(manifest, manager=STATUS_MANAGER)
        self._metrics.writes.labels(f"{INFERENCE_SERVICE.kind}/status").inc()
        self._store.upsert(INFERENCE_SERVICE, answer)
        if said == memory.status:
            memory.contest.repaired(self._monotonic())
        memory.status = said
        for event_of in (scale_event, ready_event):
            event = event_of(observed.service, status, self._now())
            if event is not None:
                await self._announce(event)
        return Outcome(edited=_wish(answer) != _wish(observed.service))

    async def _tell_of_contest(self, observed: Observed, memory: _Memory) -> None:
        """The one thing that no status can tell."""
        if self._monotonic() - memory.contest_told < RETOLD_SECONDS:
            return
        memory.contest_told = self._monotonic()
        event = contest_event(observed.service, self._now())
        logger.warning("%s/%s: %s", *key_of(observed.service), event["message"])
        await self._announce(event)

    async def _announce(self, event: Manifest) -> None:
        """Writes an Event, as far as it can be written: it is told for people, and nothing depends on it."""
        try:
            await self._port.record(event)
        except ClusterError as error:
            logger.warning("no event %s of %s: %s", event["reason"], event["involvedObject"]["name"], error)
            return
        self._metrics.writes.labels(EVENT.kind).inc()


def _wish(service: Manifest) -> tuple[object, object]:
    """What a user can change that decides what is done."""
    metadata = service["metadata"]
    return metadata["generation"], metadata.get("annotations", {}).get(UPDATE_ANNOTATION)


def _said(status: Manifest) -> str:
    """A digest of what a status says, whenever it came to say so."""
    conditions = [one | {"lastTransitionTime": ""} for one in status["conditions"]]
    return digest(status | {"conditions": conditions})


def _earliest(dues: Iterable[float | None]) -> float | None:
    return min((due for due in dues if due is not None), default=None)
