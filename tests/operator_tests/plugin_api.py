"""An API server for the plugin's tests: what a test lays out, over HTTP, for the real client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from octavo_operator.cluster.user import UserCluster
from octavo_operator.plugin.cli import run

__all__ = ["APPS", "CORE", "OURS", "Api", "change_user", "kubeconfig", "serve"]

CORE, APPS, OURS = "/api/v1/namespaces/team-a", "/apis/apps/v1/namespaces/team-a", "/apis/octavo.dev/v1alpha1"

Answer = tuple[int, Any]


class Api:
    """Answers by path, or by `METHOD path`: one for ever, or several in turn of which the last stays. 404 for all else.

    Attributes:
        answers: status and body: text as it is, all else as JSON.
        asked: the requests, `METHOD path?query`.
        credentials: what stood in the header Authorization.
        kubeconfig: path of one whose context names the namespace team-a.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer | list[Answer]] = {}
        self.asked: list[str] = []
        self.credentials: set[str] = set()
        self.kubeconfig = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.credentials.add(request.headers.get("Authorization", ""))
        found = self.answers.get(f"{request.method} {request.path}", self.answers.get(request.path))
        if found is None:
            found = 404, {"message": f"{request.path} not found"}
        elif isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        status, body = found
        return (
            web.Response(text=body, status=status) if isinstance(body, str) else web.json_response(body, status=status)
        )

    def has(self, path: str, *items: Any) -> None:
        """Gives a list of these objects."""
        self.answers[path] = 200, {"items": list(items), "metadata": {"resourceVersion": "1"}}

    async def ask(self, *arguments: str) -> int:
        """Runs the plugin."""
        return await run([*arguments, "--kubeconfig", self.kubeconfig], {})

    @asynccontextmanager
    async def client(self) -> AsyncIterator[UserCluster]:
        """The plugin's client."""
        client = await UserCluster.connect(self.kubeconfig)
        try:
            yield client
        finally:
            await client.close()


def kubeconfig(path: Path, server: str = "http://127.0.0.1:1", **context: str) -> str:
    """Writes one."""
    content = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def change_user(path: Path, user: dict[str, Any]) -> None:
    """Gives the user of a kubeconfig other credentials."""
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"users": [{"name": "u", "user": user}]}))


@asynccontextmanager
async def serve(folder: Path) -> AsyncIterator[Api]:
    """An Api that listens."""
    scripted = Api()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", scripted.answer)
    async with TestServer(application) as http:
        scripted.kubeconfig = kubeconfig(folder / "config", str(http.make_url("")).rstrip("/"), namespace="team-a")
        yield scripted
