"""The OpenAI-compatible endpoint beside Triton, as the serving commands start it.

Its packages are an extra, and are imported once they are needed.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from inferx.config import EngineConfig
from inferx.errors import ConfigError
from inferx.source import ModelSource
from inferx.text.tokenizer import Tokenizer
from inferx.triton.ports import PortTaken
from inferx.triton.server import ServerError, TritonServer

if TYPE_CHECKING:
    from inferx.entrypoints.openai.server import OpenAIServer

# Bytes that the kernel keeps for a client that does not read; its own choice grows to megabytes
_SEND_BUFFER = 128 << 10
_PACKAGES = ("fastapi", "uvicorn", "tritonclient")


def require_packages() -> None:
    """Raises ConfigError where one is missing."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the OpenAI endpoint needs the Python packages {', '.join(missing)}: "
            "pip install 'inferx[openai]', or start without it: --no-openai"
        )


class Served(NamedTuple):
    """What the endpoint has to know of a model."""

    config: EngineConfig  # with an absolute path, where its model is a local one
    tokenizer: ModelSource


class Frontend(NamedTuple):
    """What the command line says about the endpoint. A port of 0 means a free one."""

    port: int
    api_key: str | None
    max_requests: int  # at once
    max_body: int  # bytes

    def listen(self, host: str) -> socket.socket:
        """A bound socket. Raises ConfigError where packages are missing, ServerError."""
        require_packages()
        # With its protocol named, as asyncio sends without delay on such sockets alone
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            listener.bind((host, self.port))
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(self.port) from None
            raise ServerError(f"cannot listen on {host}:{self.port}: {error.strerror}") from None
        return listener

    def start(
        self,
        listener: socket.socket,
        server: TritonServer,
        served: Mapping[str, Served],
    ) -> OpenAIServer:
        """For a Triton server that is ready, and its models."""
        # grpcio's older poller takes much less of a core than the default one
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
        from inferx.entrypoints.openai.app import Backend
        from inferx.entrypoints.openai.limits import Limits
        from inferx.entrypoints.openai.server import OpenAIServer

        tokenizers = {
            name: Tokenizer.from_source(model.tokenizer) for name, model in served.items()
        }
        configs = {name: model.config for name, model in served.items()}
        openai = OpenAIServer(
            listener,
            Backend(server.grpc_url, server.metrics_url, tokenizers, configs),
            limits=Limits(max_requests=self.max_requests, max_body=self.max_body),
            api_key=self.api_key,
            drain_timeout=server.exit_timeout + 5,
        )
        openai.start()
        return openai
