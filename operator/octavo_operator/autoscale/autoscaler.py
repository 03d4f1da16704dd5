"""One task per InferenceService with `autoscaling`: scrape, decide, scale, again.

It writes replicas through /scale like any other scaler, and nothing else but the deletion cost of pods, so that of
those that may go the one with the fewest streams goes. What it found it leaves in `report`, for the status.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain

from octavo_operator.api.names import AUTOSCALER, DELETION_COST, INFERENCE_SERVICE, POD, Key, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.autoscale.core.decide import State, decide, start
from octavo_operator.autoscale.core.recording import VERSION, Heading, Round, line_of
from octavo_operator.autoscale.core.report import Load, Report, Scaled, stored_load, worth_telling
from octavo_operator.autoscale.core.ring import Ring
from octavo_operator.autoscale.core.rival import Rival
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings
from octavo_operator.autoscale.scrape import Scraper
from octavo_operator.cluster.port import ClusterPort
from octavo_operator.core.arguments import PORT
from octavo_operator.core.observed import Observed
from octavo_operator.core.store import Store
from octavo_operator.errors import ClusterError, Gone, Stale
from octavo_operator.metrics import Metrics

__all__ = ["Autoscaler"]

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
BUSY_INTERVAL_SECONDS = 1.0
BUSY = 0.7
"""From which load of a pod on it is asked each second: what happens next happens soon."""

DEFAULT_SLOTS = 64
"""The runtime's --max-num-seqs when the spec sets none (docs/contract.md)."""

RECORDED_BYTES = 32 * 2**20
"""What all recordings together take of the memory; each InferenceService has an equal share."""


@dataclass(slots=True)
class _Followed:
    service: InferenceService
    state: State
    task: asyncio.Task[None] | None = None
    samples: dict[str, Sample] = field(default_factory=dict)
    rival: Rival = field(default_factory=Rival)
    ring: Ring = field(default_factory=Ring)
    report: Report | None = None
    told_at: float = 0.0


