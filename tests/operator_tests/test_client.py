import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from octavo_operator.api.names import DEPLOYMENT, INFERENCE_SERVICE, POD, SERVICE
from octavo_operator.cluster.client import KubernetesClient
from octavo_operator.errors import ClusterError, Gone, Rejected, SettingsError, Stale, Unavailable
from octavo_operator.testing import inference_service

Answer = Callable[[web.Request], Awaitable[web.Response]]


class Server:
    """An API server that gives the answers that a test lays out, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.answers: list[tuple[int, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.text()
        kind = request.headers.get("Content-Type", "")
        self.asked.append((request.method, request.path, dict(request.query), kind, json.loads(body) if body else None))
        status, content = self.answers.pop(0)
        text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(status=status, text=text, content_type="application/json")


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, KubernetesClient]]:
    scripted = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", scripted.answer)
    async with TestServer(application) as http:
        client = KubernetesClient(Configuration(host=str(http.make_url("")).rstrip("/")))
        yield scripted, client
        await client.close()


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", "resourceVersion": str(version)}, "spec": {"a": 1}}


def status(message: str, **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "message": message, "details": details}


@pytest.mark.parametrize(
    ("code", "body", "error"),
    [
        (400, status("bad"), Rejected),
        (401, status("Unauthorized"), Unavailable),
        (403, status("may not"), Rejected),
        (403, status("no new content", causes=[{"reason": "NamespaceTerminating"}]), Gone),
        (409, status("no new content", causes=[{"reason": "NamespaceTerminating"}]), Gone),
        (404, status("not found"), Gone),
        (404, "404 page not found\n", Gone),
        (409, status("conflict"), Stale),
        (410, status("expired"), Stale),
        (422, status("Service is invalid: spec.type"), Rejected),
        (422, status("Service is invalid: metadata.uid: field is immutable"), Stale),
        (429, status("storage is (re)initializing"), Unavailable),
        (500, status("failed to create typed patch object (…): field not declared in schema"), Rejected),
        (500, status("etcd: leader changed"), Unavailable),
        (503, "before all known HTTP paths", Unavailable),
        (200, "[1]", Unavailable),
    ],
)
async def test_apply_error(
    server: tuple[Server, KubernetesClient], code: int, body: Any, error: type[ClusterError]
) -> None:
    scripted, client = server
    scripted.answers.append((code, body))
    with pytest.raises(error):
        await client.apply(inference_service(), manager="octavo-operator")


async def test_apply_asks_for_a_forced_apply(server: tuple[Server, KubernetesClient]) -> None:
    scripted, client = server
    answers = [{"metadata": {"name": name}} for name in ("one", "two")]
    scripted.answers += [(200, answer) for answer in answers]
    manifest = inference_service()
    assert await client.apply(manifest, manager="octavo-operator") == answers[0]
    assert await client.apply_status(manifest, manager="octavo-status") == answers[1]
    path = "/apis/octavo.dev/v1alpha1/namespaces/default/inferenceservices/chat"
    kind = "application/apply-patch+yaml"
    assert scripted.asked == [
        ("PATCH", path, {"fieldManager": "octavo-operator", "force": "true"}, kind, manifest),
        ("PATCH", f"{path}/status", {"fieldManager": "octavo-status", "force": "true"}, kind, manifest),
    ]


async def test_list_page_asks_for_what_is_ours_and_goes_on_where_told(server: tuple[Server, KubernetesClient]) -> None:
    scripted, client = server
    scripted.answers += [
        (200, {"items": [item("a", 3), item("b", 5)], "metadata": {"resourceVersion": "7", "continue": "more"}}),
        (200, {"items": [item("c", 1)], "metadata": {"resourceVersion": "7"}}),
    ]
    first_page = await client.list_page(SERVICE, None)
    assert [(one.key, one.version) for one in first_page.items] == [(("team", "a"), 3), (("team", "b"), 5)]
    assert [one.manifest() for one in first_page.items] == [item("a", 3), item("b", 5)]
    assert (first_page.version, first_page.more) == (7, "more")
    last_page = await client.list_page(SERVICE, None, "more")
    assert [one.manifest() for one in last_page.items] == [item("c", 1)]
    assert (last_page.version, last_page.more) == (7, "")
    selector = "app.kubernetes.io/managed-by=octavo-operator"
    first, second = ((path, query) for _, path, query, _, _ in scripted.asked)
    assert first == ("/api/v1/services", {"limit": "250", "labelSelector": selector})
    assert second == ("/api/v1/services", {"limit": "250", "labelSelector": selector, "continue": "more"})


@pytest.mark.parametrize(
    "body",
    [
        "[1]",
        "<html>maintenance</html>",
        {"items": [{}], "metadata": {"resourceVersion": "7"}},
        {"items": [], "metadata": {"resourceVersion": "newest"}},
        {"items": []},
    ],
)
async def test_list_page_of_no_list_is_an_error_of_the_cluster(
    server: tuple[Server, KubernetesClient], body: Any
) -> None:
    scripted, client = server
    scripted.answers.append((200, body))
    with pytest.raises(Unavailable, match="GET /api/v1/services: this is not the answer of an API server"):
        await client.list_page(SERVICE, None)


async def test_list_page_of_one_owner_asks_for_its_label(server: tuple[Server, KubernetesClient]) -> None:
    scripted, client = server
    scripted.answers.append((200, {"items": [], "metadata": {"resourceVersion": "7"}}))
    await client.list_page(POD, "team-a", owner="chat")
    _, path, query, _, _ = scripted.asked[0]
    selector = "app.kubernetes.io/managed-by=octavo-operator,octavo.dev/inferenceservice=chat"
    assert (path, query) == ("/api/v1/namespaces/team-a/pods", {"limit": "250", "labelSelector": selector})


async def test_list_page_of_the_objects_has_no_selector(server: tuple[Server, KubernetesClient]) -> None:
    scripted, client = server
    scripted.answers.append((200, {"items": [], "metadata": {"resourceVersion": "7"}}))
    await client.list_page(INFERENCE_SERVICE, "team-a")
    _, path, query, _, _ = scripted.asked[0]
    assert (path, query) == ("/apis/octavo.dev/v1alpha1/namespaces/team-a/inferenceservices", {"limit": "250"})


async def test_get_of_nothing_is_none(server: tuple[Server, KubernetesClient]) -> None:
    scripted, client = server
    scripted.answers += [(404, status("not found")), (200, {"metadata": {"name": "chat"}})]
    assert await client.get(DEPLOYMENT, "default", "chat") is None
    assert await client.get(DEPLOYMENT, "default", "chat") == {"metadata": {"name": "chat"}}


@pytest.mark.parametrize("body", ["<html>log in</html>", "", "[1]", "null", {"message": "welcome"}])
async def test_get_of_what_is_no_object_is_unavailable(server: tuple[Server, KubernetesClient], body: Any) -> None:
    """A proxy's page is not taken for an object, let alone for the answer to an apply."""
    scripted, client = server
    scripted.answers.append((200, body))
    with pytest.raises(Unavailable, match="this is not the answer of an API server"):
        await client.get(DEPLOYMENT, "default", "chat")


