"""What clients may use of the endpoint."""

from __future__ import annotations

from typing import NamedTuple

HUGE_BODY = 1 << 18  # bytes of a request that take over 10 ms to be read as JSON and checked
LONG_BODY = 1 << 14  # bytes of a request that may take much longer to prepare than others


class Limits(NamedTuple):
    """Sizes in bytes, times in seconds."""

    max_requests: int = 1024  # that run at once; one more gets 429
    max_connections: int = 4096  # one more gets 503 and is closed
    max_body: int = 8 << 20
    max_headers: int = 32 << 10
    header_timeout: float = 20.0  # from a connection's begin, or its last answer, to a request
    body_timeout: float = 60.0
    stall_timeout: float = 30.0  # a client may take this long to read what is written already
    max_backlog: int = 4 << 20  # of a stream, waiting for its client to read
