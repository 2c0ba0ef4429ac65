"""Door: who may come in, how many at once, and how much each may bring."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from inferx.entrypoints.openai.errors import ApiError, encoded
from inferx.entrypoints.openai.limits import Limits
from inferx.entrypoints.openai.recent_errors import RecentErrors

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

STATUS_PATH = "/status.json"

_JSON = "application/json"
_DISCARD_SECONDS = 5.0  # for the rest of a body that is too large, so that its client sees why


class Door:
    """ASGI middleware: paths below /v1 are bounded and need the key, the status needs the key alone
    (it has to answer when the server is full), the others are open.

    What is posted to one of `streams`, by path, goes straight there: each layer of a framework
    would hold memory for as long as the stream is open, and cost time at each of its parts.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        api_key: str | None,
        errors: RecentErrors,
        streams: Mapping[str, App],
    ) -> None:
        self._app = app
        self._streams = streams
        self._limits = limits
        self._errors = errors
        self._key = None if api_key is None else api_key.encode()
        self._inside = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        bounded = path.startswith("/v1/")
        if not bounded and path != STATUS_PATH:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._check_key(headers.get(b"authorization", b""))
            if bounded:
                await self._check_size(headers.get(b"content-length", b"0"), receive)
                self._check_room()
        except ApiError as error:
            self._errors.note(error)
            await respond(send, error.status, encoded(error), error.headers)
            return
        if not bounded:
            await self._app(scope, receive, send)
            return
        stream = self._streams.get(path) if scope["method"] == "POST" else None
        self._inside += 1
        try:
            await (stream or self._app)(scope, receive, send)
        finally:
            self._inside -= 1

    def _check_key(self, authorization: bytes) -> None:
        if self._key is None:
            return
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
            )

    def _check_room(self) -> None:
        if self._inside >= self._limits.max_requests:
            raise ApiError(
                429,
                f"{self._inside} requests are running, which is the most that are taken at once: "
                "try again shortly",
            )

    async def _check_size(self, content_length: bytes, receive: Receive) -> None:
        # h11 has refused what is no number
        if int(content_length) > self._limits.max_body:
            await _discard(receive)
            raise too_large(self._limits)


def too_large(limits: Limits) -> ApiError:
    return ApiError(413, f"the request's body exceeds {limits.max_body} bytes")


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """The request's body. Raises ApiError where it is too large or takes too long, ClientLeft."""
    try:
        return await asyncio.wait_for(_read(receive, limits), limits.body_timeout)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"the request's body did not come within {limits.body_timeout:g} s"
        ) from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > limits.max_body:
            await _discard(receive)
            raise too_large(limits)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class ClientLeft(Exception):
    """Nobody is there to answer."""


async def _discard(receive: Receive) -> None:
    """Closing a connection with unread data would reset it before the answer is read."""

    async def rest() -> None:
        while (await receive()).get("more_body", False):
            pass

    try:
        await asyncio.wait_for(rest(), _DISCARD_SECONDS)
    except asyncio.TimeoutError:
        return


async def respond(
    send: Send, status: int, body: bytes, headers: Mapping[str, str], content_type: str = _JSON
) -> None:
    """A whole answer."""
    await start(send, status, {"content-length": str(len(body)), **headers}, content_type)
    await send({"type": "http.response.body", "body": body})


async def start(send: Send, status: int, headers: Mapping[str, str], content_type: str) -> None:
    pairs = {"content-type": content_type, **headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
