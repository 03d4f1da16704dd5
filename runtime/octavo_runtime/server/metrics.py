"""Prometheus metrics: vLLM's names and types, so that dashboards and gateways work unchanged, and our own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from octavo_runtime.domain import EngineConfig, EngineInfo, FinishReason, SchedulerStats
from octavo_runtime.ipc.client import EngineClient
from octavo_runtime.ipc.messages import Step

__all__ = ["Metrics"]

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # a twin of each counter that nobody reads

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
# Below vLLM's lowest bucket of 10 ms a small model on a fast GPU would show nothing.
_ITL = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Metrics:
    """All metrics of one server.

    Args:
        model_name: Label of each.
        client: Asked at each scrape for what only counts now.
        max_num_queued_reqs: Requests that may wait beyond those that run.
    """

    def __init__(self, model_name: str, client: EngineClient, *, max_num_queued_reqs: int) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._last: SchedulerStats | None = None

        def gauge(name: str, text: str) -> Gauge:
            metric = Gauge(name, text, ["model_name"], registry=self.registry)
            return metric.labels(model_name)

        def counter(name: str, text: str) -> Counter:
            metric = Counter(name, text, ["model_name"], registry=self.registry)
            return metric.labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets)
            return metric.labels(model_name)

        self._running = gauge("vllm:num_requests_running", "Sequences that hold KV blocks; a request has one or more")
        waiting = gauge("vllm:num_requests_waiting", "Requests that wait for their first or next step")
        # What the engine has not heard of yet waits too: a long step must not hide a queue.
        waiting.set_function(
            lambda: client.num_open - self._last.num_running_requests if self._last else client.num_open
        )
        limit = gauge("octavo:max_num_queued_reqs", "Requests that may wait beyond those that run; more get 503")
        limit.set(max_num_queued_reqs)
        usage = "Share of KV blocks in use by requests, 0-1; cached blocks that nobody uses count as free"
        self._usage = (gauge("vllm:kv_cache_usage_perc", usage), gauge("vllm:gpu_cache_usage_perc", usage))
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests that got their first token")
        self._generation_tokens = counter("vllm:generation_tokens", "Output tokens")
        self._host_usage = gauge("octavo:host_cache_usage_perc", "Share of the host tier's blocks in use, 0-1")
        self._num_blocks = gauge("octavo:kv_cache_blocks", "Blocks in the KV pool")
        # Field of SchedulerStats -> its counter.
        self._counts = {
            "num_preemptions": counter("vllm:num_preemptions", "Times that a running sequence lost its blocks"),
            "prefix_queries": counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
            "prefix_hits": counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache"),
            "num_recomputed_tokens": counter("octavo:recomputed_tokens", "Tokens computed again after a preemption"),
            "num_swapped_out": counter("octavo:swapped_out_blocks", "KV blocks copied to the host"),
            "num_swapped_in": counter("octavo:swapped_in_blocks", "KV blocks copied back from the host"),
            "num_invariant_violations": counter(
                "octavo:invariant_violations", "Requests ended because the scheduler's state contradicted itself"
            ),
            "num_predictions": counter("octavo:predictions", "Answers whose length had been predicted"),
            "predicted_tokens": counter("octavo:predicted_tokens", "Sum of the lengths predicted for them"),
            "predicted_actual_tokens": counter("octavo:predicted_actual_tokens", "Sum of the lengths that they had"),
            "num_within_p90": counter(
                "octavo:predictions_within_p90", "Of them, those no longer than their predicted 90th percentile"
            ),
        }
        finished = Counter(
            "vllm:request_success",
            "Answers by how they ended",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._finished = {reason: finished.labels(model_name, reason.value) for reason in FinishReason}
        self._ttft = histogram("vllm:time_to_first_token_seconds", "From arrival to the first token", _TTFT)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer", _ITL)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token", _E2E)
        self._iteration = histogram("vllm:iteration_tokens_total", "Tokens computed in one step", _TOKENS)
        self._refused = Counter(
            "octavo:requests_refused", "Requests that got 503", ["model_name", "code"], registry=self.registry
        )
        self.registry.register(_Engine(model_name, client))

    def loaded(self, info: EngineInfo, config: EngineConfig) -> None:
        """Tells what the engine turned out to be."""
        labels = {
            "model_name": self._model_name,
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(info.num_blocks),
            "cache_dtype": info.kv_cache_dtype,
            "enable_prefix_caching": str(config.scheduler.enable_prefix_caching),
            "gpu_memory_utilization": str(config.gpu_memory_utilization),
        }
        text = "The KV cache; the value is always 1"
        Gauge("vllm:cache_config_info", text, list(labels), registry=self.registry).labels(**labels).set(1)
        self._num_blocks.set(info.num_blocks)

    def step(self, step: Step) -> None:
        """Takes in one step of the engine."""
        stats, last = step.stats, self._last
        self._last = stats
        self._running.set(stats.num_running)
        for usage in self._usage:
            usage.set(stats.kv_cache_usage)
        if step.num_tokens:
            self._iteration.observe(step.num_tokens)
        self._host_usage.set(stats.host_cache_usage)
        self._num_blocks.set(stats.num_blocks)
        for name, counter in self._counts.items():
            if new := getattr(stats, name) - (getattr(last, name) if last else 0):
                counter.inc(new)

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        """A request got its first token."""
        self._ttft.observe(seconds)
        self._prompt_tokens.inc(prompt_tokens)

    def next_token(self, seconds: float) -> None:
        """An answer got a further token."""
        self._itl.observe(seconds)

    def tokens(self, count: int) -> None:
        """An answer got so many tokens, first or further."""
        self._generation_tokens.inc(count)

    def finished(self, reason: FinishReason, seconds: float) -> None:
        """An answer ended; each does so once."""
        self._finished[reason].inc()
        self._e2e.observe(seconds)

    def refused(self, code: str) -> None:
        """A request was turned away unread."""
        self._refused.labels(self._model_name, code).inc()


class _Engine(Collector):
    """What is read from the engine process at each scrape."""

    def __init__(self, model_name: str, client: EngineClient) -> None:
        self._model_name = model_name
        self._client = client

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text, value in (
            (
                "octavo:engine_silent_seconds",
                "Since the last step, while there is work, or progress of loading",
                self._silent(),
            ),
            ("octavo:engine_resident_memory_bytes", "Memory of the engine process", self._resident()),
        ):
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            family.add_metric([self._model_name], value)
            yield family

    def _silent(self) -> float:
        return self._client.silent_for(time.monotonic())

    def _resident(self) -> float:
        try:
            return int(Path(f"/proc/{self._client.pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        except (OSError, AttributeError):  # not started, or gone
            return 0.0
