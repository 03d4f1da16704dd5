"""The few calls that the tool makes to the API server, with the standard library alone."""

import http.client
import json
import ssl
from typing import Any

from cluster.errors import ClusterError
from cluster.layout import API_PORT, Layout

_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "EndpointSlice": "endpointslices",
    "Namespace": "namespaces",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Service": "services",
}


class NotFoundError(ClusterError):
    """The object does not exist."""


class Api:
    """A client with the administrator's certificate."""

    def __init__(self, layout: Layout, timeout_s: float = 10.0) -> None:
        pki = layout.state / "pki"
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._host = str(layout.node_ip)
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:
        """The object at a path of the API.

        Raises:
            NotFoundError: there is none.
            ClusterError: the API server refused.
            OSError: it did not answer.
        """
        return json.loads(self.call("GET", path))

    def ready(self) -> bool:
        """Whether the API server says so; False when it cannot be reached."""
        try:
            self.call("GET", "/readyz")
        except (OSError, http.client.HTTPException, ClusterError):
            return False
        return True

    def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply, as `octavo-e2e`."""
        self.call("PATCH", object_path(manifest) + "?fieldManager=octavo-e2e&force=true", manifest, "apply-patch+yaml")

    def call(self, method: str, path: str, body: Any = None, patch: str = "json-patch+json") -> bytes:
        """One request; `patch` names the media type of a body. Raises as `get`."""
        connection = http.client.HTTPSConnection(self._host, API_PORT, timeout=self._timeout_s, context=self._tls)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": f"application/{patch}", "Accept": "application/json"},
            )
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status == http.HTTPStatus.NOT_FOUND:
            raise NotFoundError(f"{path}: not found")
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise ClusterError(f"{method} {path}: {response.status} {_reason(content)}")
        return content


def object_path(manifest: dict[str, Any]) -> str:
    """Path of an object in the API, for the kinds that the tool itself writes."""
    group = manifest["apiVersion"]
    metadata = manifest["metadata"]
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    namespace = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{namespace}/{_PLURALS[manifest['kind']]}/{metadata['name']}"


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:300].decode(errors="replace")
