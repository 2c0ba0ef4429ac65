"""The OpenAI target against a small server that speaks the API's streaming form."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from inferx.cli import app
from inferx_client.bench.measure import follow
from inferx_client.bench.openai_target import openai_target
from inferx_client.bench.prompts import Request
from inferx_client.bench.target import Sending
from inferx_client.bench.timing import Timing
from typer.testing import CliRunner

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers by its server's `answer`, and keeps what was asked."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization"), body))
        self.server.answer(self)

    def events(self, *events: object, done: bool = True) -> None:
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        text = ": a comment\n\n" + "".join(lines) + ("data: [DONE]\n\n" if done else "")
        self.respond(200, text, "text/event-stream")

    def respond(self, status: int, text: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *values: object) -> None: ...


class Server(ThreadingHTTPServer):
    answer: Answer
    asked: list[tuple[str, str | None, dict[str, Any]]]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asked(server: Server, sending: Sending | None = None, **options: Any) -> Timing:
    async def ask() -> Timing:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        async with openai_target(url, "m", sending or Sending(), **options) as target:
            return await follow(target, Request("Once", 5))

    return asyncio.run(ask())


USAGE = {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


def completion(text: str, **more: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **more}]}


def chat(**delta: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def test_a_completion_is_timed_and_its_tokens_are_those_of_the_usage(server: Server) -> None:
    server.answer = lambda handler: handler.events(
        completion(" a"), completion(" b c"), completion("", finish_reason="length"),
        {"choices": [], "usage": USAGE},
    )  # fmt: skip
    timing = asked(server, api_key="secret")
    assert (timing.error, timing.input_tokens) == (None, 4)
    assert timing.tokens == [3, 2, 0, 0]
    [(path, key, body)] = server.asked
    assert (path, key) == ("/v1/completions", "Bearer secret")
    assert body == {
        "model": "m", "prompt": "Once", "max_tokens": 5, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


def test_a_chats_role_is_not_its_first_token(server: Server) -> None:
    server.answer = lambda handler: handler.events(
        chat(role="assistant", content=""), chat(content="Hi"), {"choices": [], "usage": USAGE}
    )
    timing = asked(server, Sending(ignore_eos=False), chat=True)
    assert timing.tokens == [0, 5, 0]
    assert timing.first_token == timing.responses[1]
    [(path, key, body)] = server.asked
    assert (path, key) == ("/v1/chat/completions", None)
    assert body["messages"] == [{"role": "user", "content": "Once"}]
    assert "ignore_eos" not in body


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda handler: handler.respond(429, '{"error": {"message": "busy"}}'), "HTTP 429"),
        (lambda handler: handler.events(completion("a"), done=False), "cut off"),
        (lambda handler: handler.events({"error": {"message": "x"}}), "error event"),
        (lambda handler: handler.events(["no object"]), "bad event"),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), "connection"),
    ],
)
def test_a_failure_is_counted_by_its_kind(server: Server, answer: Answer, kind: str) -> None:
    server.answer = answer
    assert asked(server).error == kind


def test_nobody_there_is_a_failed_connection(server: Server) -> None:
    async def ask() -> Timing:
        async with openai_target("http://127.0.0.1:9/v1/", "m", Sending()) as target:
            return await follow(target, Request("Once", 5))

    assert asyncio.run(ask()).error == "connection"


def test_an_answer_that_takes_too_long_is_a_timeout(server: Server) -> None:
    released = threading.Event()

    def wait(handler: Handler) -> None:
        released.wait(10)
        handler.close_connection = True

    server.answer = wait
    try:
        assert asked(server, Sending(timeout=0.05)).error == "timeout"
    finally:
        released.set()


def test_a_confidence_that_is_missing_is_an_error(server: Server) -> None:
    server.answer = lambda handler: handler.events(completion(" a"))
    assert asked(server, Sending(confidence=True)).error == "no confidence"
    server.answer = lambda handler: handler.events(
        completion(" a", logprobs={"token_logprobs": [-0.1]})
    )
    assert asked(server, Sending(confidence=True)).error is None


@pytest.mark.parametrize(
    ("failures", "status", "said"),
    [
        ({}, 0, None),
        ({7: 503}, 0, None),
        (
            {7: 503, 50: 429, 51: 429},
            1,
            "inferx: 1 at once: 3 of 100 requests failed, 2 of them with HTTP 429: "
            "its figures are of the others alone",
        ),
        (
            dict.fromkeys(range(100), 503),
            1,
            "inferx: 1 at once: 100 of 100 requests failed, 100 of them with HTTP 503: "
            "its figures are of the others alone",
        ),
    ],
)
def test_a_point_with_more_than_a_hundredth_of_its_requests_failed_ends_the_command_with_1(
    server: Server, tmp_path: Path, failures: dict[int, int], status: int, said: str | None
) -> None:
    numbers = count()

    def answer(handler: Handler) -> None:
        if code := failures.get(next(numbers)):
            handler.respond(code, "{}")
        else:
            handler.events(completion(" a"), {"choices": [], "usage": USAGE})

    server.answer = answer
    prompts, report = tmp_path / "prompts.txt", tmp_path / "report.json"
    prompts.write_text("Once\n")
    ended = CliRunner().invoke(
        app,
        [
            *("bench", "m", f"--openai=http://127.0.0.1:{server.server_address[1]}"),
            *("--concurrency=1", "--requests=100", "--warm-up=0"),
            *(f"--prompts={prompts}", f"--output={report}"),
        ],
    )
    assert ended.exit_code == status
    complaints = [line for line in ended.output.splitlines() if line.startswith("inferx: ")]
    assert complaints == ([said] if said else [])
    [point] = json.loads(report.read_text())["points"]
    assert sum(point["errors"].values()) == len(failures)