async def test_call_without_a_server_is_unavailable(unused_tcp_port: int) -> None:
    client = KubernetesClient(Configuration(host=f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(Unavailable, match="GET /api/v1/namespaces/default/services/chat"):
        await client.get(SERVICE, "default", "chat")
    await client.close()


@pytest.mark.parametrize("error", [ConfigException("Token file exists but empty."), FileNotFoundError("token")])
async def test_call_while_the_token_is_being_replaced_is_unavailable(error: Exception) -> None:
    def reads_again(_: Configuration) -> None:
        raise error

    configuration = Configuration(host="http://127.0.0.1:1", api_key={"BearerToken": "bearer old"})
    configuration.refresh_api_key_hook = reads_again  # type: ignore[assignment] # theirs says None
    client = KubernetesClient(configuration)
    try:
        with pytest.raises(Unavailable, match=str(error)):
            await client.get(SERVICE, "default", "chat")
    finally:
        await client.close()


async def test_call_cut_off_in_the_middle_is_unavailable() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as raw:
        host, port = raw.sockets[0].getsockname()
        client = KubernetesClient(Configuration(host=f"http://{host}:{port}"))
        with pytest.raises(Unavailable):
            await client.get(SERVICE, "default", "chat")
        await client.close()


async def test_connect_without_credentials_says_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match="--kubeconfig"):
        await KubernetesClient.connect(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"certificate-authority": "/none"}, {}),
        ({"certificate-authority-data": "no base64!"}, {}),
        ({"certificate-authority-data": "bm8gY2VydGlmaWNhdGU="}, {}),
        ({}, {"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="}),
        ({}, {"tokenFile": "/none"}),
        (1, {}),
    ],
)
async def test_connect_with_credentials_that_cannot_be_used_says_so(tmp_path: Path, cluster: Any, user: Any) -> None:
    path = tmp_path / "config"
    server = {"server": "https://127.0.0.1:1"}
    config = {
        "clusters": [{"name": "c", "cluster": server | cluster if isinstance(cluster, dict) else cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(SettingsError, match="no way to the cluster"):
        await KubernetesClient.connect(str(path))
