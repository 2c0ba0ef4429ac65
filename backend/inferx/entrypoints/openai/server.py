"""OpenAIServer: the endpoint in a thread of its own, beside the one that watches Triton."""

from __future__ import annotations

import asyncio
import socket
import threading

import uvicorn

from inferx.entrypoints.openai.app import Backend, make_app
from inferx.entrypoints.openai.connection import connections
from inferx.entrypoints.openai.limits import Limits

_BACKLOG = 2048  # connections that wait to be accepted


class OpenAIServer:
    def __init__(
        self,
        listener: socket.socket,
        backend: Backend,
        *,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        api_key: str | None = None,
        drain_timeout: float = 30.0,
    ) -> None:
        """`listener` is bound, and this object's from now on."""
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._ready = threading.Event()
        self._server = _Server(
            uvicorn.Config(
                make_app(backend, limits=limits, api_key=api_key),
                http=connections(limits),  # type: ignore[arg-type]
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                h11_max_incomplete_event_size=limits.max_headers,
                timeout_graceful_shutdown=round(drain_timeout),
            ),
            self._ready,
        )
        self._thread = threading.Thread(target=self._run, name="inferx-openai", daemon=True)

    def start(self) -> None:
        """Returns when requests are taken."""
        self._thread.start()
        self._ready.wait()

    def drain(self) -> None:
        """Takes nothing new; what runs may end, within `drain_timeout`. Returns at once."""
        self._server.should_exit = True

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            self._ready.set()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()
