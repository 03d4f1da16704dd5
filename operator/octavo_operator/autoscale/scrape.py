"""Reading the pods' metrics."""

import asyncio
from collections.abc import Mapping

import aiohttp

from octavo_operator.autoscale.core.exposition import SampleRefused, read_sample
from octavo_operator.autoscale.core.values import Sample

__all__ = ["DEADLINE_SECONDS", "Scraper"]

DEADLINE_SECONDS = 2.0
"""How long one pod may take. A pod that is too busy to answer in this time is one that has not answered."""

LARGEST_ANSWER = 2**20
"""Bytes: an exposition of ours has some ten thousand."""

TEXT = {"Accept": "text/plain; version=0.0.4"}


class Scraper:
    """Asks many pods at once. One pod's trouble is its own."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends the connections."""
        if self._session is not None:
            await self._session.close()

    async def scrape(self, addresses: Mapping[str, str]) -> dict[str, Sample | str]:
        """Asks each pod once.

        Args:
            addresses: URLs of the metrics, by the pods' uid.

        Returns:
            By uid, the sample with the loop's time at which it was asked for, or why there is none.
        """
        if self._session is None:
            # Pods answer on the same address round after round: connections are kept. No proxy and no .netrc, which
            # cost more than the request itself.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
                trust_env=False,
            )
        session = self._session
        answers = await asyncio.gather(*(_ask(session, address) for address in addresses.values()))
        return dict(zip(addresses, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, address: str) -> Sample | str:
    asked = asyncio.get_running_loop().time()
    try:
        async with session.get(address, headers=TEXT, allow_redirects=False) as answer:  # a pod does not send on
            if answer.status != 200:
                return f"{address} answered {answer.status}"
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > LARGEST_ANSWER:
                    return f"{address} answered more than {LARGEST_ANSWER} bytes"
        return read_sample(body.decode(), asked)
    except TimeoutError:
        return f"{address} did not answer within {DEADLINE_SECONDS:g} s"
    except (aiohttp.ClientError, UnicodeDecodeError, SampleRefused) as error:
        return f"{address}: {error}"
