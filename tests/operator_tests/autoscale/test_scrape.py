import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from octavo_operator.autoscale import scrape
from octavo_operator.autoscale.core.values import Sample
from octavo_operator.autoscale.scrape import Scraper

WHOLE = """\
vllm:num_requests_running 3.0
vllm:num_requests_waiting 2.0
vllm:kv_cache_usage_perc 0.25
vllm:generation_tokens_total 1500
vllm:request_success_total{finished_reason="stop"} 11.0
"""


@asynccontextmanager
async def pods() -> AsyncIterator[tuple[str, list[str]]]:
    """A server whose routes are pods of many kinds: its address, and the peers' ports that asked."""
    peers: list[str] = []

    async def good(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername")[1])
        # More than one packet: what is needed comes last.
        return web.Response(text="# a comment\n" * 50_000 + WHOLE)

    async def slow(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"#" * 65536)

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("/good")

    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503)

    async def empty(_: web.Request) -> web.Response:
        return web.Response()

    async def binary(_: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfe")

    application = web.Application()
    application.add_routes(
        [
            web.get("/good", good),
            web.get("/slow", slow),
            web.get("/endless", endless),
            web.get("/elsewhere", elsewhere),
            web.get("/busy", busy),
            web.get("/empty", empty),
            web.get("/binary", binary),
        ]
    )
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", peers
    finally:
        await runner.cleanup()


async def test_scrape_one_pods_trouble_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "DEADLINE_SECONDS", 0.5)
    async with pods() as (server, _):
        scraper = Scraper()
        names = ["good", "slow", "endless", "elsewhere", "busy", "empty", "binary", "missing"]
        answers = await scraper.scrape({name: f"{server}/{name}" for name in names} | {"dead": "http://127.0.0.1:1/"})
        await scraper.close()
    good = answers.pop("good")
    assert isinstance(good, Sample)
    assert (good.running, good.waiting, good.cache_usage, good.finished, good.generated) == (3, 2, 0.25, 11, 1500)
    said = {
        "slow": "did not answer within",
        "endless": "answered more than",
        "elsewhere": "answered 302",
        "busy": "answered 503",
        "empty": "no vllm:num_requests_running",
        "binary": "decode",
        "missing": "answered 404",
        "dead": "Cannot connect",
    }
    assert answers.keys() == said.keys()
    for name, answer in answers.items():
        assert isinstance(answer, str)
        assert said[name] in answer, answer


async def test_scrape_keeps_its_connections() -> None:
    async with pods() as (server, peers):
        scraper = Scraper()
        for _ in range(3):
            await scraper.scrape({"a": f"{server}/good"})
        await scraper.close()
    assert len(peers) == 3
    assert len(set(peers)) == 1


async def test_scrape_no_pods() -> None:
    scraper = Scraper()
    assert await scraper.scrape({}) == {}
    await scraper.close()
