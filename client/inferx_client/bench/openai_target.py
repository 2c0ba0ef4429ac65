"""An OpenAI-compatible endpoint: `/v1/completions` or `/v1/chat/completions`, streaming."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from inferx_client.bench.errors import BenchError
from inferx_client.bench.prompts import Request
from inferx_client.bench.target import MISSING_CONFIDENCE, Part, RequestFailed, Sending

if TYPE_CHECKING:
    import httpx2

_DATA = "data:"


@asynccontextmanager
async def openai_target(
    url: str,
    model: str,
    sending: Sending,
    *,
    chat: bool = False,
    api_key: str | None = None,
) -> AsyncIterator[OpenAITarget]:
    """`url`: with or without the /v1 at its end. Raises BenchError where httpx2 is missing."""
    try:
        import httpx2
    except ImportError:
        raise BenchError(
            "an OpenAI endpoint needs the Python package httpx2: pip install httpx2"
        ) from None
    base = url.rstrip("/").removesuffix("/v1")
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=sending.timeout,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    ) as client:
        path = "chat/completions" if chat else "completions"
        yield OpenAITarget(client, f"{base}/v1/{path}", model, sending, chat=chat)


class OpenAITarget:
    """A response that brings text counts as one token until the final `usage` says how many the
    answer has; they are then shared evenly among the responses.
    """

    def __init__(
        self, client: httpx2.AsyncClient, url: str, model: str, sending: Sending, *, chat: bool
    ) -> None:
        """`url`: of completions, or of chat completions if `chat` says so."""
        self._client, self._url = client, url
        self._model, self._sending, self._chat = model, sending, chat

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        import httpx2

        try:
            body = self._body(request)
            deadline = time.perf_counter() + self._sending.timeout
            async with self._client.stream("POST", self._url, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise RequestFailed(f"HTTP {response.status_code}", response.text[:500])
                async for part in self._read(response):
                    yield part
                    if time.perf_counter() > deadline:
                        raise RequestFailed("timeout")
        except httpx2.TimeoutException:
            raise RequestFailed("timeout") from None
        except httpx2.HTTPError as error:
            raise RequestFailed("connection", str(error)) from None

    def _body(self, request: Request) -> dict[str, Any]:
        sending = self._sending
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.output_tokens,
            "temperature": sending.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sending.ignore_eos:
            body["ignore_eos"] = True
        if self._chat:
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        if sending.confidence:
            body |= {"logprobs": True} if self._chat else {"logprobs": 1}
        return body

    async def _read(self, response: httpx2.Response) -> AsyncGenerator[Part, None]:
        has_confidence = False
        async for line in response.aiter_lines():
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if data == "[DONE]":
                break
            event = _event(data)
            choices = event.get("choices") or [{}]
            has_confidence |= choices[0].get("logprobs") is not None
            usage = event.get("usage") or {}
            yield Part(
                int(bool(_text(choices[0]))),
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
            )
        else:
            raise RequestFailed("cut off", "the stream ended without [DONE]")
        if self._sending.confidence and not has_confidence:
            raise RequestFailed(MISSING_CONFIDENCE, "the answer has no logprobs")


def _event(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except json.JSONDecodeError:
        raise RequestFailed("bad event", "an event is not JSON") from None
    if not isinstance(event, dict):
        raise RequestFailed("bad event", "an event is not a JSON object")
    if event.get("error"):
        raise RequestFailed("error event", str(event["error"])[:500])
    return event


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
