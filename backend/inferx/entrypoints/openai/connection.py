"""Connection: uvicorn's HTTP/1.1 connection, closed when its client keeps it and does not use it.

Uvicorn bounds the headers' size and the time between two requests. A client could still connect
and send nothing, or stop reading its answer, which would hold the connection, and what is written
to it, for ever.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from inferx.entrypoints.openai.errors import ApiError, encoded
from inferx.entrypoints.openai.limits import Limits


class Connection(H11Protocol):
    def __init__(self, *arguments: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._awaiting_request: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(ApiError(503, "too many connections: close some, and try again"))
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._awaiting_request)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            _cancel(self._awaiting_request)

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Without a flush, which would wait for the client again
        self._stalled = self.loop.call_later(self._limits.stall_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stalled)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            ApiError(
                400,
                "this is not an HTTP/1.1 request, or its headers exceed "
                f"{self._limits.max_headers} bytes",
            )
        )

    def _await_request(self) -> None:
        _cancel(self._awaiting_request)
        self._awaiting_request = self.loop.call_later(
            self._limits.header_timeout, self._end_without_request
        )

    def _end_without_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(ApiError(408, f"no request came within {self._limits.header_timeout:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Answers outside of the app, and closes."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encoded(error)
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                **error.headers,
                "connection": "close",
            }
            response = h11.Response(status_code=error.status, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def connections(limits: Limits) -> Callable[..., Connection]:
    """What uvicorn makes its connections with."""
    return functools.partial(Connection, limits=limits)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
