"""Reading the pods' metrics."""

import asyncio
import time
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
        # Pods answer on the same address round after round: connections are kept. No proxy, no .netrc: they cost more
        # than the request itself. A pod's address is no place to be sent away from.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS),
            trust_env=False,
        )

    async def close(self) -> None:
        """Ends the connections."""
        await self._session.close()

    async def scrape(self, addresses: Mapping[str, str]) -> dict[str, Sample | str]:
        """Asks each pod once.

        Args:
            addresses: URLs of the metrics, by the pods' uid.

        Returns:
            By uid, the sample with the monotonic time it was asked for, or why there is none.
        """
        answers = await asyncio.gather(*(self._ask(address) for address in addresses.values()))
        return dict(zip(addresses, answers, strict=True))

    async def _ask(self, address: str) -> Sample | str:
        asked = time.monotonic()
        try:
            async with self._session.get(address, headers=TEXT, allow_redirects=False) as answer:
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