class Autoscaler:
    """Follows the load of those InferenceServices that ask for it. Only a leader has any.

    Args:
        port: the cluster.
        store: what is known of it.
        scraper: asks the pods; it is closed with the autoscaler.
        metrics: counters.
        notify: called when a report has changed so that the status should.
    """

    def __init__(
        self, port: ClusterPort, store: Store, scraper: Scraper, metrics: Metrics, *, notify: Callable[[Key], None]
    ) -> None:
        self._port = port
        self._store = store
        self._scraper = scraper
        self._metrics = metrics
        self._notify = notify
        self._followed: dict[Key, _Followed] = {}

    def follow(self, service: InferenceService) -> None:
        """Begins to follow an object, or goes on with its present spec; ends it where nothing is to be scaled."""
        if service.spec.autoscaling is None or service.wanted == 0:
            self.forget(service.key)
            return
        known = self._followed.get(service.key)
        if known is not None and known.service.uid == service.uid:
            known.service = service
            return
        self.forget(service.key)
        followed = _Followed(service, start(settings_of(service), _now()))
        self._followed[service.key] = followed
        followed.task = asyncio.create_task(self._follow(followed), name=f"autoscale {'/'.join(service.key)}")

    def forget(self, key: Key) -> None:
        """Ends following an object."""
        followed = self._followed.pop(key, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    def report(self, key: Key) -> Report | None:
        """What is known of an object; None when it is not followed, or not yet looked at."""
        followed = self._followed.get(key)
        return followed.report if followed is not None else None

    def recording(self, key: Key) -> Iterator[bytes] | None:
        """The last decisions about an object with their inputs, as text; None when it is not followed here."""
        followed = self._followed.get(key)
        if followed is None:
            return None
        return chain([line_of(Heading(VERSION, *key, version("octavo")))], followed.ring.text())

    async def close(self) -> None:
        """Ends everything."""
        tasks = [followed.task for followed in self._followed.values() if followed.task is not None]
        for key in list(self._followed):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._scraper.close()

    async def _follow(self, followed: _Followed) -> None:
        # Those that begin at once, when an operator starts, shall not go on in step.
        await asyncio.sleep(random.random() * BUSY_INTERVAL_SECONDS)  # noqa: S311 spreads the load
        while True:
            began = _now()
            try:
                interval = await self._round(followed)
            except Stale:
                interval = BUSY_INTERVAL_SECONDS  # someone has just written it
            except (ClusterError, OSError) as error:
                logger.warning("%s: not scaled: %s", "/".join(followed.service.key), error)
                interval = INTERVAL_SECONDS
            except Exception:
                # A fault of ours in one object must not stop its scaling for good.
                logger.exception("%s: a round of autoscaling failed", "/".join(followed.service.key))
                interval = INTERVAL_SECONDS
            await asyncio.sleep(max(0.0, began + interval - _now()))

    async def _round(self, followed: _Followed) -> float:
        """One round.

        Returns:
            Seconds until the next one.
        """
        key = followed.service.key
        observed = self._store.observe(key)
        if observed is None:
            return INTERVAL_SECONDS
        addresses = {pod["metadata"]["uid"]: address for pod in observed.pods if (address := _address(pod))}
        answers = await self._scraper.scrape(addresses)
        samples = {uid: answer for uid, answer in answers.items() if isinstance(answer, Sample)}
        trouble = next((answer for answer in answers.values() if isinstance(answer, str)), "")
        self._metrics.scrapes.labels("ok").inc(len(samples))
        self._metrics.scrapes.labels("failed").inc(len(answers) - len(samples))
        observed = self._store.observe(key)
        if observed is None or observed.service["metadata"]["uid"] != followed.service.uid:
            return INTERVAL_SECONDS
        now = _now()
        present = {pod["metadata"]["uid"] for pod in observed.pods}
        followed.samples = {uid: one for uid, one in (followed.samples | samples).items() if uid in present}
        replicas = int(observed.service["spec"]["replicas"])
        pods = [_pod(pod, followed.samples.get(pod["metadata"]["uid"])) for pod in observed.pods]
        followed.rival = followed.rival.see(replicas, now)
        autoscaling = followed.service.spec.autoscaling
        acts = autoscaling is not None and autoscaling.mode == "Auto" and not followed.rival.is_there
        decision = self._decide(followed, pods, replicas, now, acts=acts)
        scaled = None
        if decision.replicas != replicas and acts:
            scaled = await self._scale(followed, observed, replicas, decision)
        stored = stored_load(observed.service.get("status", {}))
        self._tell(followed, decision, scaled, pods, trouble, stored, now)
        return BUSY_INTERVAL_SECONDS if decision.busiest >= BUSY else INTERVAL_SECONDS

    def _decide(self, followed: _Followed, pods: list[Pod], replicas: int, now: float, *, acts: bool) -> Decision:
        """Decides and records it, before anything is written: what fails then was decided all the same."""
        settings, before = settings_of(followed.service), followed.state
        decision, followed.state = decide(settings, before, pods, replicas, now)
        moment = datetime.now(UTC).replace(microsecond=0)
        made = Round(moment, now, acts, replicas, settings, tuple(pods), decision, None)
        followed.ring.add(made, before, RECORDED_BYTES // len(self._followed))
        return decision

    async def _scale(self, followed: _Followed, observed: Observed, replicas: int, decision: Decision) -> Scaled:
        if decision.replicas < replicas:
            await self._mark_victims(observed, followed.samples)
        await self._port.scale(INFERENCE_SERVICE, observed.service, decision.replicas, manager=AUTOSCALER)
        followed.rival = followed.rival.wrote(decision.replicas)
        self._metrics.writes.labels(f"{INFERENCE_SERVICE.kind}/scale").inc()
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        scaled = Scaled(moment, replicas, decision.replicas, decision)
        name = "/".join(followed.service.key)
        logger.info("scaled %s from %s to %s: %s", name, replicas, decision.replicas, scaled.reason)
        return scaled

    async def _mark_victims(self, observed: Observed, samples: dict[str, Sample]) -> None:
        """Tells the ReplicaSet what a pod's end would cost: its streams, as far as they are known."""
        for pod in observed.pods:
            metadata = pod["metadata"]
            sample = samples.get(metadata["uid"])
            cost = str(round(sample.running + sample.waiting)) if sample is not None else "0"
            if "deletionTimestamp" in metadata or metadata.get("annotations", {}).get(DELETION_COST, "0") == cost:
                continue
            patch = {"metadata": {"uid": metadata["uid"], "annotations": {DELETION_COST: cost}}}
            try:
                await self._port.merge(POD, metadata["namespace"], metadata["name"], patch, manager=AUTOSCALER)
            except Gone:
                continue
            self._metrics.writes.labels(POD.kind).inc()

    def _tell(
        self,
        followed: _Followed,
        decision: Decision,
        scaled: Scaled | None,
        pods: list[Pod],
        trouble: str,
        stored: Load | None,
        now: float,
    ) -> None:
        """Leaves the report, and says so when the status should change."""
        before = followed.report
        told = before.load if before is not None else stored
        usable = [followed.samples[pod.uid] for pod in pods if pod.ready_at is not None and pod.uid in followed.samples]
        if usable and decision.answered:
            usage = sum(sample.cache_usage for sample in usable) / len(usable)
            load = Load(round(100 * usage), round(sum(sample.waiting for sample in usable)))
            if worth_telling(told, followed.told_at, load, now):
                told, followed.told_at = load, now
        report = Report(
            decision,
            told,
            scaled or (before.scaled if before is not None else None),
            followed.rival.is_there,
            trouble,
        )
        followed.report = report
        if before is None or _shown(before) != _shown(report):
            self._notify(followed.service.key)


def settings_of(service: InferenceService) -> Settings:
    """What the spec says, for the decision."""
    autoscaling = service.spec.autoscaling
    assert autoscaling is not None
    return Settings(
        min_replicas=autoscaling.min_replicas,
        max_replicas=autoscaling.max_replicas,
        target_cache=autoscaling.target_cache_usage / 100,
        target_queue=float(autoscaling.target_queue_length),
        stabilization=float(autoscaling.scale_down_stabilization_seconds),
        after_late=float(autoscaling.scale_down_after_late_seconds),
        slots=service.spec.runtime.max_num_seqs or DEFAULT_SLOTS,
    )


def _shown(report: Report) -> tuple[object, ...]:
    """The part of a report that the status shows; `Observe` shows what would be."""
    decision = report.decision
    return report.load, report.scaled, report.rivalled, decision.answered > 0, decision.silent, decision.replicas


def _address(pod: Manifest) -> str:
    """Where a pod that can answer tells its metrics; empty for one that cannot."""
    address = pod["status"].get("podIP", "")
    if not address or "deletionTimestamp" in pod["metadata"] or _ready_at(pod) is None:
        return ""
    return f"http://[{address}]:{PORT}/metrics" if ":" in address else f"http://{address}:{PORT}/metrics"


def _pod(pod: Manifest, sample: Sample | None) -> Pod:
    metadata = pod["metadata"]
    return Pod(
        metadata["uid"],
        _seconds(metadata["creationTimestamp"]),
        _ready_at(pod),
        "deletionTimestamp" in metadata,
        sample,
    )


def _ready_at(pod: Manifest) -> float | None:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return _seconds(condition["lastTransitionTime"])
    return None


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _now() -> float:
    return asyncio.get_running_loop().time()
