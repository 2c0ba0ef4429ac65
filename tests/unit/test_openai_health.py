"""/health and the paths beside it: what they say of Triton, how long they wait for it, and HEAD."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import httpx2
import pytest
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai import chat, health
from inferx.entrypoints.openai.app import Backend
from inferx.entrypoints.openai.limits import LONG_BODY
from inferx.entrypoints.openai.model_metrics import models_on
from inferx.entrypoints.openai.server import OpenAIServer
from inferx.errors import InvalidArgument
from inferx.observe.families import GAUGES
from triton_ports import TritonPorts

PAGE = """\
# TYPE inferx:engine_up gauge
inferx:engine_up{model="up",version="1"} 1
inferx:engine_up{model="dead",version="1"} 0
inferx:engine_up{model="reloaded",version="1"} 0
inferx:engine_up{model="reloaded",version="2"} 1
inferx:num_requests_running{model="idle",version="1"} 0
"""


def test_an_engine_whose_gauge_is_zero_is_down() -> None:
    assert "inferx:engine_up" in GAUGES
    assert [name for name, model in models_on(PAGE).items() if model.engine_is_down] == ["dead"]


@pytest.mark.parametrize("labels", ["", "{}", '{version="1"}', '{le="0.5",version="1"}'])
def test_figures_that_name_no_model_are_nobodys(labels: str) -> None:
    assert models_on(f"inferx:engine_up{labels} 0\n{PAGE}") == models_on(PAGE)


def test_the_versions_of_a_model_are_one() -> None:
    name = "inferx:time_to_first_token_seconds"
    lines = [
        f'{name}_{part}{{model="m",version="{version}"{le}}} {value}'
        for version, values in (("1", (2, 3, 0.5, 3)), ("2", (4, 8, 1.5, 8)))
        for (part, le), value in zip(
            (("bucket", ',le="0.1"'), ("bucket", ',le="+Inf"'), ("sum", ""), ("count", "")),
            values,
            strict=True,
        )
    ]
    (found,) = models_on("\n".join(lines)).values()
    assert found.histogram("time_to_first_token_seconds") == [(0.1, 6.0), (None, 11.0)]
    assert found.values == {}


@pytest.fixture
def triton() -> Iterator[TritonPorts]:
    with TritonPorts().listening() as ports:
        ports.ready = {"up"}
        ports.page = PAGE
        yield ports


@pytest.fixture
def site(triton: TritonPorts) -> Iterator[httpx2.Client]:
    tokenizers: dict[str, Any] = {"up": None}
    backend = Backend(triton.grpc_url, triton.metrics_url, tokenizers)
    server = OpenAIServer(Frontend(0, None, 0, 0).listen("127.0.0.1"), backend)
    server.start()
    with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.drain()
    server.join()


def problem(site: httpx2.Client) -> str:
    answer = site.get("/health")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    return answer.json()["error"]["message"]


def test_health_does_not_wait_for_a_triton_that_does_not_answer(
    site: httpx2.Client, triton: TritonPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READY_TIMEOUT", 0.05)
    triton.answers.clear()
    assert problem(site) == "Triton has not said within 0.05 s which models are ready"
    assert site.head("/health").status_code == 503


def test_health_says_which_model_is_not_ready(site: httpx2.Client, triton: TritonPorts) -> None:
    triton.ready = set()
    assert problem(site) == "not ready: up"


def test_health_does_not_wait_for_a_metrics_page_that_does_not_come(
    site: httpx2.Client, triton: TritonPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def held(url: str) -> str:
        go_on.wait()
        return ""

    monkeypatch.setattr(health, "_fetch", held)
    monkeypatch.setattr(health, "PAGE_TIMEOUT", 0.05)
    try:
        assert problem(site) == "Triton's metrics page does not answer"
    finally:
        go_on.set()


def test_nobody_waits_for_long_chats_and_one_whose_client_left_is_not_prepared(
    site: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    begun: SimpleQueue[str] = SimpleQueue()

    def encode(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> list[int]:
        content = messages[0]["content"]
        begun.put(content[:5])
        if len(content) > LONG_BODY:
            assert go_on.wait(20)
        raise InvalidArgument("not today")

    def ask(content: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(str(site.base_url.host), site.base_url.port)
        messages = [{"role": "user", "content": content}]
        connection.request(
            "POST", "/v1/chat/completions", json.dumps({"model": "up", "messages": messages})
        )
        return connection

    monkeypatch.setattr(chat, "encode_chat", encode)
    first = [ask("first" * LONG_BODY) for _ in range(2)]
    assert [begun.get(timeout=20) for _ in first] == ["first", "first"]
    waiting = [ask("later" * LONG_BODY) for _ in range(6)]
    assert ask("short").getresponse().read() == (
        b'{"error":{"message":"not today","type":"invalid_request_error",'
        b'"param":"messages","code":null}}'
    )
    for connection in waiting:
        connection.close()
    assert site.get("/health").status_code == 200  # by then their leaving was noticed
    go_on.set()
    assert [connection.getresponse().status for connection in first] == [400, 400]
    assert begun.get(timeout=20) == "short"
    assert begun.empty()


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/v1/models/up", "/metrics", "/status.json"]
)
def test_head_is_get_without_its_body(site: httpx2.Client, path: str) -> None:
    whole = site.get(path)
    assert whole.status_code == 200
    connection = http.client.HTTPConnection(str(site.base_url.host), site.base_url.port)
    for _ in range(2):  # the second one finds no bytes of the first one's answer
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert answer.getheader("content-type") == whole.headers["content-type"]
        if path != "/status.json":  # it tells the time
            assert answer.getheader("content-length") == whole.headers["content-length"]
    connection.close()


def test_head_is_refused_where_get_is(site: httpx2.Client) -> None:
    for path, status in (("/v1/models/none", 404), ("/none", 404), ("/v1/completions", 405)):
        assert site.get(path).status_code == status
        assert site.head(path).status_code == status


def test_health_does_not_wait_for_chats_whose_prompts_are_made(
    site: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat of megabytes takes seconds, and four at a time."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def held(*arguments: Any, **named: Any) -> list[int]:
        begun.release()
        go_on.wait()
        return [1]

    monkeypatch.setattr(chat, "encode_chat", held)
    body = {"model": "up", "messages": [{"role": "user", "content": "hi"}]}
    with ThreadPoolExecutor(5) as clients:
        asked = [
            clients.submit(httpx2.post, f"{site.base_url}/v1/chat/completions", json=body)
            for _ in range(5)
        ]
        try:
            for _ in range(4):
                assert begun.acquire(timeout=10)
            assert site.get("/health").status_code == 200
            assert site.get("/status.json").json()["problem"] is None
        finally:
            go_on.set()
        assert {answer.result().status_code for answer in asked} == {500}  # Triton takes none here
