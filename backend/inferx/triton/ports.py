"""The ports that a server is told to listen on."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence

from inferx.triton.installation import ServerError


class PortTaken(ServerError):
    def __init__(self, port: int) -> None:
        super().__init__(
            f"port {port} is taken by another program: name another one, or 0 for a free one, with "
            "--http-port, --grpc-port, --metrics-port or --openai-port"
        )
        self.port = port


def choose_ports(address: str, wanted: Sequence[int]) -> list[int]:
    """The wanted ports, each 0 replaced with one that is free now. Raises ServerError, and
    PortTaken for one that another program has."""
    named = [port for port in wanted if port]
    if len(set(named)) < len(named):
        raise ServerError(
            f"HTTP, gRPC and metrics are given the ports {', '.join(map(str, wanted))}: "
            "each needs one of its own; 0 takes a free one"
        )
    with contextlib.ExitStack() as stack:
        ports = []
        for port in wanted:
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ServerError(
                        f"cannot listen on {address}:{port}: {error.strerror}"
                    ) from None
                raise PortTaken(port) from None
            ports.append(probe.getsockname()[1])
        return ports
