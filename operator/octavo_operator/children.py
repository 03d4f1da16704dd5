"""Carrying out a plan: children are made and put right, never over what is someone else's, and not against a rival."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import OPERATOR, SERVICE, Kind, Manifest
from octavo_operator.cluster.port import ABSENT, ClusterPort
from octavo_operator.core.containers import Cause
from octavo_operator.core.contest import Contest
from octavo_operator.core.decisions import Decision, repair
from octavo_operator.core.digest import digest
from octavo_operator.core.observed import Observed
from octavo_operator.core.plan import Applied, is_ours, kind_of, plan, remember
from octavo_operator.core.store import Store
from octavo_operator.errors import Rejected, Stale
from octavo_operator.metrics import Metrics

__all__ = ["Children", "Known"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Known:
    """What is remembered of the children of one InferenceService between looks.

    Attributes:
        applied: what their last applies sent, and what came of them.
        contests: who else writes them.
        taken: the kinds of which an object of someone else bore the name at the last look.
    """

    applied: dict[Kind, Applied]
    contests: defaultdict[Kind, Contest] = field(default_factory=lambda: defaultdict(Contest))
    taken: set[Kind] = field(default_factory=set)


class Children:
    """Writes the children of one InferenceService at a time."""

    def __init__(self, port: ClusterPort, store: Store, metrics: Metrics, *, monotonic: Callable[[], float]) -> None:
        self._port = port
        self._store = store
        self._metrics = metrics
        self._monotonic = monotonic

    async def apply(
        self,
        desired: tuple[Manifest, ...],
        observed: Observed,
        known: Known,
        decisions: Mapping[Kind, Sequence[Decision]],
        tell: Callable[[Decision], None],
    ) -> list[Cause]:
        """Carries out the plan; one child's refusal does not keep the others back.

        Args:
            desired: the children.
            observed: what exists.
            known: gets what is carried out.
            decisions: those that writing a child of this kind carries out.
            tell: takes each decision that is carried out, what was put right included.

        Returns:
            What went wrong.

        Raises:
            Unavailable: the API server did not answer.
            Stale: an object changed meanwhile.
            Gone: the namespace is terminating.
        """
        todo = plan(desired, observed, known.applied)
        problems = [_taken(manifest) for manifest in todo.taken]
        for manifest in todo.create + todo.apply:
            kind = kind_of(manifest)
            metadata = manifest["metadata"]
            before = known.applied.get(kind)
            repeats = before is not None and before.sent == digest(manifest)
            if repeats and known.contests[kind].seconds_left(self._monotonic()):
                problems.append(_contested(manifest))
                continue
            try:
                present = observed.children.get(kind)
                answer = await (
                    self._write(manifest, present) if present else self._create(manifest, observed.service, known.taken)
                )
            except Rejected as error:
                logger.warning("%s %s was refused: %s", kind.kind, metadata["name"], error)
                problems.append(Cause(Reason.APPLY_REJECTED, f"{kind.kind} {metadata['name']}: {error}"))
                continue
            if answer is None:
                problems.append(_taken(manifest))
                continue
            self._metrics.writes.labels(kind.kind).inc()
            logger.info("applied %s %s/%s", kind.kind, metadata["namespace"], metadata["name"])
            self._store.upsert(kind, answer)
            known.applied[kind] = remember(manifest, answer)
            if repeats:
                known.contests[kind].repaired(self._monotonic())
            repaired = repair(manifest, observed, answer, repeats=repeats)
            for one in (*(() if repeats else decisions.get(kind, ())), repaired):
                if one is not None:
                    tell(one)
        return problems

    async def _create(self, manifest: Manifest, service: Manifest, taken: set[Kind]) -> Manifest | None:
        """Creates a child that was not observed; None when an object of someone else bears its name.

        Args:
            manifest: the child.
            service: its owner.
            taken: the kinds of which that was so at the last look.
        """
        kind, metadata = kind_of(manifest), manifest["metadata"]
        # While a name is taken there is nothing to try, only to see whether it still is.
        present = await self._port.get(kind, metadata["namespace"], metadata["name"]) if kind in taken else None
        taken.discard(kind)
        if present is None:
            only_new = manifest | {"metadata": metadata | {"resourceVersion": ABSENT}}
            try:
                return await self._port.apply(only_new, manager=OPERATOR)
            except Stale:
                present = await self._port.get(kind, metadata["namespace"], metadata["name"])
                if present is None:
                    raise
        if is_ours(present, service):  # it has lost the label that the watch goes by
            return await self._write(manifest, present)
        taken.add(kind)
        return None

    async def _write(self, manifest: Manifest, present: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        # The uid is a precondition: what has taken the place of our child since is not applied over.
        manifest = manifest | {"metadata": metadata | {"uid": present["metadata"]["uid"]}}
        try:
            return await self._port.apply(manifest, manager=OPERATOR)
        except Rejected:
            if kind_of(manifest) is not SERVICE:
                raise
            # A Service's ports are merged by number. One that someone renumbered by hand stays beside ours, under the
            # same name, and the API server refuses both: only replacing the whole list helps.
            ports = {"spec": {"ports": manifest["spec"]["ports"]}}
            await self._port.merge(SERVICE, metadata["namespace"], metadata["name"], ports, manager=OPERATOR)
            return await self._port.apply(manifest, manager=OPERATOR)


def _taken(manifest: Manifest) -> Cause:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return Cause(
        Reason.NAME_TAKEN,
        f"{kind} {name} exists and belongs to someone else; delete it, or give the InferenceService another name",
    )


def _contested(manifest: Manifest) -> Cause:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return Cause(
        Reason.CONTESTED,
        f"something keeps changing {kind} {name} back; `kubectl get {kind.lower()} {name} --show-managed-fields -o yaml` "
        "shows who writes it",
    )
