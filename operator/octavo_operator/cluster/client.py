"""The real cluster: plain JSON over the Kubernetes client's asynchronous transport.

Its typed models are never touched: importing them costs 100 MB and seconds.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from octavo_operator.api.names import (
    CHILDREN,
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    MANAGED_SELECTOR,
    OPERATOR,
    OWNER_LABEL,
    REVISION,
    Kind,
    Manifest,
)
from octavo_operator.cluster.port import Listed, Page
from octavo_operator.errors import ClusterError, Gone, Rejected, SettingsError, Stale, Unavailable

__all__ = ["JSON", "PAGE", "Connection", "KubernetesClient", "path_of"]

PAGE = 250
"""Objects per page of a list: a page is read in one go, and blocks everything else for a few milliseconds."""

TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
CONNECTIONS = 64
APPLY = "application/apply-patch+yaml"
JSON = "application/json"
MERGE = "application/merge-patch+json"

UNUSABLE = (config.ConfigException, OSError, ValueError, TypeError, LookupError, AttributeError)
"""What a kubeconfig makes its reader raise: no file, certificates that are none, a list where a name should be."""

KINDS_BY_NAME = {kind.kind: kind.plural for kind in (INFERENCE_SERVICE, *CHILDREN, REVISION, LEASE)}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and who we are, for clients other than this one."""

    server: str
    verify: bool
    ca_path: str | None
    certificate_path: str | None
    key_path: str | None
    authorization: str | None


class _Metadata(msgspec.Struct):
    name: str
    resourceVersion: str  # noqa: N815 as the API has it
    namespace: str = ""


class _Item(msgspec.Struct):
    metadata: _Metadata


class _ListMetadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815 as the API has it
    more: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw]


