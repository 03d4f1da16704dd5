"""The bench of the scraper: its pods are asked over real connections, and say what the runtime says."""

from __future__ import annotations

import asyncio

import pytest

from bench import scraping
from octavo_operator.autoscale.core.exposition import read_sample


def test_exposition_is_what_the_operator_reads() -> None:
    sample = read_sample(scraping.exposition().decode(), 5.0)
    assert (sample.waiting, sample.finished, sample.generated, sample.refused) == (70, 999, 999 * 338, 1)


def test_measure_asks_every_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "INTERVAL", 0.05)
    with scraping.pods(3) as addresses:
        assert len(set(addresses.values())) == 3
        figures = asyncio.run(scraping.measure(addresses, 1))
    assert figures["core_percent"] > 0
