"""The endpoint's FastAPI application: which path does what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from inferx.config import EngineConfig
from inferx.entrypoints.openai.chat import ChatAnswer, chat_prompt
from inferx.entrypoints.openai.completions import CompletionAnswer
from inferx.entrypoints.openai.door import STATUS_PATH, Door
from inferx.entrypoints.openai.errors import ApiError, encoded
from inferx.entrypoints.openai.generation import Generation
from inferx.entrypoints.openai.health import metrics_page, unhealthy
from inferx.entrypoints.openai.limits import HUGE_BODY, LONG_BODY, Limits
from inferx.entrypoints.openai.models import Models
from inferx.entrypoints.openai.page import Page, status_page
from inferx.entrypoints.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    chat_request,
    check_sequences,
    completion_request,
    json_object,
)
from inferx.entrypoints.openai.reading import Reading
from inferx.entrypoints.openai.recent_errors import RecentErrors
from inferx.entrypoints.openai.status import Status
from inferx.entrypoints.openai.streaming import GenerateRoute, Job, as_api_error
from inferx.entrypoints.openai.turns import Turns
from inferx.text.tokenizer import Tokenizer

R = TypeVar("R", ChatRequest, CompletionRequest)

_TEMPLATE_THREADS = 4
_LONG_THREADS = 2  # for long bodies, whose chats take seconds: short ones must not wait either
_METRICS_THREADS = 2  # apart, as health must not wait for chats of megabytes


class Backend(NamedTuple):
    """The Triton server behind the endpoint. URLs are host:port."""

    grpc_url: str
    metrics_url: str
    tokenizers: Mapping[str, Tokenizer]  # by model
    configs: Mapping[str, EngineConfig] = {}  # likewise, of those whose settings are known


class _Endpoint:
    """What the routes share while the application runs."""

    models: Models
    reading: Reading
    status: Status

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.errors = RecentErrors()
        self._templates = ThreadPoolExecutor(_TEMPLATE_THREADS, "inferx-templates")
        self._long_bodies = ThreadPoolExecutor(_LONG_THREADS, "inferx-long-bodies")
        self._metrics = ThreadPoolExecutor(_METRICS_THREADS, "inferx-scrapes")

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        backend = self._backend
        self.reading = Reading()
        self.models = Models(backend.grpc_url, backend.tokenizers)
        self.status = Status(
            self.models, backend.configs, backend.metrics_url, self._metrics, self.errors
        )
        try:
            yield
        finally:
            await self.models.close()
            for threads in (self._templates, self._long_bodies, self._metrics):
                threads.shutdown(wait=False, cancel_futures=True)

    async def chat(self, body: bytes) -> Job:
        request = await self._read(chat_request, body)
        model = self.models.get(request.model)
        answer = ChatAnswer(request, model.tokenizer)
        threads = self._long_bodies if len(body) > LONG_BODY else self._templates
        prompt = await chat_prompt(request, model.tokenizer, threads)
        generation = Generation(
            model.client,
            [prompt],
            request.sampling,
            self.reading,
            request_id=answer.id,
            count_tokens=request.shows_usage,
        )
        return Job(generation, answer, request.stream)

    async def completions(self, body: bytes) -> Job:
        request = await self._read(completion_request, body)
        model = self.models.get(request.model)
        if config := self._backend.configs.get(model.name):
            check_sequences(request, config.max_in_flight)
        answer = CompletionAnswer(request, model.tokenizer)
        generation = Generation(
            model.client,
            request.prompts,
            request.sampling,
            self.reading,
            request_id=answer.id,
            echo=request.echo,
            count_tokens=request.shows_usage,
        )
        return Job(generation, answer, request.stream)

    async def _read(self, read: Callable[[Mapping[str, Any]], R], body: bytes) -> R:
        """The request, elsewhere where streams would wait for it. Raises ApiError."""
        if len(body) <= HUGE_BODY:
            return read(json_object(body))
        work = asyncio.get_running_loop().run_in_executor(
            self._long_bodies, lambda: read(json_object(body))
        )
        return await work

    async def list_models(self) -> dict[str, Any]:
        return {"object": "list", "data": [_shown(name) for name in self.models.names]}

    async def show_model(self, name: str) -> dict[str, Any]:
        return _shown(self.models.get(name).name)

    async def health(self) -> dict[str, str]:
        if reason := await unhealthy(self.models, self._backend.metrics_url, self._metrics):
            raise ApiError(503, reason)
        return {"status": "ok"}

    async def metrics(self) -> Response:
        page = await metrics_page(self._backend.metrics_url, self._metrics)
        return Response(page, media_type="text/plain; version=0.0.4")

    async def show_status(self) -> Response:
        headers = {"cache-control": "no-store"}
        return Response(await self.status.json(), media_type="application/json", headers=headers)

    async def on_error(self, request: Request, error: Exception) -> Response:
        path = request.url.path
        if isinstance(error, HTTPException):
            error = ApiError(error.status_code, _what_is_wrong(request, error.status_code))
        problem = as_api_error(error)
        if path.startswith("/v1/"):  # whatever else is asked for is no request to a model
            self.errors.note(problem)
        return Response(
            encoded(problem), problem.status, dict(problem.headers), media_type="application/json"
        )


def make_app(
    backend: Backend,
    *,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    api_key: str | None = None,
) -> FastAPI:
    """`api_key`: what requests below /v1 and for the status have to bring; None: nothing."""
    endpoint = _Endpoint(backend)
    app = FastAPI(openapi_url=None, lifespan=endpoint.running)
    turns = Turns()
    streams = {
        path: GenerateRoute(prepare, limits, turns, endpoint.errors)
        for path, prepare in (
            ("/v1/chat/completions", endpoint.chat),
            ("/v1/completions", endpoint.completions),
        )
    }
    app.add_middleware(
        Door, limits=limits, api_key=api_key, errors=endpoint.errors, streams=streams
    )
    for path, route in streams.items():  # for what is no POST, which is refused here
        app.add_route(path, route, methods=["POST"])  # type: ignore[arg-type]
    for path, show in (
        ("/v1/models", endpoint.list_models),
        ("/v1/models/{name:path}", endpoint.show_model),
        ("/health", endpoint.health),
        ("/metrics", endpoint.metrics),
        (STATUS_PATH, endpoint.show_status),
        ("/", _serving(status_page(needs_key=api_key is not None))),
    ):
        app.add_api_route(path, show, methods=["GET", "HEAD"])  # uvicorn leaves HEAD's body out
    for kind in (HTTPException, ApiError, Exception):
        app.add_exception_handler(kind, endpoint.on_error)
    return app


def _serving(page: Page) -> Callable[[], Awaitable[Response]]:
    async def show_page() -> Response:
        return Response(page.html, media_type="text/html", headers=page.headers)

    return show_page


def _what_is_wrong(request: Request, status: int) -> str:
    path = request.url.path[:80]
    if status == 404:
        return f"there is no path {path!r}: see /v1/models, /v1/chat/completions, /v1/completions"
    return f"{path} does not take {request.method}"


def _shown(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "inferx"}
