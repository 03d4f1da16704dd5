"""What bench-operator measures with: a control plane with fake nodes, plain calls to it, and a way to it that can fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from bench.report import say
from cluster.layout import Layout
from faulty_proxy import FaultyProxy

__all__ = [
    "NAMESPACE",
    "SERVICES",
    "Api",
    "ApiError",
    "Arrivals",
    "Process",
    "Proxy",
    "Write",
    "children_path",
    "create",
    "inference_service",
    "mutations",
    "until",
]

Manifest = dict[str, Any]

NAMESPACE = "bench"
SERVICES = f"/apis/octavo.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
MERGE = "application/merge-patch+json"
MUTATING = frozenset({"APPLY", "DELETE", "DELETECOLLECTION", "PATCH", "POST", "PUT"})
SAMPLE = re.compile(r"apiserver_request_total\{([^}]*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
CREATORS = 8


class ApiError(Exception):
    """The API server refused; the message has its words."""


class Api:
    """Plain calls with the administrator's certificate."""

    def __init__(self, layout: Layout) -> None:
        pki = layout.state / "pki"
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._url = layout.api_url

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=64), timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Manifest | None = None, media: str = "application/json", accept: str = ""
    ) -> Manifest:
        """One request.

        Raises:
            ApiError: any answer but success.
        """
        answer: Manifest = json.loads(
            await self.send(method, path, None if body is None else json.dumps(body).encode(), media, accept)
        )
        return answer

    async def send(self, method: str, path: str, body: bytes | None, media: str, accept: str = "") -> bytes:
        """The same with bytes in and out."""
        headers = {"Content-Type": media, "Accept": accept or "application/json"}
        async with self._session.request(method, self._url + path, data=body, headers=headers) as response:
            content = await response.read()
        if response.status >= 300:
            raise ApiError(f"{method} {path}: {response.status} {content[:300].decode(errors='replace')}")
        return content

    async def names(self, path: str) -> set[str]:
        """The names of all objects of a list."""
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        return {item["metadata"]["name"] for item in (await self.call("GET", path, accept=accept))["items"]}

    async def mutations(self) -> dict[str, float]:
        """Requests that the API server has taken to change something: see the function of this name."""
        return mutations((await self.send("GET", "/metrics", None, "", "text/plain")).decode())

    @asynccontextmanager
    async def watching(self, path: str, sink: Callable[[str, Manifest, float], None]) -> AsyncIterator[None]:
        """Watches a collection, beginning with what exists: each event's type, object and time of arrival."""

        async def stream() -> None:
            query = "&watch=true" if "?" in path else "?watch=true"
            # An object of the API has no upper length, so lines are put together here.
            async with self._session.get(self._url + path + query) as response:
                if response.status != 200:
                    raise ApiError(f"watch {path}: {response.status} {(await response.text())[:300]}")
                rest = b""
                async for chunk in response.content.iter_any():
                    now = time.monotonic()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        sink(event["type"], event["object"], now)

        task = asyncio.create_task(stream())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def mutations(text: str) -> dict[str, float]:
    """Counts of requests to change something by `resource` or `resource/subresource`, out of an API server's metrics.

    Signs of life are left out: Leases, and the state of nodes.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    for labels, value in SAMPLE.findall(text):
        told = dict(LABEL.findall(labels))
        if told["verb"] in MUTATING and told["resource"] not in {"leases", "nodes"}:
            counts["/".join(filter(None, (told["resource"], told.get("subresource", ""))))] += float(value)
    return dict(counts)


class Arrivals:
    """When the InferenceServices got a status, and when they were ready: a sink of Api.watching.

    Attributes:
        told: seconds, by name, at which the status spoke of the present generation.
        ready: seconds at which Ready was true.
    """

    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        self.ready: dict[str, float] = {}

    def __call__(self, _: str, manifest: Manifest, now: float) -> None:
        metadata, status = manifest["metadata"], manifest.get("status", {})
        if status.get("observedGeneration") == metadata["generation"]:
            self.told.setdefault(metadata["name"], now)
            if any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())):
                self.ready.setdefault(metadata["name"], now)


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine, by its PID."""

    pid: int

    def memory_mb(self) -> float:
        """Resident memory in megabytes (10⁶ bytes)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def cpu_seconds(self) -> float:
        """User and system time."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changes something, as the operator sent it."""

    method: str
    path: str
    media: str
    body: bytes


class Proxy(FaultyProxy):
    """A way to the API server that remembers what is written.

    Attributes:
        writes: the requests that were no reading.
    """

    def __init__(self, cluster: dict[str, str]) -> None:
        super().__init__(cluster)
        self.writes: list[Write] = []

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET" and not self.down:
            body = await request.read()
            self.writes.append(Write(request.method, request.raw_path, request.headers["Content-Type"], body))
        return await super()._pass_on(request)


def inference_service(name: str, replicas: int = 1) -> Manifest:
    """An object of the benchmark."""
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "pvc://models/bench"},
            "replicas": replicas,
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
        },
    }


def children_path(plural: str) -> str:
    """Where a kind of children is listed."""
    group = "/apis/apps/v1" if plural == "deployments" else "/api/v1"
    return f"{group}/namespaces/{NAMESPACE}/{plural}"


async def create(
    api: Api, path: str, manifests: Iterable[Manifest], done: Callable[[Manifest], None] = lambda _: None
) -> None:
    """Creates objects of one collection, a few at once; `done` gets each answer."""
    remaining = iter(manifests)

    async def work() -> None:
        for manifest in remaining:
            done(await api.call("POST", path, manifest))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CREATORS):
            tasks.create_task(work())


async def until(condition: Callable[[], bool], seconds: float, what: str, tell: Callable[[], str] = lambda: "") -> None:
    """Waits for a condition that other tasks make true.

    Raises:
        TimeoutError: it did not become true.
    """
    began = said = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now - began > seconds:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}: {tell()}")
        if now - said > 10:
            said = now
            say(f"    {now - began:.0f} s: {tell()}")
        await asyncio.sleep(0.02)