class KubernetesClient:
    """A ClusterPort on a real API server. Close it when done."""

    def __init__(self, configuration: Configuration, *, trust_env: bool = False) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS
        # When trusted, each call reads ~/.netrc and the proxy variables again: half a millisecond of CPU.
        configuration.client_session_kwargs = {"trust_env": trust_env}
        self._configuration = configuration
        self._api = ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: str | None, *, context: str | None = None, trust_env: bool = False) -> Self:
        """Reads the credentials: of the kubeconfig when one is given, else of the pod's service account.

        Args:
            kubeconfig: path of the file, or of several with `:` between them.
            context: its context; None for the current one.
            trust_env: whether the environment's proxies are used.

        Raises:
            SettingsError: neither can be used.
        """
        if kubeconfig and not any(map(os.path.exists, map(os.path.expanduser, kubeconfig.split(":")))):
            raise SettingsError(f"--kubeconfig: there is no file {kubeconfig}")
        configuration = Configuration()
        try:
            if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # theirs
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call] # theirs
                    config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
                )
            return cls(configuration, trust_env=trust_env)
        except UNUSABLE as error:
            raise SettingsError(
                f"no way to the cluster: {error}; name a kubeconfig with --kubeconfig, or run in a pod with a service account"
            ) from error

    async def connection(self) -> Connection:
        """The credentials as they are now; the token of a service account changes with time."""
        configuration = self._configuration
        authorization = (await configuration.auth_settings()).get("BearerToken", {}).get("value")
        return Connection(
            server=configuration.host,
            verify=configuration.verify_ssl,
            ca_path=configuration.ssl_ca_cert,
            certificate_path=configuration.cert_file,
            key_path=configuration.key_file,
            authorization=authorization,
        )

    async def close(self) -> None:
        """Ends the open connections."""
        await self._api.close()  # type: ignore[no-untyped-call] # theirs

    async def list_page(self, kind: Kind, namespace: str | None, token: str = "", *, owner: str | None = None) -> Page:
        """See ClusterPort."""
        query = [("limit", str(PAGE))]
        if kind != INFERENCE_SERVICE:
            selector = MANAGED_SELECTOR if owner is None else f"{MANAGED_SELECTOR},{OWNER_LABEL}={owner}"
            query.append(("labelSelector", selector))
        if token:
            query.append(("continue", token))
        path = path_of(kind, namespace)
        async with self._answer("GET", path, query=query, headers={"Accept": JSON}) as response:
            text = await response.read()
        try:
            found = msgspec.json.decode(text, type=_List)
            return Page(
                tuple(_listed(item) for item in found.items), int(found.metadata.resourceVersion), found.metadata.more
            )
        except ValueError as error:
            raise _strange(f"GET {path}", text) from error

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """See ClusterPort."""
        try:
            return await self._call("GET", path_of(kind, namespace, name))
        except Gone:
            return None

    async def apply(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._apply(manifest, manager, "")

    async def remove(self, kind: Kind, manifest: Manifest) -> None:
        """See ClusterPort."""
        metadata = manifest["metadata"]
        options = {"preconditions": {"uid": metadata["uid"]}}
        await self._call("DELETE", path_of(kind, metadata["namespace"], metadata["name"]), body=options, media=JSON)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        query = [("fieldManager", manager)]
        return await self._call("PATCH", path_of(kind, namespace, name), query=query, body=patch, media=MERGE)

    async def scale(self, kind: Kind, manifest: Manifest, replicas: int, *, manager: str) -> None:
        """See ClusterPort."""
        metadata = manifest["metadata"]
        path = path_of(kind, metadata["namespace"], metadata["name"]) + "/scale"
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": {"replicas": replicas}}
        await self._call("PATCH", path, query=[("fieldManager", manager)], body=body, media=MERGE)

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """See ClusterPort."""
        return await self._apply(manifest, manager, "/status")

    async def update(self, manifest: Manifest) -> Manifest:
        """See ClusterPort."""
        kind, metadata = _kind_of(manifest), manifest["metadata"]
        query = [("fieldManager", OPERATOR)]
        if "resourceVersion" not in metadata:
            return await self._call(
                "POST", path_of(kind, metadata["namespace"]), query=query, body=manifest, media=JSON
            )
        path = path_of(kind, metadata["namespace"], metadata["name"])
        return await self._call("PUT", path, query=query, body=manifest, media=JSON)

    async def record(self, event: Manifest) -> None:
        """See ClusterPort."""
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        query = [("fieldManager", OPERATOR)]
        try:
            await self._call("POST", path_of(EVENT, namespace), query=query, body=event, media="application/json")
        except Stale:
            present = await self.get(EVENT, namespace, name)
            count = present.get("count", 1) if present is not None else 0
            news = {"message": event["message"], "lastTimestamp": event["lastTimestamp"], "count": count + 1}
            await self.merge(EVENT, namespace, name, news, manager=OPERATOR)

    async def _apply(self, manifest: Manifest, manager: str, subresource: str) -> Manifest:
        kind, metadata = _kind_of(manifest), manifest["metadata"]
        path = path_of(kind, metadata["namespace"], metadata["name"]) + subresource
        query = [("fieldManager", manager), ("force", "true")]
        return await self._call("PATCH", path, query=query, body=manifest, media=APPLY)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Manifest | None = None,
        media: str | None = None,
    ) -> Manifest:
        headers = {"Accept": JSON} | ({"Content-Type": media} if media is not None else {})
        async with self._answer(method, path, query=query, body=body, headers=headers) as response:
            text = await response.read()
        answer = _parsed(text)
        if answer is None or "metadata" not in answer:
            raise _strange(f"{method} {path}", text)
        return answer

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Manifest | None = None,
        headers: dict[str, str] | None = None,
        patience: aiohttp.ClientTimeout = TIMEOUT,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer whose body is still to be read.

        Raises:
            ClusterError: there is none, or it broke off.
        """
        what = f"{method} {path}"
        try:
            # The body is none of its arguments: it would be copied, value by value, in search of typed models.
            request = await self._api.param_serialize(
                method, path, query_params=list(query), header_params=headers or {}, auth_settings=["BearerToken"]
            )
            verb, url, given, *_ = request
            answer = await self._api.call_api(verb, url, given, body, _request_timeout=patience)
            response: aiohttp.ClientResponse = answer.response
            async with response:
                if response.status >= 400:
                    text = await response.read()
                    raise _error(what, response.status, _parsed(text) or {"message": _shown(text)})
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError, config.ConfigException) as error:
            # The latter of credentials that are read again and are not there for a moment.
            raise Unavailable(f"{what}: {str(error) or type(error).__name__}") from error


def _listed(item: msgspec.Raw) -> Listed:
    metadata = msgspec.json.decode(item, type=_Item).metadata
    return Listed((metadata.namespace, metadata.name), int(metadata.resourceVersion), item)


def _parsed(content: bytes) -> Manifest | None:
    """The JSON object; None for anything else."""
    try:
        found = msgspec.json.decode(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _shown(content: bytes) -> str:
    return content[:200].decode(errors="replace")


def _strange(what: str, content: bytes) -> Unavailable:
    """Of a good answer that holds no object: a proxy's page for logging in, or another server at that address."""
    return Unavailable(f"{what}: this is not the answer of an API server: {_shown(content) or 'nothing'}")


def _kind_of(manifest: Manifest) -> Kind:
    return Kind(manifest["apiVersion"], manifest["kind"], KINDS_BY_NAME[manifest["kind"]])


def path_of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """Where the API serves an object, or all of its kind; in a namespace, or (None) in all or in none."""
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{root}{scope}/{kind.plural}" + (f"/{name}" if name else "")


def _error(what: str, status: int, answer: dict[str, Any]) -> ClusterError:
    """The error for an answer of the API server."""
    message = str(answer.get("message", "")).strip() or f"HTTP {status}"
    causes = (answer.get("details") or {}).get("causes") or ()
    match status:
        case 403 | 409 if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
            return Gone(message)
        case 404:
            return Gone(message)
        case 422 if "metadata.uid" in message:
            return Stale(message)
        case 409 | 410:  # 410: the next page of a list that took too long
            return Stale(message)
        case 401 | 408 | 429:
            # 401: the token was rotated, or the API server has only just started.
            return Unavailable(f"{what}: {message}")
        case 500 if "failed to create typed patch object" in message:
            # Server-side apply answers 500 to a field that the schema does not know.
            return Rejected(message, status=status)
        case _ if status >= 500:
            return Unavailable(f"{what}: {message}")
        case _:
            return Rejected(message, status=status)
