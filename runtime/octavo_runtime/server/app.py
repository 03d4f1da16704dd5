"""The HTTP routes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_runtime.domain import EngineInfo, FinishReason, Request
from octavo_runtime.errors import InvalidRequest, StartError
from octavo_runtime.ipc.client import EngineClient
from octavo_runtime.server.answers import ChatAnswers, CompletionAnswers, Events, event
from octavo_runtime.server.errors import Unavailable, error_body, error_response, errors_as_json
from octavo_runtime.server.generation import Generation
from octavo_runtime.server.metrics import Metrics
from octavo_runtime.server.prompts import Prompts
from octavo_runtime.server.queue import Queue
from octavo_runtime.server.recording import Recording
from octavo_runtime.server.settings import ServerConfig
from octavo_runtime.server.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    KvCacheMemoryRequest,
    TokenizeRequest,
    parse,
)
from octavo_runtime.text.admission import admit
from octavo_runtime.text.output import Delta

__all__ = ["Server"]

_SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect the events otherwise
}


class Server:
    """The state behind the routes.

    Args:
        config: The server's settings.
        client: The engine, started or about to be.
        metrics: Fed by this server and the client.
        recording: Fed by this server.

    Attributes:
        prompts: Set once the tokenizer is loaded; with `client.info` it makes the server ready.
        sampling_defaults: The model's, for requests that do not say.
        draining: Set when no new connections are to be taken.
    """

    def __init__(self, config: ServerConfig, client: EngineClient, metrics: Metrics, recording: Recording) -> None:
        self.prompts: Prompts | None = None
        self.sampling_defaults: dict[str, Any] = {}
        self.draining = False
        self._config = config
        self._client = client
        self._metrics = metrics
        self._recording = recording
        self._created = int(time.time())
        self._queue = Queue()
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._connections: weakref.WeakKeyDictionary[asyncio.Transport, float] = weakref.WeakKeyDictionary()

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(middlewares=[errors_as_json], client_max_size=self._config.max_body_bytes)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._one_model)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        if self._client.config.kv_cache_memory_max is not None:
            app.router.add_post("/kv_cache_memory", self._resize)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/health", self._readyz)
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._serve_metrics)
        app.on_response_prepare.append(self._close_old_connections)
        return app

    def close(self) -> None:
        """Ends the thread for text."""
        if self.prompts is not None:
            self.prompts.close()

    async def drained(self) -> None:
        """Waits until no request runs."""
        await self._idle.wait()

    @property
    def num_active(self) -> int:
        """Calls under way."""
        return self._num_active

    # --- generation

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        arrival = time.monotonic()
        with self._admitted(request):
            body = parse(await _read_json(request), CompletionRequest)
            self._check_model(body.model)
            token_ids = await self._text.encode(body.prompts())
            answers = CompletionAnswers(self._config.served_model_name, body.include_usage)
            return await self._answer(request, body, answers, token_ids, arrival=arrival, param="prompt")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        arrival = time.monotonic()
        with self._admitted(request):
            body = parse(await _read_json(request), ChatRequest)
            self._check_model(body.model)
            token_ids = await self._text.encode_chat(body.messages)
            answers = ChatAnswers(self._config.served_model_name, body.include_usage)
            return await self._answer(request, body, answers, [token_ids], arrival=arrival, param="messages")

    async def _answer(
        self,
        request: web.Request,
        body: GenerationRequest,
        answers: CompletionAnswers | ChatAnswers,
        prompts: Sequence[list[int]],
        *,
        arrival: float,
        param: str,
    ) -> web.StreamResponse:
        sampling = body.sampling(self.sampling_defaults)
        requests = [
            admit(
                f"{answers.id}-{index}",
                prompt,
                sampling,
                self._info,
                self._client.config.scheduler,
                arrival=arrival,
                param=param,
                cache_salt=body.cache_salt or "",
                priority=body.priority or 0,
            )
            for index, prompt in enumerate(prompts)
        ]
        self._check_queue(requests)
        with self._queue.holding(requests):
            generation = Generation(
                requests,
                client=self._client,
                tokenizer=self._text.tokenizer,
                metrics=self._metrics,
                queue=self._queue,
                recording=self._recording,
            )
            if body.stream:
                return await self._stream(request, generation, answers)
            return await self._whole(generation, answers)

    async def _whole(self, generation: Generation, answers: CompletionAnswers | ChatAnswers) -> web.Response:
        texts: list[list[str]] = [[] for _ in generation.answers]
        ends: dict[int, Delta] = {}
        async with aclosing(generation.deltas()) as deltas:
            async for news in deltas:
                for answer, delta in news:
                    texts[answer.index].append(delta.text)
                    if delta.finish_reason is FinishReason.ERROR:
                        return self._failed(delta)
                    if delta.finish_reason is not None:
                        ends[answer.index] = delta
        whole = answers.whole(
            ["".join(pieces) for pieces in texts], [ends[index] for index in range(len(texts))], generation.usage()
        )
        return _json(whole)

    async def _stream(
        self, request: web.Request, generation: Generation, answers: CompletionAnswers | ChatAnswers
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SSE_HEADERS)
        events = Events(answers)
        # When the client is gone, closing the generation aborts what still runs.
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            async with aclosing(generation.deltas()) as deltas, self._kept_open(response):
                async for news in deltas:
                    failed = next((delta for _, delta in news if delta.finish_reason is FinishReason.ERROR), None)
                    if failed is not None:
                        body = error_body(failed.error or "the request failed", kind="server_error")
                        await response.write(event(body))
                        return response
                    # One write for all that has come: of a client that reads slowly, many tokens.
                    if written := b"".join([events.of(answer.index, delta) for answer, delta in news]):
                        await response.write(written)
            if answers.include_usage:
                await response.write(event(answers.last(generation.usage())))
            await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def _kept_open(self, response: web.StreamResponse) -> AsyncIterator[None]:
        """Sends a comment now and then, so that no proxy takes a long wait for the first token as the end."""

        async def ping() -> None:
            while True:
                await asyncio.sleep(self._config.sse_ping_seconds)
                with contextlib.suppress(ConnectionResetError):
                    await response.write(b": ping\n\n")

        task = asyncio.create_task(ping())
        try:
            yield
        finally:
            task.cancel()

    def _failed(self, delta: Delta) -> web.Response:
        status = 503 if self._client.failure is not None else 500
        headers = {"Retry-After": "5"} if status == web.HTTPServiceUnavailable.status_code else None
        return error_response(status, delta.error or "the request failed", headers=headers)

    # --- the door

    @contextmanager
    def _admitted(self, request: web.Request) -> Iterator[None]:
        """Lets a call in, unless the server is loading, draining or broken, and counts it as active.

        While it drains, a connection that was kept open may ask once more, and is then closed: its client does not know.
        New connections are refused, since routes have changed before.
        """
        if self.draining and request.transport not in self._connections:
            raise self._refusal("this replica is shutting down", code="draining")
        if self._client.failure is not None:
            raise self._refusal("the engine has ended", code="engine_died")
        if not self.is_ready:
            raise self._refusal("the model is still loading", code="loading")
        self._num_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    def _check_queue(self, requests: Sequence[Request]) -> None:
        limit = self._client.config.scheduler.max_num_seqs + self._config.max_num_queued_reqs
        if len(requests) > limit:
            raise InvalidRequest(f"prompt holds {len(requests)} prompts; at most {limit} are allowed", param="prompt")
        is_full = self._client.num_open + len(requests) > limit
        if self._config.max_num_queued_tokens is not None and len(self._queue):
            tokens = self._queue.num_tokens + sum(len(request.prompt_token_ids) for request in requests)
            is_full = is_full or tokens > self._config.max_num_queued_tokens
        if is_full:
            retry_after = self._queue.retry_after(time.monotonic())
            raise self._refusal("the queue is full", code="queue_full", retry_after=retry_after)

    def _refusal(self, message: str, *, code: str, retry_after: int = 5) -> Unavailable:
        self._metrics.refused(code)
        return Unavailable(message, code=code, retry_after=retry_after)

    def _check_model(self, model: str | None) -> None:
        served = self._config.served_model_name
        if model is not None and model != served:
            raise InvalidRequest(
                f"there is no model {model!r} here; this server has {served!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    @property
    def is_ready(self) -> bool:
        """Whether tokenizer and engine are loaded."""
        return self.prompts is not None and self._client.info is not None

    @property
    def _info(self) -> EngineInfo:
        assert self._client.info is not None
        return self._client.info

    @property
    def _text(self) -> Prompts:
        assert self.prompts is not None
        return self.prompts

    # --- text

    async def _tokenize(self, request: web.Request) -> web.Response:
        with self._admitted(request):
            body = parse(await _read_json(request), TokenizeRequest)
            self._check_model(body.model)
            if body.messages is not None:
                tokens = await self._text.encode_chat(body.messages)
            else:
                (tokens,) = await self._text.encode([body.prompt or ""])
            return _json({"count": len(tokens), "max_model_len": self._info.max_model_len, "tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        with self._admitted(request):
            body = parse(await _read_json(request), DetokenizeRequest)
            self._check_model(body.model)
            wrong = [token for token in body.tokens if not 0 <= token < self._info.vocab_size]
            if wrong:
                raise InvalidRequest(f"tokens holds id {wrong[0]}, which this model does not have", param="tokens")
            return _json({"prompt": await self._text.decode(body.tokens)})

    # --- the operator of this server

    async def _resize(self, request: web.Request) -> web.Response:
        with self._admitted(request):
            body = parse(await _read_json(request), KvCacheMemoryRequest)
            try:
                info = await self._client.resize(body.bytes)
            except StartError as error:
                raise self._refusal("the engine has ended", code="engine_died") from error
            return _json({"bytes": info.num_blocks * info.block_bytes, "num_blocks": info.num_blocks})

    # --- models, probes, metrics

    async def _models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["model"])
        return _json(self._model())

    def _model(self) -> dict[str, Any]:
        if not self.is_ready:
            raise self._refusal("the model is still loading", code="loading")
        return {
            "id": self._config.served_model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "octavo",
            "root": self._client.config.model,
            "max_model_len": self._info.max_model_len,
        }

    async def _livez(self, _: web.Request) -> web.Response:
        if self._client.failure is not None:
            return _json({"status": "dead", "detail": self._client.failure.message}, status=503)
        silent = self._client.silent_for(time.monotonic())
        if self._client.info is None:
            if silent > self._config.load_timeout:
                detail = f"loading has made no progress for {silent:.0f} s"
                return _json({"status": "hung", "detail": detail}, status=503)
        elif silent > self._config.step_timeout:
            detail = f"the engine has work and has finished no step for {silent:.0f} s"
            return _json({"status": "hung", "detail": detail}, status=503)
        return _json({"status": "alive"})

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._client.failure is not None:
            return _json({"status": "dead", "detail": self._client.failure.message}, status=503)
        if self.draining:
            return _json({"status": "draining", "detail": f"{self._num_active} requests still run"}, status=503)
        if not self.is_ready:
            return _json({"status": "loading"}, status=503)
        return _json({"status": "ready"})

    async def _ping(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": version("octavo")})

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    # --- connections

    async def _close_old_connections(self, request: web.Request, response: web.StreamResponse) -> None:
        """Asks the client to connect anew after an age, so that new replicas get their share of long-lived clients."""
        if request.transport is None:
            return
        now = time.monotonic()
        age = self._config.max_connection_age
        # Drawn once for each connection: many opened at once must not be closed at once.
        close_at = self._connections.setdefault(request.transport, now + age * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
        if self.draining or (age > 0 and now >= close_at):
            response.headers["Connection"] = "close"
            response.force_close()


async def _read_json(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            reason=f"the body must be JSON, sent with Content-Type: application/json, not {request.content_type}"
        )
    try:
        return await request.read()
    except (web.RequestPayloadError, HttpProcessingError) as error:
        why = " ".join(str(error).split())
        raise InvalidRequest(f"the body is not what its headers say: {why}", code="invalid_json") from error


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
