"""The operator's own metrics, in one place. docs/operations.md documents each."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Metrics"]


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
