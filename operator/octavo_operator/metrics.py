"""The operator's own metrics, in one place. docs/operations.md documents each."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.names import Manifest, key_of

__all__ = ["Metrics"]

PUBLISHED = (ConditionType.READY, ConditionType.SCALING_ACTIVE)
"""Conditions that alerts are about. With all of them a scrape would hold the event loop for three times as long."""


class Metrics:
    """Counters and gauges on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "octavo_operator_reconciles",
            "Looks at an InferenceService, by outcome: done, waiting (looks again by itself), failed (after a backoff).",
            ["outcome"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "octavo_operator_reconcile_seconds",
            "Time of one look, its requests included.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.writes = Counter(
            "octavo_operator_writes",
            "Objects written. In a quiet cluster it stands still; if it climbs, something fights over a field.",
            ["kind"],
            registry=self.registry,
        )
        self.watch_events = Counter(
            "octavo_operator_watch_events", "Events that the watches delivered.", ["kind"], registry=self.registry
        )
        self.scrapes = Counter(
            "octavo_operator_scrapes",
            "Pods asked for their load, by outcome: ok, failed.",
            ["outcome"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "octavo_operator_queue_depth", "InferenceServices that wait for a look.", registry=self.registry
        )
        self.objects = Gauge("octavo_operator_objects", "Objects known.", ["kind"], registry=self.registry)
        self.last_list = Gauge(
            "octavo_operator_last_list_timestamp_seconds",
            "When the last complete list of everything succeeded.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "octavo_operator_leader", "Whether this operator leads (1) or stands by (0).", registry=self.registry
        )
        # A counter that appears with its first failure hides it from `increase`.
        for outcome in ("done", "waiting", "failed"):
            self.reconciles.labels(outcome)
        for outcome in ("ok", "failed"):
            self.scrapes.labels(outcome)

    def tell_of(self, services: Callable[[], Iterable[Manifest]]) -> None:
        """Publishes what the status of each InferenceService says.

        Args:
            services: all of them, read at each scrape.
        """
        self.registry.register(_Services(services))


class _Services(Collector):
    """The statuses of the InferenceServices, so that alerts need nothing but the operator's metrics."""

    def __init__(self, services: Callable[[], Iterable[Manifest]]) -> None:
        self._services = services

    def collect(self) -> Iterator[GaugeMetricFamily]:
        object_labels = ["namespace", "inferenceservice"]
        conditions = GaugeMetricFamily(
            "octavo_operator_condition",
            "Conditions Ready and ScalingActive of the InferenceServices: 1 when True, 0 when False, absent when Unknown.",
            labels=[*object_labels, "type", "reason"],
        )
        ready = GaugeMetricFamily(
            "octavo_operator_ready_replicas", "Pods of the InferenceServices that answer.", labels=object_labels
        )
        for service in self._services():
            key, status = key_of(service), service.get("status", {})
            for condition in status.get("conditions", ()):
                if condition["type"] in PUBLISHED and condition["status"] != "Unknown":
                    labels = [*key, condition["type"], condition["reason"]]
                    conditions.add_metric(labels, condition["status"] == "True")
            if "readyReplicas" in status:
                ready.add_metric(key, status["readyReplicas"])
        yield conditions
        yield ready
