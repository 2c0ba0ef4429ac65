"""The OpenAI endpoint as tests see it: the serving command, raw sockets, and Triton's metrics."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from metrics_page import OUTCOMES, num_unended, total
from openai import OpenAI

PATIENCE = 30.0  # seconds for something that takes one or two
# With as many open files as a login shell of most systems allows
_SERVE = [
    *("sh", "-c", 'ulimit -Sn 1024 || true; exec "$@"', "sh"),
    *(sys.executable, "-c", "from inferx.cli import main; main()", "serve"),
]
_CANCELLED = OUTCOMES["cancelled"]
_FREE_PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--openai-port=0"]


class Endpoint(NamedTuple):
    host: str
    port: int
    pid: int
    triton_http: str = ""  # host:port, as the next
    triton_grpc: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as response:
            return response.read().decode()

    def openai(self, api_key: str = "unused", *, max_retries: int = 0) -> OpenAI:
        """The official client; close it."""
        return OpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=max_retries)

    def connection(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def post(self, path: str, body: bytes, *headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer."""
        with self.connection() as connection:
            connection.sendall(http_request(path, body, *headers))
            return read_answer(connection)

    def gauge(self, name: str, **labels: str) -> float:
        return total(self.get("/metrics"), name, **labels)

    def num_cancelled(self) -> float:
        """Requests so far, once all are counted that Triton has given to models. None may be under
        way."""
        self.wait_for(lambda: num_unended(self.get("/metrics")) == 0, "not all requests have ended")
        return self.gauge(_CANCELLED)

    def wait_until_cancelled(self, count: float) -> None:
        """Requests so far."""
        self.wait_for(lambda: self.gauge(_CANCELLED) == count, "the request was not cancelled")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Polls: metrics are written about once a second."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)


def http_request(path: str, body: bytes, *headers: str) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Of an answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, f"the connection ended after {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    while len(body) < int(length.group(1)):
        body += connection.recv(65536)
    return int(head.split()[1]), json.loads(body)


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[Endpoint]:
    """`inferx serve MODEL` until the end of the block."""
    program = subprocess.Popen(
        [*_SERVE, model, *_FREE_PORTS, *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    lines: list[str] = []
    found: dict[str, str] = {}
    for line in program.stderr:
        lines.append(line)
        if shown := re.match(r"  (OpenAI|HTTP|gRPC) +(?:http://)?([\d.]+:\d+)", line):
            found[shown.group(1)] = shown.group(2)
        if line.startswith("  curl"):
            break
    if "OpenAI" not in found:
        program.kill()
        raise AssertionError("".join(lines))
    log = subprocess.Popen(["cat"], stdin=program.stderr, stdout=subprocess.DEVNULL)
    try:
        host, _, port = found["OpenAI"].rpartition(":")
        yield Endpoint(host, int(port), program.pid, found["HTTP"], found["gRPC"])
    finally:
        program.send_signal(signal.SIGTERM)
        status = program.wait(timeout=60)
        log.wait()
    assert status == 0
