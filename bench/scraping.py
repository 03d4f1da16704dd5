"""What reading the pods' metrics costs the operator. `make bench-scraping`, SHORT=1 for a few rounds

Another process listens on as many ports as there are pods and answers each request with the runtime's own exposition,
as it is after some traffic. The operator's scraper asks all of them every five seconds, and the decision core gets what
they said. Counted is the processor time of this process, as a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client import generate_latest

from bench.report import report, say
from octavo_operator.autoscale.core.decide import decide, start
from octavo_operator.autoscale.core.exposition import read_sample
from octavo_operator.autoscale.core.values import Pod, Sample, Settings
from octavo_operator.autoscale.scrape import Scraper
from octavo_runtime.domain.requests import FinishReason
from octavo_runtime.server.metrics import Metrics

INTERVAL = 5.0
"""Seconds between two rounds."""

_TARGETS = {"core_percent": 25.0}


class _Engine:
    """What the metrics ask of an engine."""

    num_open = 70
    pid = 0

    def silent_for(self, now: float) -> float:  # noqa: ARG002 - it has just made a step
        return 0.004


def exposition() -> bytes:
    """A pod's answer, with every series that traffic brings."""
    engine: Any = _Engine()  # all that is asked of a client
    metrics = Metrics("HuggingFaceTB/SmolLM2-135M-Instruct", engine, max_num_queued_reqs=1024)
    reasons = list(FinishReason)
    for number in range(1, 1000):
        metrics.first_token(number / 500, 161)
        metrics.next_token(number / 20_000)
        metrics.tokens(338)
        metrics.finished(reasons[number % len(reasons)], number / 50)
    metrics.refused("queue_full")
    return generate_latest(metrics.registry)


class _Pod(asyncio.Protocol):
    """One connection to a pod, kept open."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        # A GET without a body ends with an empty line, and comes in one piece.
        assert isinstance(self._transport, asyncio.Transport)
        if data.endswith(b"\r\n\r\n"):
            self._transport.write(self._answer)


def _serve(count: int, told: Connection) -> None:
    """The other process: listens on `count` ports, tells them, and answers until it is ended."""
    body = exposition()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    )
    answer = head.encode() + b"Server: bench\r\n\r\n" + body

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(lambda: _Pod(answer), "127.0.0.1", 0) for _ in range(count)]
        told.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.Event().wait()

    asyncio.run(listen())


@contextmanager
def pods(count: int) -> Iterator[dict[str, str]]:
    """Addresses of the metrics of as many pods, by uid."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(count, theirs), daemon=True)
    process.start()
    try:
        yield {f"pod-{port}": f"http://127.0.0.1:{port}/metrics" for port in ours.recv()}
    finally:
        process.kill()
        process.join()


async def measure(addresses: dict[str, str], rounds: int) -> dict[str, float]:
    """Scrapes and decides every five seconds; the first round, which connects, is not counted."""
    settings = Settings(min_replicas=1, max_replicas=2 * len(addresses))
    state = start(settings, 0.0)
    known = [Pod(uid, -1e4, -1e4) for uid in addresses]
    scraper = Scraper()
    scraping = deciding = longest = 0.0
    for number in range(rounds + 1):
        began, used = time.monotonic(), time.process_time()
        answers = await scraper.scrape(addresses)
        scraped, took = time.process_time(), time.monotonic() - began
        troubles = [answer for answer in answers.values() if isinstance(answer, str)]
        assert not troubles, troubles[0]
        seen = [
            Pod(pod.uid, pod.created, pod.ready_at, sample=sample)
            for pod in known
            if isinstance(sample := answers[pod.uid], Sample)
        ]
        _, state = decide(settings, state, seen, len(seen), asyncio.get_running_loop().time())
        if number:
            scraping += scraped - used
            deciding += time.process_time() - scraped
            longest = max(longest, took)
            say(f"round {number}: {scraped - used:.3f} s of processor time, {took:.2f} s")
        await asyncio.sleep(max(0.0, began + INTERVAL - time.monotonic()))
    await scraper.close()
    share = 100 / (rounds * INTERVAL)
    return {"core_percent": scraping * share, "deciding_core_percent": deciding * share, "longest_round_s": longest}


def _parsing_us(body: str, rounds: int = 500) -> float:
    """Microseconds for one exposition."""
    began = time.process_time()
    for _ in range(rounds):
        read_sample(body, 0.0)
    return 1e6 * (time.process_time() - began) / rounds


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="three rounds only")
    parser.add_argument("--pods", type=int, default=500)
    options = parser.parse_args()
    with pods(options.pods) as addresses:
        figures = asyncio.run(measure(addresses, 3 if options.short else 12))
    body = exposition().decode()
    figures |= {"parsing_us": _parsing_us(body), "exposition_bytes": len(body)}
    report("scraping", figures, _TARGETS, pods=options.pods)


if __name__ == "__main__":
    main()
