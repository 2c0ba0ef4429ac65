"""Reading a body of megabytes takes most of a second, in which the streams of others go on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai import app
from inferx.entrypoints.openai.errors import invalid
from inferx.entrypoints.openai.limits import HUGE_BODY
from inferx.entrypoints.openai.server import OpenAIServer
from tokenizing import smollm2
from triton_ports import TritonPorts


@pytest.mark.parametrize(
    ("path", "reads"),
    [("chat/completions", "chat_request"), ("completions", "completion_request")],
)
def test_a_huge_body_is_read_in_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch, path: str, reads: str
) -> None:
    threads: list[str] = []

    def read(given: Mapping[str, Any]) -> None:
        threads.append(threading.current_thread().name)
        raise invalid("that will do", "prompt")

    monkeypatch.setattr(app, reads, read)
    with TritonPorts().listening() as triton:
        backend = app.Backend(triton.grpc_url, triton.metrics_url, {"m": smollm2()})
        server = OpenAIServer(Frontend(0, None, 0, 0).listen("127.0.0.1"), backend)
        server.start()
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}/v1") as client:
                for size in (10, HUGE_BODY):
                    answer = client.post(path, json={"prompt": "x" * size})
                    assert answer.status_code == 400
                    assert answer.json()["error"]["message"] == "that will do"
        finally:
            server.drain()
            server.join()
    small, huge = threads
    assert small == "inferx-openai"
    assert huge.startswith("inferx-long-bodies")
