"""The cluster as a person sees it: reads of any kind, logs, and what pods answer, with that person's own rights."""

from collections.abc import AsyncIterator, Sequence

import aiohttp

from octavo_operator.api.names import POD, Kind, Manifest
from octavo_operator.cluster.client import JSON, PAGE, KubernetesClient, path_of

__all__ = ["UserCluster"]

FOLLOW = aiohttp.ClientTimeout(total=None, sock_connect=5)
"""A log that is followed may be silent for as long as it likes."""


class UserCluster(KubernetesClient):
    """Reading, and making a Pod. Every method raises a ClusterError. Close it when done."""

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[Manifest, ...]:
        """All objects of a kind that the selectors let through; in one namespace, or in all (None)."""
        query = [("limit", str(PAGE))]
        query += [(name, value) for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value]
        items: list[Manifest] = []
        page: list[tuple[str, str]] = []
        while True:
            answer = await self._call("GET", path_of(kind, namespace), query=query + page)
            items += answer.get("items") or ()
            token = answer["metadata"].get("continue")
            if not token:
                return tuple(items)
            page = [("continue", token)]

    async def create(self, manifest: Manifest, kind: Kind) -> Manifest:
        """Creates an object."""
        path = path_of(kind, manifest["metadata"]["namespace"])
        return await self._call("POST", path, body=manifest, media=JSON)

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Deletes an object, without a grace period."""
        options: Manifest = {"gracePeriodSeconds": 0}
        await self._call("DELETE", path_of(kind, namespace, name), body=options, media=JSON)

    async def ask_pod(self, namespace: str, name: str, port: int, path: str) -> str:
        """What a pod answers to a GET, through the API server's proxy."""
        url = f"{path_of(POD, namespace, name)}:{port}/proxy{path}"
        async with self._answer("GET", url) as response:
            return await response.text()

    async def log(
        self, namespace: str, name: str, *, container: str, query: Sequence[tuple[str, str]] = ()
    ) -> AsyncIterator[str]:
        """The lines of a container's log, as they come.

        Args:
            namespace: of the pod.
            name: of the pod.
            container: its container.
            query: more parameters, such as ("follow", "true").
        """
        path = f"{path_of(POD, namespace, name)}/log"
        parameters = [("container", container), *query]
        async with self._answer("GET", path, query=parameters, patience=FOLLOW) as response:
            rest = b""
            # Not line by line: aiohttp gives up on a line of more than 512 KiB.
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
            if rest:
                yield rest.decode(errors="replace")
